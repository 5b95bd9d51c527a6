use std::panic::resume_unwind;
use std::sync::Arc;

use firebrand_core::{LightningModule, erase};

use super::{Trainer, fitted};
use crate::Error;
use crate::data::DataModule;
use crate::fit::Fitted;
use crate::team::Program;

impl Trainer {
    /// Trains a module that each rank makes for itself, with its data. It is [`fit`](Self::fit) where ranks are processes or there is
    /// one, and the only way where they are threads ([`Launcher::Thread`](crate::Launcher::Thread)): a clone would share its graph.
    ///
    /// The first rank is the thread that calls this, and returns its module; it alone shows progress, logs and saves. The others live
    /// until this returns, and keep what their callbacks know for the next fit. What any rank returns as an error, or panics with,
    /// ends all. Evaluation outside of a fit needs no other ranks: it runs in the thread that calls it, over all of the data.
    ///
    /// ```
    /// # use burn::module::Module;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::data::dataset::InMemDataset;
    /// # use burn::optim::SgdConfig;
    /// # use burn::tensor::{Device, Tensor};
    /// # use firebrand_core::{FitInfo, LightningModule, OptimizerSetup, Result, StepContext};
    /// use firebrand_trainer::{Launcher, Trainer, data::{Data, DataLoader}};
    /// # #[derive(Module, Debug)]
    /// # struct Line { linear: Linear }
    /// # impl Line { fn new(device: &Device) -> Self { Self { linear: LinearConfig::new(1, 1).init(device) } } }
    /// # impl LightningModule for Line {
    /// #     type Batch = (Tensor<2>, Tensor<2>);
    /// #     fn training_step(&self, (x, y): Self::Batch, step: &mut StepContext) -> Result<Tensor<1>> {
    /// #         Ok((self.linear.forward(x) - y).powf_scalar(2.0).mean())
    /// #     }
    /// #     fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup { OptimizerSetup::new(SgdConfig::new(), 0.1) }
    /// # }
    /// # fn main() -> Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// let mut trainer = Trainer::builder()
    ///     .devices(2)
    ///     .launcher(Launcher::Thread)
    ///     .max_epochs(1)
    /// #   .default_root_dir(folder.path())
    ///     .build()?;
    /// let fitted = trainer.fit_with(|| {
    /// #   let points: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
    /// #   let loader = DataLoader::from_fn(InMemDataset::new(points), |xs: Vec<f32>, device: &Device| {
    /// #       let x = Tensor::<1>::from_floats(xs.as_slice(), device).reshape([xs.len(), 1]);
    /// #       Ok((x.clone(), x * 2.0))
    /// #   }).batch_size(8);
    ///     Ok((Line::new(&Device::flex()), Data::new().train(loader)))
    /// })?;
    /// assert_eq!(fitted.report.global_step, 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`fit`](Self::fit), and [`Error::Make`] if a rank cannot make its module or data.
    pub fn fit_with<M: LightningModule, D: DataModule<Batch = M::Batch>>(
        &mut self,
        make: impl Fn() -> firebrand_core::Result<(M, D)> + Send + Sync + 'static,
    ) -> Result<Fitted<M>, Error> {
        // One log for all ranks, set up by the first.
        crate::progress::init_tracing(self.world.is_global_zero());
        let fit = move |trainer: &mut Self| {
            let (module, mut data) = make().map_err(Error::Make)?;
            trainer.fit_erased(erase(module), &mut data)
        };
        let Some(mut team) = self.team.take() else {
            return fitted(fit(self)?);
        };
        let program: Program = Arc::new(fit);
        let outcome = team.run(self, &program);
        self.team = Some(team);
        match outcome {
            Ok(outcome) => fitted(outcome?),
            Err(panic) => resume_unwind(panic),
        }
    }
}
