use std::any::{Any, type_name};

use burn::tensor::{Device, Tensor};

use crate::params::{
    ParamInfo, ParamMapper, ParamVisitor, assign_path_ids, map_module, train_params, visit_fields,
    visit_module,
};
use crate::{
    AnyBatch, Error, FitInfo, LightningModule, ManualEngine, ManualOptimization, OptimizerSetup, Prediction,
    Result, StepContext,
};

/// A [`LightningModule`] without its type: what loops, strategies and checkpoints work with, so that they are compiled once.
///
/// [`erase`] makes one of any module; a `Box<dyn ErasedModule>` that was chosen at run time trains as any other.
#[allow(missing_docs)] // Each method is the one of `LightningModule` of the same name, unless it says otherwise.
pub trait ErasedModule: Send {
    fn training_step(&self, batch: AnyBatch, step: &mut StepContext) -> Result<Tensor<1>>;
    fn validation_step(&self, batch: AnyBatch, step: &mut StepContext) -> Result<()>;
    fn test_step(&self, batch: AnyBatch, step: &mut StepContext) -> Result<()>;
    fn predict_step(&self, batch: AnyBatch, step: &mut StepContext) -> Result<Prediction>;
    fn configure_optimizers(&self, fit: &FitInfo) -> OptimizerSetup;
    fn automatic_optimization(&self) -> bool;
    fn manual_training_step(
        &mut self,
        engine: &mut dyn ManualEngine,
        batch: AnyBatch,
        step: &mut StepContext,
    ) -> Result<()>;
    fn tied_parameters(&self) -> Vec<Vec<String>>;
    fn on_fit_start(&mut self, step: &mut StepContext) -> Result<()>;
    fn on_fit_end(&mut self, step: &mut StepContext) -> Result<()>;
    fn on_train_epoch_start(&mut self, step: &mut StepContext) -> Result<()>;
    fn on_train_epoch_end(&mut self, step: &mut StepContext) -> Result<()>;
    fn on_train_batch_start(&mut self, step: &mut StepContext) -> Result<()>;
    fn on_train_batch_end(&mut self, step: &mut StepContext) -> Result<()>;
    fn on_before_optimizer_step(&mut self, step: &mut StepContext) -> Result<()>;
    fn on_evaluation_start(&self, step: &mut StepContext) -> Result<()>;
    fn on_evaluation_end(&self, step: &mut StepContext) -> Result<()>;
    fn on_save_checkpoint(&self) -> Option<serde_json::Value>;
    fn on_load_checkpoint(&mut self, state: &serde_json::Value) -> Result<()>;

