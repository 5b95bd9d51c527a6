use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::prefix::Prefixer;
use crate::{Error, Result};

/// Which stream a rank wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Its standard output.
    Stdout,
    /// Its standard error.
    Stderr,
}

/// Takes whole lines, with their prefix.
pub(super) type Sink = Arc<dyn Fn(OutputStream, &[u8]) + Send + Sync>;

/// How long part of a line is kept before it is shown.
const IDLE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// Writes to this process's own streams.
pub(super) fn standard_sink() -> Sink {
    Arc::new(|stream, lines| {
        // Nobody may be reading any more; the rank must not be held up by that.
        drop(match stream {
            OutputStream::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(lines).and_then(|()| out.flush())
            }
            OutputStream::Stderr => std::io::stderr().lock().write_all(lines),
        });
    })
}

/// A thread that hands on what a rank writes to one stream.
pub(super) struct Pump {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Pump {
    pub fn start(
        source: impl Read + AsFd + Send + 'static,
        stream: OutputStream,
        prefix: &str,
        sink: Sink,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("firebrand-output".to_owned())
            .spawn({
                let (stop, prefixer) = (Arc::clone(&stop), Prefixer::new(prefix));
                move || pump(source, stream, prefixer, &sink, &stop)
            })
            .map_err(|error| {
                Error::system("the thread for the output of a rank could not be started", error)
            })?;
        Ok(Self { thread, stop })
    }

    /// Whether everything has been handed on.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// The rank is over; something that it has left behind may still hold its stream open.
impl Drop for Pump {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn pump(
    mut source: impl Read + AsFd,
    stream: OutputStream,
    mut prefixer: Prefixer,
    sink: &Sink,
    stop: &AtomicBool,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut lines = Vec::new();
    loop {
        let ready = {
            let mut fds = [PollFd::new(&source, PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&IDLE))
        };
        match ready {
            Ok(0) => {
                prefixer.flush(&mut lines);
                if stop.load(Ordering::Acquire) {
                    break;
                }
            }
            Ok(_) => match source.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => prefixer.push(&buffer[..count], &mut lines),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            },
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
        hand_on(&mut lines, stream, sink);
    }
    prefixer.flush(&mut lines);
    hand_on(&mut lines, stream, sink);
}

fn hand_on(lines: &mut Vec<u8>, stream: OutputStream, sink: &Sink) {
    if !lines.is_empty() {
        sink(stream, lines);
        lines.clear();
    }
}
