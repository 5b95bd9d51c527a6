use std::io;
use std::net::TcpStream;

/// Lets a connection within one machine send as fast as its other end reads.
///
/// Nothing is lost between two processes of a machine, and there is no bandwidth to be found out. A congestion control that does
/// so all the same and paces what it sends, as BBR does, spends more time on timers than the copies take. Reno does neither, and
/// every Linux has it. Between machines the choice is the system's.
pub(super) fn do_not_pace_within_a_machine(stream: &TcpStream) {
    // Without it, it is only slower.
    if is_within_a_machine(stream).unwrap_or(false) {
        drop(choose(stream, "reno"));
    }
}

fn is_within_a_machine(stream: &TcpStream) -> io::Result<bool> {
    Ok(stream.local_addr()?.ip() == stream.peer_addr()?.ip())
}

#[cfg(target_os = "linux")]
fn choose(stream: &TcpStream, congestion_control: &str) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_tcp_congestion(
        stream,
        congestion_control,
    )?)
}

#[cfg(not(target_os = "linux"))]
fn choose(_stream: &TcpStream, _congestion_control: &str) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::sockopt::tcp_congestion;

    use super::*;

    #[test]
    fn a_connection_within_a_machine_is_not_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        do_not_pace_within_a_machine(&stream);
        assert_eq!(tcp_congestion(&stream).unwrap(), "reno");
    }

    /// All of 127.0.0.0/8 is this machine, which stands for another one here.
    #[test]
    fn a_connection_to_another_address_stays_as_the_system_has_it() {
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let before = tcp_congestion(&stream).unwrap();
        assert!(!is_within_a_machine(&stream).unwrap());
        do_not_pace_within_a_machine(&stream);
        assert_eq!(tcp_congestion(&stream).unwrap(), before);
    }
}
