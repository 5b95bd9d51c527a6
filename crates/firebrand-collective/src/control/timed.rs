use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::Health;

/// A blocking connection whose reads and writes all end at one deadline, however slowly the bytes come, and when a rank fails.
pub(crate) struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
    health: Option<&'a Health>,
}

impl<'a> Timed<'a> {
    pub fn new(stream: &'a TcpStream, deadline: Instant, health: Option<&'a Health>) -> Self {
        Self {
            stream,
            deadline,
            health,
        }
    }

    /// How long the next system call may block.
    fn slice(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        }
        match self.health {
            None => Ok(left),
            Some(health) => {
                health.check().map_err(io::Error::other)?;
                Ok(left.clamp(Duration::from_millis(1), Health::PERIOD))
            }
        }
    }
}

/// Whether a call may simply be made again.
fn again(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.set_read_timeout(Some(self.slice()?))?;
            match self.stream.read(buffer) {
                Err(error) if again(&error) => {}
                outcome => return outcome,
            }
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        loop {
            self.stream.set_write_timeout(Some(self.slice()?))?;
            match self.stream.write(buffer) {
                Err(error) if again(&error) => {}
                outcome => return outcome,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The moment that lies so far ahead; a time that the clock cannot count to is as good as a year.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + YEAR)
}
