use super::*;
/// s
pub struct ModelCheckpoint;
impl ModelCheckpoint {
    /// s
    pub fn new() -> Self { Self }
}
impl Callback for ModelCheckpoint {
    fn name(&self) -> String { "ModelCheckpoint".into() }
    fn saves_checkpoints(&self) -> bool { true }
    fn on_train_epoch_end(&mut self, _v: &View<'_>, c: &mut Commands) -> firebrand_core::Result<()> { c.checkpoint(CheckpointRequest { last: true, ..Default::default() }); Ok(()) }
}
/// s
pub struct ModelSummary;
impl ModelSummary {
    /// s
    pub const NAME: &'static str = "ModelSummary";
    /// s
    pub fn new() -> Self { Self }
}
impl Callback for ModelSummary { fn name(&self) -> String { Self::NAME.into() } }
