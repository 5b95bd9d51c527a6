use std::collections::BTreeMap;

use firebrand_core::{AnyTensor, Stage};

use crate::Error;
use crate::callbacks::Commands;
use crate::options::Limit;

use super::evaluate::{Evaluation, in_compute_dtype};
use super::events::callbacks;
use super::fit_loop::FitLoop;
use super::report::Evaluated;
use super::restore::assign_weights;

impl FitLoop<'_> {
    /// Tries a few validation batches before the first epoch; it leaves no trace in metrics, counters or random numbers.
    pub(super) fn sanity_check(&mut self) -> Result<(), Error> {
        let config = self.parts.config;
        let batches = config.num_sanity_val_steps;
        if batches == 0 || self.validation.is_empty() || config.limit_val_batches.is_none() {
            return Ok(());
        }
        if config.fast_dev_run.is_some() {
            return Ok(());
        }
        self.evaluate(Limit::Batches(batches), "sanity check", None)
            .map(drop)
    }

    /// A validation that is due.
    pub(super) fn validate(&mut self) -> Result<(), Error> {
        let _span = self.parts.profiler.span("validation");
        self.parts.world.enter(|| "validating".to_owned());
        // Before callbacks look at the module: the weights that they give may hold its buffers.
        self.unite_buffers()?;
        let weights = callbacks!(self, on_evaluation_start, Stage::Validate, None);
        let weights = match weights {
            Some(weights) => Some(self.unite_given(weights)?),
            None => None,
        };
        let limit = self.parts.config.limit_in_fit(Stage::Validate);
        let evaluated = self.evaluate(limit, "validate", weights)?;
        // Counted from its end, by the clock of rank 0.
        let clock = self.elapsed();
        self.counters.elapsed_ms = self.parts.world.on_zero(|| Ok(clock))?;
        self.last_validation = self.counters.elapsed_ms;
        self.log_values(evaluated.metrics);
        callbacks!(self, on_evaluation_end, Stage::Validate, None);
        self.enter_epoch();
        Ok(())
    }

    fn evaluate(
        &mut self,
        limit: Limit,
        title: &str,
        weights: Option<BTreeMap<String, AnyTensor>>,
    ) -> Result<Evaluated, Error> {
        let mut twin = self.module.evaluation_twin();
        let device = self.parts.device.clone().without_autodiff();
        if let Some(weights) = weights {
            assign_weights(twin.as_mut(), &weights, &device);
        }
        in_compute_dtype(twin.as_mut(), self.engine.table(), self.engine.precision());
        Evaluation {
            stage: Stage::Validate,
            module: twin.as_ref(),
            loaders: &self.validation,
            limit,
            seed: self.parts.config.seed,
            epoch: self.counters.epoch,
            global_step: self.counters.global_step,
            device: &device,
            dtype: self.engine.compute_dtype(),
            progress: self.parts.progress,
            profiler: self.parts.profiler,
            world: &self.parts.world,
            title,
        }
        .run()
    }

    /// Does what callbacks want; the weights that one wants used are returned.
    pub(super) fn obey(&mut self, commands: Commands) -> Result<Option<BTreeMap<String, AnyTensor>>, Error> {
        let Commands {
            log,
            histograms,
            freeze,
            accumulate,
            weights,
            checkpoints,
            stop,
        } = commands;
        self.log_values(log);
        for (name, values) in histograms {
            self.parts
                .loggers
                .log_histogram(self.counters.global_step, &name, &values);
        }
        for (paths, trained) in freeze {
            self.engine.set_trained(&paths, trained)?;
        }
        self.next_accumulate = accumulate.or(self.next_accumulate);
        self.requests.extend(checkpoints);
        if self.parts.config.fast_dev_run.is_none() {
            self.stop = self.stop.take().or(stop);
        }
        Ok(weights)
    }

    /// The metrics that the line at the end of an epoch shows.
    pub(super) fn shown_metrics(&self) -> Vec<(String, f64)> {
        let shown = |name: &str| name.ends_with("loss") || name.ends_with("acc");
        self.metrics
            .iter()
            .filter(|(name, _)| shown(name))
            .map(|(name, value)| (name.clone(), *value))
            .collect()
    }
}
