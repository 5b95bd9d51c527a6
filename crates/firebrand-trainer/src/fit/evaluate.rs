use burn::tensor::{Device, FloatDType};
use firebrand_core::{
    AnyBatch, AnyTensor, BoxError, ErasedModule, ParamInfo, ParamKind, ParamMapper, ParamTable, SeedStream,
    Stage, StepContext, StepInfo, seed_from,
};
use firebrand_strategy::{PrecisionPolicy, PrepareOptions, prepare_parameters};

use crate::Error;
use crate::data::{AnyLoader, EpochRequest};
use crate::logging::Accumulators;
use crate::options::Limit;
use crate::profiler::Profiler;
use crate::progress::ProgressReporter;
use crate::world::World;

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
    /// The ranks that divide the data among them.
    pub world: &'a World,
    pub title: &'a str,
}

/// One batch of a pass.
pub(super) struct EvaluationBatch {
    /// The samples, on the device and in the dtype.
    pub batch: AnyBatch,
    pub num_samples: usize,
    /// The dataset indices of the samples, see [`LoadedBatch`](crate::data::LoadedBatch).
    pub samples: Vec<usize>,
}

/// Does one batch: calls the module's step and keeps what comes of it.
pub(super) type EachBatch<'f> = &'f mut dyn FnMut(EvaluationBatch, &mut StepContext) -> Result<(), Error>;

/// Takes what a step or hook logged: with how many samples it counts, and what is put behind its names.
pub(super) type TakeLogs<'f> = &'f mut dyn FnMut(&mut StepContext, f64, &str) -> Result<(), Error>;

impl Evaluation<'_> {
    /// Validates or tests, and returns what was logged, reduced over all batches.
    pub(crate) fn run(&mut self) -> Result<Evaluated, Error> {
        let (module, stage) = (self.module, self.stage);
        let mut values = Accumulators::default();
        let mut each = |batch: EvaluationBatch, step: &mut StepContext| {
            let outcome = match stage {
                Stage::Test => module.test_step(batch.batch, step),
                _ => module.validation_step(batch.batch, step),
            };
            outcome.map_err(|source| step_failed(step, source))
        };
        let num_batches = self.pass(&mut each, &mut |step, samples, suffix| {
            Ok(values.add(step.take_logs(), stage, samples, suffix)?)
        })?;
        let metrics = values
            .values_over(self.world)?
            .into_iter()
            .map(|(name, value, _)| (name, value))
            .collect();
        Ok(Evaluated { metrics, num_batches })
    }

    /// Goes over all loaders, between the module's hooks, and returns the number of batches.
    pub(super) fn pass(&mut self, each: EachBatch<'_>, logs: TakeLogs<'_>) -> Result<u64, Error> {
        let mut num_batches = 0;
        let mut step = self.context(0, 0);
        self.module
            .on_evaluation_start(&mut step)
            .map_err(|source| self.hook_failed("on_evaluation_start", source))?;
        logs(&mut step, 1.0, "")?;
        for (loader_index, loader) in self.loaders.iter().enumerate() {
            num_batches += self.pass_loader(loader_index, loader, each, logs)?;
        }
        let mut step = self.context(0, num_batches);
        self.module
            .on_evaluation_end(&mut step)
            .map_err(|source| self.hook_failed("on_evaluation_end", source))?;
        logs(&mut step, 1.0, "")?;
        Ok(num_batches)
    }

    fn pass_loader(
        &mut self,
        loader_index: usize,
        loader: &AnyLoader,
        each: EachBatch<'_>,
        logs: TakeLogs<'_>,
    ) -> Result<u64, Error> {
        let request = EpochRequest::evaluate(self.seed, self.epoch).shard(self.world.shard());
        let limit = self.limit.of(loader.num_batches(&request)?);
        if limit == Some(0) {
            return Ok(0);
        }
        let several = self.loaders.len() > 1;
        let suffix = if several {
            format!("/loader_{loader_index}")
        } else {
            String::new()
        };
        self.progress.begin_stage(self.title, limit, 0);
        let mut num_batches = 0;
        for loaded in loader.epoch(&request.limit_batches(limit), self.device)? {
            let loaded = loaded?;
            let mut step = self.context(loader_index, num_batches);
            self.device.seed(seed_from(
                self.seed,
                SeedStream::Step,
                self.stage.as_str(),
                &[
                    self.epoch,
                    loader_index as u64,
                    num_batches * self.world.size() as u64 + self.world.rank() as u64,
                ],
            ));
            let batch = EvaluationBatch {
                batch: loaded.batch.to_device(self.device).to_dtype(self.dtype),
                num_samples: loaded.num_samples,
                samples: loaded.samples,
            };
            let samples = batch.num_samples as f64;
            {
                let _span = self.profiler.span(step_name(self.stage));
                each(batch, &mut step)?;
            }
            logs(&mut step, samples, &suffix)?;
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
            global_rank: self.world.rank(),
            world_size: self.world.size(),
            group: self.world.group().cloned(),
            compute_dtype: self.dtype,
            ..StepInfo::first(self.stage, self.device.clone())
        })
    }

    fn hook_failed(&self, hook: &'static str, source: BoxError) -> Error {
        Error::Module {
            hook,
            epoch: self.epoch,
            global_step: self.global_step,
            source,
        }
    }
}

/// The method of the module that does a batch.
fn step_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Train => "training_step",
        Stage::Validate => "validation_step",
        Stage::Test => "test_step",
        Stage::Predict => "predict_step",
    }
}

/// What the module's step returned, with where it happened.
pub(super) fn step_failed(step: &StepContext, source: BoxError) -> Error {
    Error::EvaluationStep {
        step: step_name(step.stage()),
        loader_index: step.loader_index(),
        batch_index: step.batch_index(),
        source,
    }
}

/// A module in validation mode for evaluation outside a fit: lazy parameters drawn from (seed, path), everything on the
/// device and in the dtype in which they are kept. The module that was given is not changed, but for lazy parameters, which become
/// what they are.
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
        dtype: options.precision.master(),
    });
    Ok((twin, table))
}

/// Puts the parameters of a module in validation mode in the dtypes in which steps use them. Running statistics stay as they are.
pub(crate) fn in_compute_dtype(module: &mut dyn ErasedModule, table: &ParamTable, policy: &PrecisionPolicy) {
    if policy.compute() != policy.master() {
        module.map_params(&mut Compute { table, policy });
    }
}

struct Compute<'a> {
    table: &'a ParamTable,
    policy: &'a PrecisionPolicy,
}

impl ParamMapper for Compute<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        let entry = self
            .table
            .index_of(info.id)
            .and_then(|index| self.table.get(index));
        info.initialized && entry.is_some_and(|entry| entry.kind == ParamKind::Parameter)
    }

    fn map(&mut self, info: &ParamInfo<'_>, value: AnyTensor, _: bool) -> AnyTensor {
        value.cast(self.policy.compute_of(info.path))
    }
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
        let placed = value.to_device(&self.device);
        match self.dtype {
            // Parameters have it already, and running statistics are kept in float32.
            FloatDType::F16 | FloatDType::BF16 => placed,
            dtype => placed.cast(dtype),
        }
    }
}
