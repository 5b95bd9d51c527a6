use burn::tensor::{Device, FloatDType};
use firebrand_core::{
    AnyTensor, ErasedModule, ParamInfo, ParamKind, ParamMapper, ParamTable, SeedStream, Stage, StepContext,
    StepInfo, seed_from,
};
use firebrand_strategy::{PrepareOptions, prepare_parameters};

use crate::Error;
use crate::data::{AnyLoader, EpochRequest};
use crate::logging::Accumulators;
use crate::options::Limit;
use crate::profiler::Profiler;
use crate::progress::ProgressReporter;

use super::report::Evaluated;

/// One pass over evaluation loaders with a module in validation mode.
pub(crate) struct Evaluation<'a> {
    pub stage: Stage,
    pub module: &'a dyn ErasedModule,
    pub loaders: &'a [AnyLoader],
    pub limit: Limit,
    pub seed: u64,
    pub epoch: u64,
    pub global_step: u64,
    /// The device, without autodiff.
    pub device: &'a Device,
    pub dtype: FloatDType,
    pub progress: &'a mut ProgressReporter,
    pub profiler: &'a Profiler,
    /// What the progress display calls it.
    pub title: &'a str,
}

impl Evaluation<'_> {
    /// Runs all batches and returns what was logged, reduced over all of them.
    pub(crate) fn run(&mut self) -> Result<Evaluated, Error> {
        let mut values = Accumulators::default();
        let mut num_batches = 0;
        let mut step = self.context(0, 0);
        self.module
            .on_evaluation_start(&mut step)
            .map_err(|source| self.hook_failed("on_evaluation_start", source))?;
        values.add(step.take_logs(), self.stage, 1.0, "")?;
        for (loader_index, loader) in self.loaders.iter().enumerate() {
            let suffix = if self.loaders.len() > 1 {
                format!("/loader_{loader_index}")
            } else {
                String::new()
            };
            num_batches += self.run_loader(loader_index, loader, &suffix, &mut values)?;
        }
        let mut step = self.context(0, num_batches);
        self.module
            .on_evaluation_end(&mut step)
            .map_err(|source| self.hook_failed("on_evaluation_end", source))?;
        values.add(step.take_logs(), self.stage, 1.0, "")?;
        let metrics = values
            .values()
            .into_iter()
            .map(|(name, value, _)| (name, value))
            .collect();
        Ok(Evaluated { metrics, num_batches })
    }

    fn run_loader(
        &mut self,
        loader_index: usize,
        loader: &AnyLoader,
        suffix: &str,
        values: &mut Accumulators,
    ) -> Result<u64, Error> {
        let request = EpochRequest::evaluate(self.seed, self.epoch);
        let limit = self.limit.of(loader.num_batches(&request)?);
        if limit == Some(0) {
            return Ok(0);
        }
        self.progress.begin_stage(self.title, limit, 0);
        let mut num_batches = 0;
        for loaded in loader.epoch(&request.limit_batches(limit), self.device)? {
            let loaded = loaded?;
            let samples = loaded.num_samples as f64;
            let mut step = self.context(loader_index, num_batches);
            self.device.seed(seed_from(
                self.seed,
                SeedStream::Step,
                self.stage.as_str(),
                &[self.epoch, loader_index as u64, num_batches],
            ));
            let batch = loaded.batch.to_device(self.device).to_dtype(self.dtype);
            let _span = self.profiler.span(match self.stage {
                Stage::Test => "test_step",
                _ => "validation_step",
            });
            let outcome = match self.stage {
                Stage::Test => self.module.test_step(batch, &mut step),
                _ => self.module.validation_step(batch, &mut step),
            };
            outcome.map_err(|source| Error::EvaluationStep {
                step: if self.stage == Stage::Test {
                    "test_step"
                } else {
                    "validation_step"
                },
                loader_index,
                batch_index: num_batches,
                source,
            })?;
            values.add(step.take_logs(), self.stage, samples, suffix)?;
            num_batches += 1;
            self.progress.advance(1);
        }
        self.progress.end_stage();
        Ok(num_batches)
    }

    fn context(&self, loader_index: usize, batch_index: u64) -> StepContext {
        StepContext::new(StepInfo {
            epoch: self.epoch,
            global_step: self.global_step,
            batch_index,
            loader_index,
            ..StepInfo::first(self.stage, self.device.clone())
        })
    }

    fn hook_failed(&self, hook: &'static str, source: firebrand_core::BoxError) -> Error {
        Error::Module {
            hook,
            epoch: self.epoch,
            global_step: self.global_step,
            source,
        }
    }
}

/// A module in validation mode for evaluation outside a fit: lazy parameters drawn from (seed, path), everything on the
/// device and in the dtype. The module that was given is not changed, but for lazy parameters, which become what they are.
pub(crate) fn evaluation_module(
    mut module: Box<dyn ErasedModule>,
    options: &PrepareOptions,
) -> Result<(Box<dyn ErasedModule>, ParamTable), Error> {
    let table = ParamTable::take_over(module.as_mut())?;
    let is_parameter = |index: usize| {
        table
            .get(index)
            .is_some_and(|entry| entry.kind == ParamKind::Parameter)
    };
    prepare_parameters(module.as_mut(), &table, options, &is_parameter)?;
    // The twin has running statistics of its own, which may be moved.
    let mut twin = module.evaluation_twin();
    let device = options.device.clone().without_autodiff();
    twin.map_params(&mut Place {
        device,
        dtype: options.precision.compute(),
    });
    Ok((twin, table))
}

struct Place {
    device: Device,
    dtype: FloatDType,
}

impl ParamMapper for Place {
    fn wants(&mut self, _: &ParamInfo<'_>) -> bool {
        true
    }

    fn map(&mut self, _: &ParamInfo<'_>, value: AnyTensor, _: bool) -> AnyTensor {
        value.to_device(&self.device).cast(self.dtype)
    }
}
