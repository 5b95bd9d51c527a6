use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use firebrand_core::{BoxError, ErasedModule, FitInfo, Stage, StepContext, StepInfo};
use firebrand_strategy::{
    DataParallel, Engine, EngineOptions, GradientExchange, LearningRate, PrepareOptions, SingleDevice,
};

use crate::callbacks::CheckpointRequest;
use crate::checkpoint::{BackgroundWriter, Checkpoint, CheckpointDir, Pointer};
use crate::data::{AnyLoader, EpochRequest, ErasedDataModule, LoadedBatch};
use crate::loggers::{Loggers, RunDirectory};
use crate::logging::{Accumulators, StepValues};
use crate::options::{Limit, UnevenInputs};
use crate::profiler::Profiler;
use crate::progress::ProgressReporter;
use crate::run::run_of;
use crate::signals::{Interrupt, SignalGuard};
use crate::world::World;
use crate::{Error, TrainerConfig};

use super::counters::Counters;
use super::events::{Events, callbacks, module_hook};
use super::limits::Limits;
use super::report::FitReport;
use super::restore::assign_weights;
use super::save::{Saved, global_batch_of};
use super::validation_schedule::ValidationSchedule;

/// What a trainer lends to one fit.
pub(crate) struct FitParts<'a> {
    pub config: &'a TrainerConfig,
    pub events: &'a mut Events,
    pub loggers: &'a mut Loggers,
    pub progress: &'a mut ProgressReporter,
    pub profiler: &'a Profiler,
    /// The ranks of the run.
    pub world: World,
    /// The training device, with autodiff.
    pub device: Device,
    /// Where the run writes; `None` if it writes nothing.
    pub run: Option<RunDirectory>,
    /// The checkpoint from which the run goes on.
    pub resume: Option<Checkpoint>,
    /// Options and hyper-parameters, for the loggers.
    pub hparams: &'a toml::Table,
}

/// A micro-batch that all ranks do at a time.
pub(super) struct Turn {
    /// This rank's batch; `None` if it has none left and the others have.
    pub loaded: Option<LoadedBatch>,
    /// How many samples of the epoch all ranks together have consumed then.
    pub consumed: u64,
}

/// One fit: epochs of micro-batches, updates, validations and checkpoints.
pub(crate) struct FitLoop<'a> {
    pub(super) parts: FitParts<'a>,
    pub(super) module: Box<dyn ErasedModule>,
    pub(super) engine: Engine,
    pub(super) train: AnyLoader,
    pub(super) num_training_batches: Option<u64>,
    pub(super) validation: Vec<AnyLoader>,
    pub(super) limits: Limits,
    pub(super) schedule: ValidationSchedule,
    pub(super) writer: Option<BackgroundWriter>,
    pub(super) signals: SignalGuard,
    /// The signal that the ranks have agreed to obey.
    pub(super) interrupt: Option<Interrupt>,

    pub(super) counters: Counters,
    pub(super) metrics: BTreeMap<String, f64>,
    pub(super) rates: Vec<LearningRate>,
    pub(super) step_values: StepValues,
    pub(super) epoch_values: Accumulators,
    /// The samples of a batch, where that is not the loader's own: a run that goes on with another number of ranks.
    pub(super) batch_size: Option<usize>,
    pub(super) accumulate: u64,
    pub(super) next_accumulate: Option<u64>,

    pub(super) started: Instant,
    pub(super) elapsed_before: u64,
    /// When the last validation was, on the clock of the counters.
    pub(super) last_validation: u64,
    pub(super) stop: Option<String>,
    pub(super) requests: Vec<CheckpointRequest>,
    /// Checkpoints of which it is not known yet what became of them, the oldest first.
    pub(super) submitted: VecDeque<PathBuf>,
    /// Of the oldest of those, whether each could be written; what only rank 0 knows until it tells the others.
    pub(super) written: Vec<bool>,
    pub(super) submitted_last: Option<PathBuf>,
    pub(super) submitted_best: Option<PathBuf>,
    pub(super) saved_at: Option<u64>,
    /// The checkpoint that the part of the run before this one left only to go on from, to be deleted when `last` points to
    /// another.
    pub(super) exit_checkpoint: Option<String>,
    pub(super) last: Option<PathBuf>,
    pub(super) best: Option<PathBuf>,
    pub(super) failed_saves: u64,
}

