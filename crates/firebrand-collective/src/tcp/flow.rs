use crate::Result;

/// Bytes to one rank and from another at the same time.
pub(super) trait Flow {
    /// What can be sent now; empty if there is nothing so far.
    fn outgoing(&self) -> &[u8];

    /// So much of it was sent.
    fn sent(&mut self, bytes: usize);

    /// Where what comes is to be put; empty if nothing more is to come.
    fn incoming(&mut self) -> &mut [u8];

    /// So much of it has come.
    fn received(&mut self, bytes: usize) -> Result<()>;

    /// Whether everything was sent and has come.
    fn is_done(&self) -> bool;
}

/// The ranks that a flow goes to and comes from; none if it does not.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub to: Option<usize>,
    pub from: Option<usize>,
}

/// For the calls alone.
pub(super) struct Nothing;

impl Flow for Nothing {
    fn outgoing(&self) -> &[u8] {
        &[]
    }

    fn sent(&mut self, _bytes: usize) {}

    fn incoming(&mut self) -> &mut [u8] {
        &mut []
    }

    fn received(&mut self, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        true
    }
}
