//! How rank 0 learns of a rank whose secret is another one. The store turns strangers away without a word, since most are of no
//! concern; but a node of the run whose secret was set wrongly is worth knowing of long before the deadline.
//!
//! A rank that was refused sends one datagram to the port of the store. Nothing follows from it but a line in the output of rank 0, so
//! that anybody may send one.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::notice::say;

/// What a datagram begins with; the number of the rank follows.
const GREETING: &str = "firebrand: refused rank ";

/// Of how many addresses something is said.
const MOST: usize = 16;

/// Tells rank 0 that a rank was refused for its secret.
pub(super) fn knock(address: SocketAddr, rank: usize) {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    // Where it cannot be sent, this rank's own error has to do.
    let _ = UdpSocket::bind((any, 0))
        .and_then(|socket| socket.send_to(format!("{GREETING}{rank}").as_bytes(), address));
}

/// Where rank 0 hears of them, on a thread of its own.
pub(super) struct Door {
    socket: Arc<UdpSocket>,
    strangers: Arc<Mutex<Vec<Stranger>>>,
    closed: Arc<AtomicBool>,
}

/// Who was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stranger {
    address: IpAddr,
    rank: usize,
}

impl Door {
    /// Listens at the address of the store; `None` if that cannot be, and then nothing is heard.
    pub fn open(address: SocketAddr) -> Option<Self> {
        let door = Self {
            socket: Arc::new(UdpSocket::bind(address).ok()?),
            strangers: Arc::default(),
            closed: Arc::default(),
        };
        let (socket, strangers, closed) = (
            Arc::clone(&door.socket),
            Arc::clone(&door.strangers),
            Arc::clone(&door.closed),
        );
        std::thread::Builder::new()
            .name("firebrand-door".to_owned())
            .spawn(move || listen(&socket, &strangers, &closed))
            .ok()?;
        Some(door)
    }

    /// What is to be added to the reason why ranks did not come together.
    pub fn reason(&self) -> Option<String> {
        let strangers = lock(&self.strangers);
        let list: Vec<String> = strangers
            .iter()
            .map(|stranger| format!("rank {} at {}", stranger.rank, stranger.address))
            .collect();
        (!list.is_empty()).then(|| format!("refused since their secret is another one: {}", list.join(", ")))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the thread, which then ends.
        if let Ok(address) = self.socket.local_addr() {
            let _ = self.socket.send_to(&[], address);
        }
    }
}

fn lock(strangers: &Mutex<Vec<Stranger>>) -> MutexGuard<'_, Vec<Stranger>> {
    strangers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(socket: &UdpSocket, strangers: &Mutex<Vec<Stranger>>, closed: &AtomicBool) {
    let mut bytes = [0; 64];
    loop {
        let received = socket.recv_from(&mut bytes);
        if closed.load(Ordering::Acquire) {
            return;
        }
        let Ok((length, from)) = received else {
            // An error of one datagram, such as that nobody took one; a socket that is broken is not asked again and again.
            std::thread::sleep(std::time::Duration::from_millis(100));
            continue;
        };
        let Some(rank) = rank_of(&bytes[..length]) else {
            continue;
        };
        let stranger = Stranger {
            address: from.ip(),
            rank,
        };
        let mut known = lock(strangers);
        if known.len() >= MOST || known.iter().any(|other| other.address == stranger.address) {
            continue;
        }
        known.push(stranger);
        drop(known);
        say(&format!(
            "a process at {} that says to be rank {rank} was refused, since its secret is another one; give every node the same \
             FIREBRAND_SECRET, or a FIREBRAND_SECRET_FILE with the same content",
            stranger.address
        ));
    }
}

fn rank_of(bytes: &[u8]) -> Option<usize> {
    std::str::from_utf8(bytes)
        .ok()?
        .strip_prefix(GREETING)?
        .parse()
        .ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn who_knocks_is_known_once_and_noise_is_nothing() {
        let door = Door::open(([127, 0, 0, 1], 0).into()).unwrap();
        let address = door.socket.local_addr().unwrap();
        assert_eq!(door.reason(), None);
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        for noise in [
            &b""[..],
            b"firebrand: refused rank",
            b"firebrand: refused rank x",
            &[0xff; 2000],
        ] {
            other.send_to(noise, address).unwrap();
        }
        knock(address, 3);
        knock(address, 4);
        let begun = Instant::now();
        while door.reason().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(5));
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(
            door.reason().unwrap(),
            "refused since their secret is another one: rank 3 at 127.0.0.1"
        );
    }
}