impl<'a> FitLoop<'a> {
    /// Takes the module over, makes it ready, and goes to the checkpoint if there is one.
    pub(crate) fn new(
        parts: FitParts<'a>,
        mut module: Box<dyn ErasedModule>,
        data: &dyn ErasedDataModule,
    ) -> Result<Self, Error> {
        let config = parts.config;
        let signals = SignalGuard::listen("finishing the step and saving a checkpoint")?;
        let train = data.train_loader()?;
        let validation = data.loaders(Stage::Validate)?;
        let limits = Limits::of(config);
        let batch_size = match &parts.resume {
            Some(checkpoint) => kept_batch_size(checkpoint, &train, &parts.world)?,
            None => None,
        };
        let num_training_batches = epoch_length(config, &train, &parts.world, batch_size)?;
        let schedule = if validation.is_empty() || config.limit_val_batches.is_none() {
            ValidationSchedule::Never
        } else {
            ValidationSchedule::new(config, num_training_batches)?
        };
        let accumulate = config.accumulate_grad_batches;
        let info = FitInfo::new(
            limits.estimated_steps(num_training_batches, accumulate),
            limits.max_epochs(),
            parts.world.size(),
        );
        let setup = module.configure_optimizers(&info);
        let prepare = PrepareOptions {
            device: parts.device.clone(),
            precision: config.precision_policy(),
            seed: config.seed,
        };
        let options = EngineOptions {
            clip: config.gradient_clip,
            non_finite: config.non_finite,
            detect_anomaly: config.detect_anomaly,
            loss_scaler: config.loss_scaler,
        };
        let engine = Engine::new(
            module.as_mut(),
            &setup,
            &prepare,
            options,
            exchange(&parts.world, config),
        )?;
        let writes = parts.events.saves_checkpoints() && parts.world.is_global_zero();
        let writer = match parts.run.as_ref().filter(|_| writes) {
            Some(run) => Some(BackgroundWriter::new(CheckpointDir::new(run.checkpoints()))?),
            None => None,
        };
        let now = Instant::now();
        let mut fit = Self {
            rates: engine.learning_rates(),
            parts,
            module,
            engine,
            train,
            num_training_batches,
            validation,
            limits,
            schedule,
            writer,
            signals,
            interrupt: None,
            counters: Counters::default(),
            metrics: BTreeMap::new(),
            step_values: StepValues::default(),
            epoch_values: Accumulators::default(),
            batch_size,
            accumulate,
            next_accumulate: None,
            started: now,
            elapsed_before: 0,
            last_validation: 0,
            stop: None,
            requests: Vec::new(),
            submitted: VecDeque::new(),
            written: Vec::new(),
            submitted_last: None,
            submitted_best: None,
            saved_at: None,
            exit_checkpoint: None,
            last: None,
            best: None,
            failed_saves: 0,
        };
        fit.restore()?;
        fit.unite()?;
        Ok(fit)
    }

    fn restore(&mut self) -> Result<(), Error> {
        let Some(checkpoint) = self.parts.resume.take() else {
            return Ok(());
        };
        self.saved().restore(&checkpoint)?;
        if self.parts.run == run_of(&checkpoint) {
            let best = checkpoint.siblings().pointer(Pointer::Best)?;
            self.best = best.map(|name| checkpoint.siblings().path_of(&name));
        } else {
            // It belongs to another run, which keeps it.
            self.exit_checkpoint = None;
        }
        self.rates = self.engine.learning_rates();
        self.elapsed_before = self.counters.elapsed_ms;
        self.last_validation = self.counters.elapsed_ms;
        self.saved_at = Some(self.counters.total_batches);
        self.last = Some(checkpoint.path().to_owned());
        let (epoch, global_step) = (self.counters.epoch, self.counters.global_step);
        tracing::info!(
            "going on from {} (epoch {epoch}, global step {global_step})",
            checkpoint.path().display()
        );
        Ok(())
    }

