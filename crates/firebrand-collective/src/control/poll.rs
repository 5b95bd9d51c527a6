use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::{Error, Result};

/// Wakes the thread that polls the [`Alarm`], from any other.
#[derive(Clone)]
pub(crate) struct Waker(Arc<UnixStream>);

/// What a polling thread polls besides its sockets.
pub(crate) struct Alarm(UnixStream);

/// A waker and its alarm.
pub(crate) fn alarm() -> Result<(Waker, Alarm)> {
    let make = || -> io::Result<_> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok((Waker(Arc::new(sender)), Alarm(receiver)))
    };
    make().map_err(|error| Error::system("a pair of sockets to wake a thread could not be made", error))
}

impl Waker {
    /// Lets the next or the present poll return. Of many calls one is enough, so that a full buffer is no matter.
    pub fn wake(&self) {
        let _: io::Result<usize> = (&*self.0).write(&[1]);
    }
}

impl Alarm {
    /// What to poll.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }

    /// Forgets the calls so far. To be called before looking at what the wakers tell of.
    pub fn reset(&self) {
        let mut bytes = [0; 256];
        while matches!((&self.0).read(&mut bytes), Ok(read) if read == bytes.len()) {}
    }
}

/// Waits until something is ready, or until a moment has come. A signal may end it early.
pub(crate) fn poll(fds: &mut [PollFd<'_>], until: Option<Instant>) {
    let timeout = until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        Timespec {
            tv_sec: left.as_secs().min(1 << 30) as _,
            tv_nsec: left.subsec_nanos() as _,
        }
    });
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        // Out of memory in the kernel: not to be repeated at once.
        Err(_) => std::thread::sleep(Duration::from_millis(10)),
    }
}