    /// Visits every field, see [`visit_fields`].
    fn visit_fields(&self, visit: &mut dyn FnMut(&str, &str));
    /// Visits every value, see [`visit_module`].
    fn visit_params(&self, visitor: &mut dyn ParamVisitor);
    /// Maps every value, see [`map_module`].
    fn map_params(&mut self, mapper: &mut dyn ParamMapper);
    /// A clone with mapped values. Clones share their running statistics, so an update during the clone's forward pass
    /// reaches this module; a mapper must therefore leave buffers alone.
    fn mapped_clone(&self, mapper: &mut dyn ParamMapper) -> Box<dyn ErasedModule>;
    /// Gives every parameter the identity of its path, see [`assign_path_ids`].
    fn assign_path_ids(&mut self);
    /// Moves the module to a device without autodiff and cuts its ties: running statistics take over their pending update and
    /// are no longer shared with clones, and tensors that are no parameters come along.
    ///
    /// The module is in validation mode afterwards, until [`train_params`](Self::train_params). It materialises every lazy
    /// parameter.
    fn detach_to(&mut self, device: &Device);
    /// Puts the float parameters that are wanted on the autodiff device, see [`train_params`].
    fn train_params(&mut self, wants: &mut dyn FnMut(&ParamInfo<'_>) -> bool);
    /// The module in validation mode and without autodiff, with running statistics of its own that include the last update.
    ///
    /// It materialises every lazy parameter.
    fn evaluation_twin(&self) -> Box<dyn ErasedModule>;
    /// The type of the module, for messages.
    fn type_name(&self) -> &'static str;
    /// The module with its type still to be named; see [`restore_type`].
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    /// The module for downcasting in place.
    fn as_any(&self) -> &dyn Any;
}

/// Erases the type of a module.
pub fn erase<M: LightningModule>(module: M) -> Box<dyn ErasedModule> {
    Box::new(Slot(Some(module)))
}

/// The module with its type again, or `None` if it is of another type.
pub fn restore_type<M: LightningModule>(module: Box<dyn ErasedModule>) -> Option<M> {
    module
        .into_any()
        .downcast::<Slot<M>>()
        .ok()
        .and_then(|slot| slot.0)
}

/// Holds a module so that it can be mapped by value behind `&mut self`. It is empty only while that goes on.
pub(crate) struct Slot<M>(pub(crate) Option<M>);

impl<M> Slot<M> {
    #[allow(clippy::expect_used)] // Only a panic inside Burn's `map` could leave the slot empty.
    pub(crate) fn get(&self) -> &M {
        self.0.as_ref().expect("a module is in its slot")
    }

    #[allow(clippy::expect_used)] // As above.
    fn get_mut(&mut self) -> &mut M {
        self.0.as_mut().expect("a module is in its slot")
    }

    fn replace(&mut self, function: impl FnOnce(M) -> M) {
        self.0 = self.0.take().map(function);
    }
}

macro_rules! forward_hooks {
    ($($hook:ident),+) => {
        $(fn $hook(&mut self, step: &mut StepContext) -> Result<()> {
            self.get_mut().$hook(step)
        })+
    };
}

impl<M: LightningModule> ErasedModule for Slot<M> {
    forward_hooks!(
        on_fit_start,
        on_fit_end,
        on_train_epoch_start,
        on_train_epoch_end,
        on_train_batch_start,
        on_train_batch_end,
        on_before_optimizer_step
    );

    fn training_step(&self, batch: AnyBatch, step: &mut StepContext) -> Result<Tensor<1>> {
        self.get().training_step(batch.downcast()?, step)
    }

    fn validation_step(&self, batch: AnyBatch, step: &mut StepContext) -> Result<()> {
        self.get().validation_step(batch.downcast()?, step)
    }

    fn test_step(&self, batch: AnyBatch, step: &mut StepContext) -> Result<()> {
        self.get().test_step(batch.downcast()?, step)
    }

    fn predict_step(&self, batch: AnyBatch, step: &mut StepContext) -> Result<Prediction> {
        self.get().predict_step(batch.downcast()?, step)
    }

    fn configure_optimizers(&self, fit: &FitInfo) -> OptimizerSetup {
        self.get().configure_optimizers(fit)
    }

    fn automatic_optimization(&self) -> bool {
        self.get().automatic_optimization()
    }

    fn manual_training_step(
        &mut self,
        engine: &mut dyn ManualEngine,
        batch: AnyBatch,
        step: &mut StepContext,
    ) -> Result<()> {
        let batch = batch.downcast::<M::Batch>()?;
        M::manual_training_step(&mut ManualOptimization::new(self, engine), batch, step)
    }

    fn tied_parameters(&self) -> Vec<Vec<String>> {
        self.get().tied_parameters()
    }

    fn on_evaluation_start(&self, step: &mut StepContext) -> Result<()> {
        self.get().on_evaluation_start(step)
    }

    fn on_evaluation_end(&self, step: &mut StepContext) -> Result<()> {
        self.get().on_evaluation_end(step)
    }

    fn on_save_checkpoint(&self) -> Option<serde_json::Value> {
        self.get().on_save_checkpoint()
    }

    fn on_load_checkpoint(&mut self, state: &serde_json::Value) -> Result<()> {
        self.get_mut().on_load_checkpoint(state)
    }

    fn visit_fields(&self, visit: &mut dyn FnMut(&str, &str)) {
        visit_fields(self.get(), visit);
    }

    fn visit_params(&self, visitor: &mut dyn ParamVisitor) {
        visit_module(self.get(), visitor);
    }

    fn map_params(&mut self, mapper: &mut dyn ParamMapper) {
        self.replace(|module| map_module(module, mapper));
    }

    fn mapped_clone(&self, mapper: &mut dyn ParamMapper) -> Box<dyn ErasedModule> {
        erase(map_module(self.get().clone(), mapper))
    }

    fn assign_path_ids(&mut self) {
        self.replace(assign_path_ids);
    }

    fn detach_to(&mut self, device: &Device) {
        self.replace(|module| module.valid().to_device(device));
    }

    fn train_params(&mut self, wants: &mut dyn FnMut(&ParamInfo<'_>) -> bool) {
        self.replace(|module| train_params(module, wants));
    }

    fn evaluation_twin(&self) -> Box<dyn ErasedModule> {
        erase(self.get().valid())
    }

    fn type_name(&self) -> &'static str {
        type_name::<M>()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A borrowed view of the module's type, for hooks that know it.
pub fn downcast_module<M: LightningModule>(module: &dyn ErasedModule) -> std::result::Result<&M, Error> {
    module
        .as_any()
        .downcast_ref::<Slot<M>>()
        .and_then(|slot| slot.0.as_ref())
        .ok_or(Error::State {
            what: type_name::<M>().to_owned(),
            reason: format!("the module is a {}", module.type_name()),
        })
}
