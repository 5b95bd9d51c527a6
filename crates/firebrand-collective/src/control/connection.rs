use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

/// The size of the length before each frame: a `u32` in little-endian order.
pub(crate) const LENGTH: usize = 4;

/// How much is read at a time, so that one busy peer does not hold up the others.
const CHUNK: usize = 64 << 10;

/// How long a connection is idle before the kernel asks whether the peer is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// One end of a connection that never blocks, with frames of a bounded size.
pub(crate) struct Connection {
    stream: TcpStream,
    max_frame: usize,
    received: Vec<u8>,
    outgoing: Vec<u8>,
    sent: usize,
}

impl Connection {
    pub fn new(stream: TcpStream, max_frame: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // Finds out, in time, about a peer whose machine is gone without a word.
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE)?;
        Ok(Self {
            stream,
            max_frame,
            received: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
        })
    }

    /// What to poll.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.is_sending());
        PollFd::new(&self.stream, events)
    }

    /// Whether not all has been sent.
    pub fn is_sending(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether bytes have come that were not taken as a frame.
    pub fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// Reads some of what has come. The memory that it takes grows with what comes, not with what a length promises.
    ///
    /// # Errors
    ///
    /// If the connection has ended: [`ErrorKind::UnexpectedEof`] if the peer closed it.
    pub fn receive(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.received.extend_from_slice(&chunk[..read]);
                Ok(())
            }
            Err(error) if passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next frame that has come as a whole.
    ///
    /// # Errors
    ///
    /// If it is longer than frames may be.
    pub fn frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(length) = self.received.first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let end = LENGTH + u32::from_le_bytes(*length) as usize;
        if end > LENGTH + self.max_frame {
            return Err(io::Error::new(ErrorKind::InvalidData, "a frame is too long"));
        }
        if self.received.len() < end {
            return Ok(None);
        }
        let rest = self.received.split_off(end);
        let mut frame = std::mem::replace(&mut self.received, rest);
        frame.drain(..LENGTH);
        Ok(Some(frame))
    }

    /// Queues a frame and sends what can be sent at once.
    ///
    /// # Errors
    ///
    /// If the connection has ended.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.outgoing
            .extend_from_slice(&(frame.len() as u32).to_le_bytes());
        self.outgoing.extend_from_slice(frame);
        self.flush()
    }

    /// Sends what can be sent at once.
    ///
    /// # Errors
    ///
    /// If the connection has ended.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.is_sending() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if passing(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.outgoing = Vec::new();
        self.sent = 0;
        Ok(())
    }

    /// Tells the peer that nothing more will come.
    pub fn finish(&self) {
        let _: io::Result<()> = self.stream.shutdown(std::net::Shutdown::Write);
    }
}

/// Whether it was only too early, and not the end.
fn passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