    pub(super) fn saved(&mut self) -> Saved<'_> {
        Saved {
            module: &mut self.module,
            engine: &mut self.engine,
            counters: &mut self.counters,
            epoch_values: &mut self.epoch_values,
            metrics: &mut self.metrics,
            accumulate: &mut self.accumulate,
            configured_accumulation: self.parts.config.accumulate_grad_batches,
            events: self.parts.events,
            exit_checkpoint: &mut self.exit_checkpoint,
            seed: self.parts.config.seed,
            precision: self.parts.config.precision.as_str(),
            world_size: self.parts.world.size(),
            is_global_zero: self.parts.world.is_global_zero(),
            batch_overridden: self.batch_size.is_some(),
            global_batch: self
                .batch_size
                .or(self.train.batch_size())
                .map(|size| (size * self.parts.world.size()) as u64),
        }
    }

    /// Runs to the end, and leaves loggers, checkpoints and the terminal in order whatever happens.
    pub(crate) fn run(mut self) -> Result<(Box<dyn ErasedModule>, FitReport), Error> {
        let outcome = self.train();
        self.flush_checkpoints();
        self.parts.progress.finish();
        drop(self.parts.loggers.finish()); // Warned about by `finish`.
        let stop_reason = outcome?;
        let of_zero = (self.last.take(), self.best.take(), self.failed_saves);
        let (last, best, failed_saves) = self.parts.world.on_zero(|| Ok(of_zero))?;
        let report = FitReport {
            global_step: self.counters.global_step,
            epoch: self.counters.epoch,
            stop_reason,
            metrics: self.metrics,
            run_directory: self.parts.run.as_ref().map(|run| run.path().to_owned()),
            last_checkpoint: last,
            best_checkpoint: best,
            failed_saves,
            last_epoch: self.counters.last_epoch(),
        };
        Ok((self.module, report))
    }

    fn train(&mut self) -> Result<String, Error> {
        let resumed_at = self.saved_at.map(|_| self.counters.global_step);
        if let Some(run) = &self.parts.run {
            self.parts.loggers.begin(run, resumed_at)?;
            self.parts.loggers.log_hparams(self.parts.hparams);
        }
        module_hook!(self, on_fit_start);
        callbacks!(self, on_fit_start, Stage::Train, None);
        if resumed_at.is_none() {
            self.sanity_check()?;
        }
        if let Some(reason) = self.limits.reached(&self.counters) {
            tracing::warn!("there is nothing left to train: {reason}");
        }
        let reason = loop {
            if let Some(reason) = self.over() {
                break reason;
            }
            self.epoch()?;
        };
        self.engine.discard()?;
        self.save_on_exit()?;
        self.unite_buffers()?;
        module_hook!(self, on_fit_end);
        let weights = callbacks!(self, on_fit_end, Stage::Train, None);
        if let Some(weights) = weights {
            let weights = self.unite_given(weights)?;
            let device = self.engine.device().clone();
            assign_weights(self.module.as_mut(), &weights, &device);
        }
        self.take_checkpoints()?;
        Ok(reason)
    }

    /// Why the run ends here, if it does.
    pub(super) fn over(&mut self) -> Option<String> {
        if let Some(reason) = self.limits.reached(&self.counters) {
            return Some(reason);
        }
        let reason = self.stop.take()?;
        if self.limits.allows_stop(&self.counters) {
            return Some(reason);
        }
        tracing::info!("{reason}, but min_epochs or min_steps is not reached: training goes on");
        None
    }

    fn epoch(&mut self) -> Result<(), Error> {
        let config = self.parts.config;
        self.take_accumulate();
        if self.counters.batches_in_epoch == 0 {
            module_hook!(self, on_train_epoch_start);
            callbacks!(self, on_train_epoch_start, Stage::Train, None);
            self.take_accumulate();
        }
        let title = match self.limits.max_epochs() {
            Some(epochs) => format!("epoch {}/{epochs}", self.counters.epoch + 1),
            None => format!("epoch {}", self.counters.epoch + 1),
        };
        let done = self.counters.batches_in_epoch;
        self.parts
            .progress
            .begin_stage(&title, self.num_training_batches, done);
        let request = train_request(config, self.counters.epoch, self.num_training_batches)
            .shard(self.parts.world.shard())
            .batch_size(self.batch_size)
            .skip_samples(self.counters.samples_in_epoch);
        let remaining = request.limit_batches.map(|limit| limit.saturating_sub(done));
        let inner = self.parts.device.clone().without_autodiff();
        let mut batches = self.train.epoch(&request.limit_batches(remaining), &inner)?;
        self.enter_epoch();
        // One batch ahead, to know which is the last: its update takes what the group has.
        let mut next = self.turn(batches.next().transpose()?)?;
        while let Some(turn) = next {
            let ahead = {
                let _span = self.parts.profiler.span("data_wait");
                batches.next().transpose()?
            };
            next = self.turn(ahead)?;
            let epoch_over = next.is_none();
            let leave = self.train_batch(turn, epoch_over)?;
            if leave && !epoch_over {
                return Ok(());
            }
        }
        drop(batches);
        self.end_epoch()
    }

    /// What all ranks do next, of which this one has a batch or none; `None` if the epoch is over for all. Ranks that read a
    /// dataset have equally many batches and need not ask.
    fn turn(&self, next: Option<LoadedBatch>) -> Result<Option<Turn>, Error> {
        let own = |loaded: LoadedBatch| Turn {
            consumed: loaded.consumed,
            loaded: Some(loaded),
        };
        if self.train.num_samples().is_some() || self.parts.world.size() == 1 {
            return Ok(next.map(own));
        }
        if self.parts.config.uneven_inputs == UnevenInputs::Stop {
            let all = self.parts.world.all(next.is_some())?;
            return Ok(next.filter(|_| all).map(own));
        }
        let has = u64::from(next.is_some());
        let consumed = next.as_ref().map_or(0, |loaded| loaded.consumed);
        let [any, consumed] = self.parts.world.largest([has, consumed])?;
        Ok((any > 0).then_some(Turn {
            loaded: next,
            consumed,
        }))
    }

    /// Lets the other ranks know what this one is doing.
    pub(super) fn enter_epoch(&self) {
        self.parts
            .world
            .enter(|| format!("training in epoch {}", self.counters.epoch));
    }

    fn end_epoch(&mut self) -> Result<(), Error> {
        self.log_epoch_values()?;
        module_hook!(self, on_train_epoch_end);
        self.log_epoch_values()?;
        let logged: Vec<String> = self.metrics.keys().cloned().collect();
        self.engine
            .end_epoch(&|name| self.metrics.get(name).copied(), &logged)?;
        self.rates = self.engine.learning_rates();
        callbacks!(self, on_train_epoch_end, Stage::Train, None);
        let shown = self.shown_metrics();
        self.parts.progress.set_metrics(&shown);
        self.parts.progress.end_stage();
        self.counters.next_epoch();
        self.safe_point()
    }

    /// A context for a hook, where the run stands.
    pub(super) fn context(&self, optimizer_index: usize) -> StepContext {
        StepContext::new(StepInfo {
            epoch: self.counters.epoch,
            global_step: self.counters.global_step,
            batch_index: self.counters.batches_in_epoch,
            optimizer_index,
            global_rank: self.parts.world.rank(),
            world_size: self.parts.world.size(),
            group: self.parts.world.group().cloned(),
            compute_dtype: self.engine.compute_dtype(),
            ..StepInfo::first(Stage::Train, self.parts.device.clone())
        })
    }

    pub(super) fn hook_failed(&self, hook: &'static str, source: BoxError) -> Error {
        Error::Module {
            hook,
            epoch: self.counters.epoch,
            global_step: self.counters.global_step,
            source,
        }
    }

    pub(super) fn tick(&mut self) {
        // Several ranks go by the clock of the first, which it tells with each update: what depends on it must be alike.
        if self.parts.world.size() == 1 {
            self.counters.elapsed_ms = self.elapsed();
        }
    }

    /// Milliseconds over all parts of the run, by the clock of this rank.
    pub(super) fn elapsed(&self) -> u64 {
        self.elapsed_before + self.started.elapsed().as_millis() as u64
    }
}

