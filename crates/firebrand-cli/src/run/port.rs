use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};

/// Ports that systems do not give to outgoing connections, so that nothing takes one by chance.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// A port of 127.0.0.1 that is free: it is taken until the listener is dropped.
pub fn reserve() -> std::io::Result<(TcpListener, u16)> {
    let start = RandomState::new().hash_one(std::process::id());
    let tries = (0..64u64).map(|step| FIRST + (start.wrapping_add(step * 97) % u64::from(COUNT)) as u16);
    // Any other one is better than none.
    let mut failure = ErrorKind::AddrInUse.into();
    for port in tries.chain([0]) {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => {
                let port = listener.local_addr()?.port();
                return Ok((listener, port));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Whether somebody listens at a port of 127.0.0.1.
pub fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_taken_until_it_is_given_up() {
        let (listener, port) = reserve().unwrap();
        assert!((FIRST..FIRST + COUNT).contains(&port));
        assert!(is_taken(port));
        drop(listener);
        assert!(!is_taken(port));
    }
}
