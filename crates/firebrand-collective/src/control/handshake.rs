use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::timed::Timed;
use crate::auth::{Side, authenticate};

/// The stack of a handshake's thread.
const STACK: usize = 128 << 10;

/// The server's end of a handshake, on a thread of its own.
pub(super) struct Handshake {
    pub since: Instant,
    stream: Arc<TcpStream>,
    /// Whether it waits for bytes of the other end. Once it does not, it is over soon.
    waits: Arc<Mutex<bool>>,
    thread: JoinHandle<()>,
}

impl Handshake {
    /// `done` is called on the thread with whether the other end proved that it knows the secret.
    pub fn begin(
        stream: TcpStream,
        address: SocketAddr,
        secret: Arc<[u8]>,
        purpose: &'static str,
        timeout: Duration,
        done: impl FnOnce(bool) + Send + 'static,
    ) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let (stream, waits) = (Arc::new(stream), Arc::new(Mutex::new(false)));
        let since = Instant::now();
        let thread = std::thread::Builder::new()
            .name("firebrand-gate".to_owned())
            .stack_size(STACK)
            .spawn({
                let (stream, waits) = (Arc::clone(&stream), Arc::clone(&waits));
                move || {
                    let mut guarded = Guarded {
                        timed: Timed::new(&stream, since + timeout, None),
                        waits: &waits,
                    };
                    let peer = address.to_string();
                    let proved = authenticate(&mut guarded, &secret, purpose, Side::Server, &peer).is_ok();
                    drop(stream);
                    done(proved);
                }
            })?;
        Ok(Self {
            since,
            stream,
            waits,
            thread,
        })
    }

    /// Ends it if it waits for the other end; returns whether it did. So the other end is never told that it is let in and then
    /// sent away: either it has not been told and is not going to be, or the handshake is left alone.
    pub fn interrupt(&self) -> bool {
        let waits = lock(&self.waits);
        if *waits {
            drop(self.stream.shutdown(Shutdown::Both));
        }
        *waits
    }

    /// Ends it in any case.
    pub fn abort(&self) {
        drop(self.stream.shutdown(Shutdown::Both));
    }

    /// Takes back the connection of a handshake that is over or about to be.
    pub fn finish(self) -> Option<TcpStream> {
        // A panic of it has been printed already, and it then has told nobody that it is done.
        drop(self.thread.join());
        Arc::into_inner(self.stream)
    }
}

fn lock(waits: &Mutex<bool>) -> MutexGuard<'_, bool> {
    waits.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that tells while it waits for the other end.
struct Guarded<'a> {
    timed: Timed<'a>,
    waits: &'a Mutex<bool>,
}

impl Read for Guarded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        *lock(self.waits) = true;
        let outcome = self.timed.read(buffer);
        *lock(self.waits) = false;
        outcome
    }
}

impl Write for Guarded<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.timed.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.timed.flush()
    }
}