/// The samples of a batch on each rank with which a run keeps its global batch, if it goes on with another number of ranks.
fn kept_batch_size(
    checkpoint: &Checkpoint,
    train: &AnyLoader,
    world: &World,
) -> Result<Option<usize>, Error> {
    let Some(kept) = global_batch_of(checkpoint)? else {
        return Ok(None);
    };
    let (ranks, before) = (world.size(), kept.world_size);
    // A run that has kept it once goes on keeping it. Another batch size on the same ranks is what the program wants.
    if (ranks == before && !kept.overridden) || train.batch_size().is_none() {
        return Ok(None);
    }
    let samples = usize::try_from(kept.samples).unwrap_or_default();
    if samples == 0 || !samples.is_multiple_of(ranks) {
        return Err(Error::Contradiction(format!(
            "the run had a global batch of {samples} samples on {before} ranks, which {ranks} ranks cannot divide evenly; resume on \
             a number of ranks that divides it"
        )));
    }
    Ok(Some(samples / ranks))
}

/// What becomes of gradients.
fn exchange(world: &World, config: &TrainerConfig) -> Box<dyn GradientExchange> {
    match world.group() {
        Some(group) => Box::new(DataParallel::new(Arc::clone(group), config.ddp())),
        None => Box::new(SingleDevice::new()),
    }
}

/// What is asked of the training loader for an epoch, from its start.
fn train_request(config: &TrainerConfig, epoch: u64, num_batches: Option<u64>) -> EpochRequest {
    if config.overfit().is_some() {
        return EpochRequest::overfit(config.seed, num_batches.unwrap_or(u64::MAX));
    }
    let limit = config.limit_in_fit(Stage::Train);
    // A limit that is a share was resolved with the loader's length.
    let batches = if limit == Limit::ALL {
        None
    } else {
        num_batches.or(limit.of(None))
    };
    EpochRequest::train(config.seed, epoch).limit_batches(batches)
}

/// The number of micro-batches of an epoch, if it is known.
fn epoch_length(
    config: &TrainerConfig,
    train: &AnyLoader,
    world: &World,
    batch_size: Option<usize>,
) -> Result<Option<u64>, Error> {
    let request = EpochRequest::train(config.seed, 0)
        .shard(world.shard())
        .batch_size(batch_size);
    let total = train.num_batches(&request)?;
    let limit = config.limit_in_fit(Stage::Train);
    match limit.of(total) {
        Some(0) => Err(Error::Contradiction(format!(
            "the limit of {limit} leaves no training batch{}; raise limit_train_batches or overfit_batches",
            total.map_or_else(String::new, |total| format!(" out of {total}"))
        ))),
        length => Ok(length.or(total)),
    }
}
