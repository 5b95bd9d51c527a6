use crate::transport::{Call, Patience, Transport};
use crate::{Buffer, Result};

/// A group of one rank: everything is reduced, gathered and broadcast already.
pub(crate) struct Single;

impl Transport for Single {
    fn run(&mut self, _call: &Call, buffer: Buffer, _patience: &Patience) -> Result<Buffer> {
        Ok(buffer)
    }
}
