use burn::tensor::Tensor;

use crate::erased::{Slot, downcast_module};
use crate::{ErasedModule, LightningModule, Result};

/// What the engine does for a manual step; implemented by the strategy crate.
pub trait ManualEngine {
    /// A clone of the module whose parameters hand their gradients to the engine.
    ///
    /// # Errors
    ///
    /// If the engine cannot take part.
    fn begin_forward(&mut self, module: &dyn ErasedModule) -> Result<Box<dyn ErasedModule>>;

    /// Adds the gradients of a loss to those that are kept.
    ///
    /// # Errors
    ///
    /// If the loss is not a tensor of one element with a graph, or not finite.
    fn backward(&mut self, loss: Tensor<1>) -> Result<()>;

    /// Updates the parameters of one optimizer with the gradients that are kept for them, and drops the others.
    ///
    /// # Errors
    ///
    /// If no optimizer has the name, or a gradient is not finite.
    fn step(&mut self, module: &mut dyn ErasedModule, optimizer: &str) -> Result<()>;
}

/// Optimizers in a module's own hands; see [`LightningModule::manual_training_step`].
///
/// ```ignore
/// fn manual_training_step(gan: &mut ManualOptimization<'_, Self>, batch: Images, step: &mut StepContext) -> Result<()> {
///     let loss = gan.forward()?.discriminator_loss(&batch);
///     gan.backward(loss)?;
///     gan.step("discriminator")?;
///     let loss = gan.forward()?.generator_loss(&batch); // sees the discriminator's update
///     gan.backward(loss)?;
///     gan.step("generator")
/// }
/// ```
///
/// The first optimizer that steps in a call counts for `global_step`: one training step is one step, whatever the number of
/// optimizers.
pub struct ManualOptimization<'a, M: LightningModule> {
    slot: &'a mut Slot<M>,
    engine: &'a mut dyn ManualEngine,
    used: Option<Box<dyn ErasedModule>>,
}

impl<'a, M: LightningModule> ManualOptimization<'a, M> {
    pub(crate) fn new(slot: &'a mut Slot<M>, engine: &'a mut dyn ManualEngine) -> Self {
        Self {
            slot,
            engine,
            used: None,
        }
    }

    /// The module with its current weights, ready for one forward pass whose loss goes to [`backward`](Self::backward).
    ///
    /// # Errors
    ///
    /// If the engine cannot take part.
    pub fn forward(&mut self) -> Result<&M> {
        let used = self.engine.begin_forward(self.slot)?;
        Ok(downcast_module(&**self.used.insert(used))?)
    }

    /// The module as it is, for what needs no gradients.
    pub fn module(&self) -> &M {
        self.slot.get()
    }

    /// Back-propagates a loss of the last forward pass; the gradients are added to those that no step has used yet.
    ///
    /// # Errors
    ///
    /// If the loss is not a tensor of one element with a graph, or not finite.
    pub fn backward(&mut self, loss: Tensor<1>) -> Result<()> {
        self.engine.backward(loss)
    }

    /// Updates the parameters of the optimizer with that name, and forgets the gradients of all others.
    ///
    /// # Errors
    ///
    /// If no optimizer has the name, or a gradient is not finite.
    pub fn step(&mut self, optimizer: &str) -> Result<()> {
        self.used = None;
        self.engine.step(self.slot, optimizer)
    }
}
