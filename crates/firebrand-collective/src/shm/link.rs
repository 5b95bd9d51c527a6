use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::auth::{Side, authenticate};
use crate::transport::Patience;
use crate::{Error, Health, Result};

/// A connection to another rank of the node, over which files are handed.
pub(super) struct Link {
    stream: UnixStream,
    peer: String,
    /// The peer's number among all ranks, if it is known.
    waiting_for: Vec<usize>,
}

impl Link {
    pub(super) fn new(stream: UnixStream, peer: String, waiting_for: Vec<usize>) -> Result<Self> {
        let prepared = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(Health::PERIOD)))
            .and_then(|()| stream.set_write_timeout(Some(Health::PERIOD)));
        prepared.map_err(|error| Error::system("a connection between ranks of this node", error))?;
        Ok(Self {
            stream,
            peer,
            waiting_for,
        })
    }

    /// The peer has told who it is.
    pub(super) fn name(&mut self, global_rank: usize) {
        self.peer = format!("rank {global_rank}");
        self.waiting_for = vec![global_rank];
    }

    pub(super) fn is_same_user(&self) -> Result<bool> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream)
            .map_err(|error| Error::system(format!("the user of {}", self.peer), error))?;
        Ok(peer.uid == rustix::process::geteuid())
    }

    /// Proves to the peer that this rank knows the secret, and has it prove the same.
    pub(super) fn authenticate(&mut self, secret: &[u8], side: Side, patience: &Patience) -> Result<()> {
        let mut stream = Patient {
            stream: &self.stream,
            patience,
        };
        authenticate(&mut stream, secret, "shm", side, &self.peer)
            // A deadline or a failure is the reason, not that the handshake was cut short by it.
            .map_err(|error| patience.check(|| self.waiting_for.clone()).err().unwrap_or(error))
    }

    /// Hands over a file with its number.
    pub(super) fn send(&self, number: u32, file: BorrowedFd<'_>, patience: &Patience) -> Result<()> {
        let number = number.to_le_bytes();
        loop {
            let files = [file];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&files)) {
                return Err(Error::argument(
                    "there is no space for a file descriptor in a message",
                ));
            }
            match sendmsg(
                &self.stream,
                &[IoSlice::new(&number)],
                &mut control,
                SendFlags::NOSIGNAL,
            ) {
                Ok(sent) if sent == number.len() => return Ok(()),
                Ok(_) => return Err(self.nonsense("it takes no more than a part of a number".to_owned())),
                Err(Errno::INTR | Errno::AGAIN) => {}
                // Many files are under way to processes that have not taken them so far.
                Err(Errno::TOOMANYREFS) => std::thread::sleep(patience.period()),
                Err(error) => return Err(self.lost(&error.to_string())),
            }
            patience.check(|| self.waiting_for.clone())?;
        }
    }

    /// Receives a file and its number.
    pub(super) fn receive(&self, patience: &Patience) -> Result<(u32, OwnedFd)> {
        let mut number = [0; 4];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(
                &self.stream,
                &mut [IoSliceMut::new(&mut number)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            );
            match received {
                Ok(message) if message.bytes == 0 => return Err(self.lost("it closed the connection")),
                Ok(message) => {
                    let mut files = control.drain().flat_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(files) => files.collect(),
                        _ => Vec::new(),
                    });
                    return match (files.next(), message.bytes == number.len()) {
                        (Some(file), true) => Ok((u32::from_le_bytes(number), file)),
                        _ => Err(self.nonsense(
                            "no file came with it; is the limit of open files (`ulimit -n`) reached?"
                                .to_owned(),
                        )),
                    };
                }
                Err(Errno::INTR | Errno::AGAIN) => patience.check(|| self.waiting_for.clone())?,
                Err(error) => return Err(self.lost(&error.to_string())),
            }
        }
    }

    pub(super) fn nonsense(&self, reason: String) -> Error {
        Error::Protocol {
            peer: self.peer.clone(),
            reason,
        }
    }

    fn lost(&self, reason: &str) -> Error {
        Error::Connect {
            what: format!("memory could not be shared with {}", self.peer),
            reason: format!("{reason}; its own error says why"),
        }
    }
}

/// Reads and writes that are tried again until there is no reason to wait any more.
struct Patient<'a> {
    stream: &'a UnixStream,
    patience: &'a Patience,
}

impl Patient<'_> {
    fn persist<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt() {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.patience.check(Vec::new).map_err(io::Error::other)?;
                }
                other => return other,
            }
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        self.persist(|| stream.read(buffer))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        self.persist(|| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
