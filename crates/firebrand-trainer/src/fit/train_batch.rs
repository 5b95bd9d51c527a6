use std::time::Duration;

use firebrand_core::{AnyBatch, LogEntry, SeedStream, Stage, seed_from};
use firebrand_strategy::Update;

use crate::Error;
use crate::data::LoadedBatch;
use crate::loggers::LogRow;

use super::events::{callbacks, module_hook};
use super::fit_loop::{FitLoop, Turn};

impl FitLoop<'_> {
    /// One micro-batch, and its update if it completes one. Returns whether the run ends here.
    pub(super) fn train_batch(&mut self, turn: Turn, epoch_over: bool) -> Result<bool, Error> {
        let completes = epoch_over || self.counters.micro_batches + 1 >= self.accumulate;
        module_hook!(self, on_train_batch_start);
        let Turn { loaded, consumed } = turn;
        let update = match loaded {
            Some(loaded) if !self.module.automatic_optimization() => self.manual_step(loaded)?,
            loaded => self.automatic_step(loaded, completes)?,
        };
        self.counters.micro_batches = if update.is_some() {
            0
        } else {
            self.counters.micro_batches + 1
        };
        self.counters.batches_in_epoch += 1;
        self.counters.total_batches += 1;
        self.counters.samples_in_epoch = consumed;
        let stepped = matches!(update, Some(Update::Stepped { .. }));
        if update.is_some() {
            self.counters.attempts += 1;
            self.counters.global_step += u64::from(stepped);
            self.rates = self.engine.learning_rates();
        }
        self.tick();
        if stepped
            && self
                .counters
                .global_step
                .is_multiple_of(self.parts.config.log_every_n_steps)
        {
            let _span = self.parts.profiler.span("logging");
            let mut values = self.step_values.read_over(&self.parts.world)?;
            let scale = self.engine.loss_scale();
            values.extend(scale.map(|scale| ("loss_scale".to_owned(), scale)));
            self.log_values(values);
        }
        module_hook!(self, on_train_batch_end);
        callbacks!(self, on_train_batch_end, Stage::Train, update);
        self.show_progress();
        if update.is_some() {
            self.step_values.clear();
        }
        let since_last = Duration::from_millis(self.counters.elapsed_ms.saturating_sub(self.last_validation));
        if self.schedule.is_due(&self.counters, epoch_over, since_last) {
            self.validate()?;
        }
        if update.is_none() || epoch_over {
            // Between updates nothing is saved and nothing stops; at the end of an epoch both wait for its hooks.
            return Ok(false);
        }
        self.take_accumulate();
        self.safe_point()?;
        let reason = self.over();
        let leave = reason.is_some();
        // Found again by the loop over epochs.
        self.stop = self.stop.take().or(reason);
        Ok(leave)
    }

    /// A micro-batch for each optimizer. A rank without a batch has a part in the updates, in which it counts nothing.
    fn automatic_step(
        &mut self,
        loaded: Option<LoadedBatch>,
        completes: bool,
    ) -> Result<Option<Update>, Error> {
        let samples = loaded.as_ref().map_or(0.0, |loaded| loaded.num_samples as f64);
        let mut batch = loaded.map(|loaded| self.placed(loaded.batch));
        let num_optimizers = self.engine.optimizers().len();
        let mut outcome = None;
        for optimizer in 0..num_optimizers {
            let last = optimizer + 1 == num_optimizers;
            let batch = if last { batch.take() } else { batch.clone() };
            if let Some(batch) = batch {
                self.seed_step(optimizer);
                let mut step = self.context(optimizer);
                {
                    let _span = self.parts.profiler.span("training_step");
                    self.engine
                        .micro_batch(self.module.as_ref(), batch, &mut step, completes)?;
                }
                self.add_logs(step.take_logs(), samples)?;
            }
            if completes {
                let update = self.update(optimizer)?;
                // One training step is one step, whatever the number of optimizers: it counts if any of them moved.
                outcome = match (outcome, update) {
                    (Some(Update::Stepped { gradient_norm }), _) => Some(Update::Stepped { gradient_norm }),
                    (_, update) => Some(update),
                };
            }
        }
        Ok(outcome)
    }

    fn update(&mut self, optimizer: usize) -> Result<Update, Error> {
        let said = self.said();
        self.engine.say(said);
        let _span = self.parts.profiler.span("update");
        let mut step = self.context(optimizer);
        let mut before = |module: &mut dyn firebrand_core::ErasedModule| {
            module
                .on_before_optimizer_step(&mut step)
                .map_err(|source| firebrand_strategy::Error::step("on_before_optimizer_step", &step, source))
        };
        let update = self.engine.update(self.module.as_mut(), optimizer, &mut before)?;
        self.add_logs(step.take_logs(), 1.0)?;
        self.hear();
        Ok(update)
    }

    fn manual_step(&mut self, loaded: LoadedBatch) -> Result<Option<Update>, Error> {
        let samples = loaded.num_samples as f64;
        let batch = self.placed(loaded.batch);
        self.seed_step(0);
        let mut step = self.context(0);
        let said = self.said();
        self.engine.say(said);
        let _span = self.parts.profiler.span("training_step");
        let policy = self.engine.precision().clone();
        let mut engine = self.engine.manual(&step);
        let outcome = policy.guard("manual_training_step", || {
            self.module.manual_training_step(&mut engine, batch, &mut step)
        })?;
        let update = engine.outcome();
        let hook_logs = engine.take_logs();
        outcome.map_err(|source| match source.downcast::<firebrand_strategy::Error>() {
            Ok(error) => Error::Strategy(*error),
            Err(source) => firebrand_strategy::Error::step("manual_training_step", &step, source).into(),
        })?;
        self.add_logs(step.take_logs(), samples)?;
        if update.is_some() {
            self.hear();
        }
        self.add_logs(hook_logs, 1.0).map(|()| update)
    }

    /// Random numbers inside a step are a function of the seed, the update, the micro-batch, the rank and the optimizer.
    fn seed_step(&self, optimizer: usize) {
        let numbers = [
            self.counters.attempts,
            self.counters.micro_batches,
            self.parts.world.rank() as u64,
            optimizer as u64,
        ];
        self.parts
            .device
            .seed(seed_from(self.parts.config.seed, SeedStream::Step, "", &numbers));
    }

    /// Takes what a step of so many samples, or a hook, logged: for the step's values and the epoch's.
    pub(super) fn add_logs(&mut self, logs: Vec<LogEntry>, samples: f64) -> Result<(), Error> {
        self.step_values.add(&logs, samples);
        self.epoch_values.add(logs, Stage::Train, samples, "")?;
        Ok(())
    }

    /// Logs what the epoch's values have come to, and forgets them.
    pub(super) fn log_epoch_values(&mut self) -> Result<(), Error> {
        let values = self.epoch_values.values_over(&self.parts.world)?.into_iter();
        let values = values.map(|(name, value, _)| (name, value)).collect();
        self.epoch_values.clear();
        self.log_values(values);
        Ok(())
    }

    /// A batch as the step takes it.
    fn placed(&self, batch: AnyBatch) -> AnyBatch {
        batch
            .to_device(&self.parts.device)
            .to_dtype(self.engine.compute_dtype())
    }

    /// Gives values to the loggers, and to whoever monitors them.
    pub(super) fn log_values(&mut self, values: Vec<(String, f64)>) {
        if values.is_empty() {
            return;
        }
        let (step, epoch) = (self.counters.global_step, self.counters.epoch);
        self.parts.loggers.log_metrics(&LogRow {
            step,
            epoch,
            values: &values,
        });
        self.metrics.extend(values);
    }

    fn show_progress(&mut self) {
        self.parts.progress.advance(1);
        if self.parts.progress.wants_metrics() {
            let values = self.step_values.read_shown();
            if !values.is_empty() {
                self.parts.progress.set_metrics(&values);
            }
        }
    }

    /// A change of accumulation begins with a new group.
    pub(super) fn take_accumulate(&mut self) {
        if let Some(micro_batches) = self.next_accumulate.take() {
            self.accumulate = micro_batches.max(1);
        }
    }
}
