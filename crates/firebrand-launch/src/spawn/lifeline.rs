use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use rustix::fs::{FileType, OFlags};

use crate::{Error, Result};

/// A pipe that nobody writes to: its other end closes when the process that holds it is gone, however it went.
///
/// This holds where a signal at the parent's death does not: when a thread other than the last of the parent ends, when the
/// parent died before the child could ask for the signal, and for a rank behind a wrapper such as a shell.
pub(super) struct Lifeline {
    reader: PipeReader,
    /// Closed by the end of the process at the latest.
    _writer: PipeWriter,
}

/// Where the pipe is in a child: a file descriptor, and the inode by which it is told from any other file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub fd: u32,
    pub inode: u64,
}

impl Lifeline {
    pub fn new() -> Result<Self> {
        let (reader, writer) = std::io::pipe()
            .map_err(|error| Error::system("there is no pipe for the ranks to be made", error))?;
        Ok(Self {
            reader,
            _writer: writer,
        })
    }

    /// The end for a child, to be its standard input.
    pub fn stdin(&self) -> Result<Stdio> {
        let reader = self
            .reader
            .try_clone()
            .map_err(|error| Error::system("the pipe of a rank could not be duplicated", error))?;
        Ok(reader.into())
    }

    /// Where it is in a child that has it as its standard input.
    pub fn place(&self) -> Result<Place> {
        Ok(Place {
            fd: 0,
            inode: inode_of_pipe(&self.reader)
                .ok_or_else(|| Error::system("the pipe of the ranks", "it is no pipe"))?,
        })
    }
}

impl Place {
    pub fn parse(text: &str) -> Option<Self> {
        let (fd, inode) = text.split_once(':')?;
        Some(Self {
            fd: fd.parse().ok()?,
            inode: inode.parse().ok()?,
        })
    }

    /// The pipe, if it is still there: a program that a rank starts has the variable but not the pipe.
    pub fn open(self) -> Option<File> {
        // Without waiting for a writer: there is none if the parent is gone already. The new descriptor is not inherited.
        let pipe = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(format!("/proc/self/fd/{}", self.fd))
            .ok()?;
        (inode_of_pipe(&pipe)? == self.inode).then_some(pipe)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.fd, self.inode)
    }
}

/// Returns when the process at the other end is gone.
pub(super) fn wait_for_end(mut pipe: &File) {
    let mut byte = [0];
    loop {
        let mut fds = [rustix::event::PollFd::new(pipe, rustix::event::PollFlags::IN)];
        // An interrupted wait begins again.
        let _ = rustix::event::poll(&mut fds, None);
        match pipe.read(&mut byte) {
            Ok(0) => return,
            Err(error)
                if !matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
                ) =>
            {
                return;
            }
            _ => {}
        }
    }
}

fn inode_of_pipe(file: impl AsFd) -> Option<u64> {
    let stat = rustix::fs::fstat(file).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::Fifo).then_some(stat.st_ino)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn only_the_very_pipe_is_opened_and_its_end_is_seen() {
        let lifeline = Lifeline::new().unwrap();
        let fd = u32::try_from(lifeline.reader.as_raw_fd()).unwrap();
        let inode = lifeline.place().unwrap().inode;
        let pipe = Place { fd, inode }.open().unwrap();
        assert!(Place { fd, inode: inode + 1 }.open().is_none());
        assert!(Place { fd: 1_000_000, inode }.open().is_none());
        let waiter = std::thread::spawn(move || wait_for_end(&pipe));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiter.is_finished());
        drop(lifeline);
        waiter.join().unwrap();
    }

    #[test]
    fn a_place_survives_being_written() {
        let place = Place {
            fd: 12,
            inode: 345_678,
        };
        assert_eq!(Place::parse(&place.to_string()), Some(place));
        for text in ["", "1", "a:1", "1:b", "-1:2"] {
            assert_eq!(Place::parse(text), None, "{text}");
        }
    }
}
