use super::ProcessGroup;
use crate::{Buffer, Result};

/// The bytes of rank 0 on every rank; how many there are, only rank 0 need know.
///
/// # Errors
///
/// As [`ProcessGroup::broadcast`].
pub fn broadcast_bytes(group: &dyn ProcessGroup, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
    let len = group
        .broadcast(Buffer::from_slice(&[bytes.len() as u64]), 0)
        .wait()?;
    let len = len.as_slice::<u64>()?.first().copied().unwrap_or_default();
    bytes.resize(usize::try_from(len).unwrap_or_default(), 0);
    let sent = group.broadcast(Buffer::from_slice(&bytes), 0).wait()?;
    Ok(sent.bytes().to_vec())
}
