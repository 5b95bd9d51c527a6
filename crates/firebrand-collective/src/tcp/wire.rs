use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::transport::Call;

/// The connection to one rank, which never blocks. In each operation that uses it the call goes ahead of the data, once in each
/// direction.
pub(super) struct Wire {
    stream: TcpStream,
    outgoing: Header,
    incoming: Header,
}

/// The call on its way, in one direction.
#[derive(Default)]
struct Header {
    bytes: [u8; Call::ENCODED],
    done: usize,
    /// Whether there is one in this operation.
    used: bool,
}

impl Header {
    fn begin(&mut self, bytes: [u8; Call::ENCODED]) {
        if !self.used {
            *self = Self {
                bytes,
                done: 0,
                used: true,
            };
        }
    }

    fn is_under_way(&self) -> bool {
        self.used && self.done < self.bytes.len()
    }

    /// Takes its part of the bytes that went over the wire; returns the rest.
    fn advance(&mut self, bytes: usize) -> usize {
        let left = if self.used {
            self.bytes.len() - self.done
        } else {
            0
        };
        let part = left.min(bytes);
        self.done += part;
        bytes - part
    }

    fn left(&self) -> &[u8] {
        if self.used { &self.bytes[self.done..] } else { &[] }
    }
}

/// What came in one read.
pub(super) struct Received {
    /// The peer's call, if it is complete with this.
    pub call: Option<[u8; Call::ENCODED]>,
    /// How many bytes of data came behind it.
    pub bytes: usize,
}

impl Wire {
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            outgoing: Header::default(),
            incoming: Header::default(),
        }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Forgets the operation before, which is over.
    pub fn reset(&mut self) {
        self.outgoing = Header::default();
        self.incoming = Header::default();
    }

    /// This rank uses the wire to send in this operation.
    pub fn announce(&mut self, call: [u8; Call::ENCODED]) {
        self.outgoing.begin(call);
    }

    /// This rank uses the wire to receive in this operation.
    pub fn expect(&mut self) {
        self.incoming.begin([0; Call::ENCODED]);
    }

    /// Whether the call has not been sent as a whole.
    pub fn is_announcing(&self) -> bool {
        self.outgoing.is_under_way()
    }

    /// Whether the peer's call has not come as a whole.
    pub fn is_expecting(&self) -> bool {
        self.incoming.is_under_way()
    }

    /// Sends what can be sent at once of the call and the data behind it. Returns how much of the data.
    pub fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let slices = [IoSlice::new(self.outgoing.left()), IoSlice::new(data)];
        match self.stream.write_vectored(&slices)? {
            0 => Err(ErrorKind::WriteZero.into()),
            written => Ok(self.outgoing.advance(written)),
        }
    }

    /// Receives what has come of the peer's call and the data behind it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnexpectedEof`] if the peer closed the connection.
    pub fn read(&mut self, data: &mut [u8]) -> io::Result<Received> {
        let was_expecting = self.is_expecting();
        let done = self.incoming.done;
        let header: &mut [u8] = if was_expecting {
            &mut self.incoming.bytes[done..]
        } else {
            &mut []
        };
        let read = self
            .stream
            .read_vectored(&mut [IoSliceMut::new(header), IoSliceMut::new(data)])?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let bytes = self.incoming.advance(read);
        let complete = was_expecting && !self.is_expecting();
        Ok(Received {
            call: complete.then_some(self.incoming.bytes),
            bytes,
        })
    }
}

/// The end of the transport: what was sent still arrives.
impl Drop for Wire {
    fn drop(&mut self) {
        let _: io::Result<()> = self.stream.shutdown(Shutdown::Write);
    }
}
