use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use firebrand_strategy::{GradientClip, GradientCompression, LossScalerOptions, NonFinite, Precision};

use crate::accelerator::{Accelerator, Chosen};
use crate::callbacks::Callback;
use crate::checkpoint::Resume;
use crate::config::TrainerConfig;
use crate::loggers::Logger;
use crate::options::{Launcher, Limit, Strategy, UnevenInputs, ValCheckInterval};
use crate::profiler::Profiler;
use crate::progress::ProgressMode;
use crate::team::{CallbackFactory, Recipe, Team};
use crate::world::{World, num_thread_ranks};
use crate::{Error, Trainer};

/// Builds a [`Trainer`]; every option has a default.
#[must_use]
#[derive(Default)]
pub struct TrainerBuilder {
    config: TrainerConfig,
    callbacks: Vec<Given>,
    loggers: Option<Vec<Box<dyn Logger>>>,
    profiler: Option<Profiler>,
    hyper_parameters: Option<Result<toml::Table, String>>,
}

/// A callback, or how each rank makes its own.
enum Given {
    One(Box<dyn Callback>),
    Each(CallbackFactory),
}

impl TrainerBuilder {
    /// Starts from options that were read elsewhere, such as [`TrainerArgs`](crate::TrainerArgs).
    pub fn config(mut self, config: TrainerConfig) -> Self {
        self.config = config;
        self
    }

    /// Takes what the command line and its configuration file say in place of what is set so far.
    ///
    /// # Errors
    ///
    /// See [`TrainerArgs::resolve`](crate::TrainerArgs::resolve).
    #[cfg(feature = "cli")]
    pub fn args(mut self, args: &crate::TrainerArgs) -> Result<Self, Error> {
        self.config = args.resolve(self.config)?;
        self.profiler = args.profiler()?.or(self.profiler);
        Ok(self)
    }

    /// Which device computes.
    pub fn accelerator(mut self, accelerator: Accelerator) -> Self {
        self.config.accelerator = accelerator;
        self
    }

    /// How many devices each node uses, and so how many ranks run on it; default 1, or what the launcher started.
    ///
    /// Unless a launcher such as torchrun or Slurm has started the ranks, [`build`](Self::build) starts the others itself, by
    /// running this program again with the same arguments.
    pub fn devices(mut self, devices: usize) -> Self {
        self.config.devices = Some(devices);
        self
    }

    /// How many nodes take part; default 1, or what the launcher started.
    pub fn num_nodes(mut self, nodes: usize) -> Self {
        self.config.num_nodes = Some(nodes);
        self
    }

    /// What the ranks are that [`build`](Self::build) starts itself; default [`Launcher::Process`]. With [`Launcher::Thread`] a run
    /// goes through [`Trainer::fit_with`], and callbacks through [`callback_with`](Self::callback_with).
    pub fn launcher(mut self, launcher: Launcher) -> Self {
        self.config.launcher = launcher;
        self
    }

    /// How ranks work together; default [`Strategy::ddp`] where there are several.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.config.strategy = Some(strategy);
        self
    }

    /// Whether ranks may use different parameters in a step; default no, and one that only some ranks use is an error.
    pub fn find_unused_parameters(mut self, on: bool) -> Self {
        self.config.find_unused_parameters = on;
        self
    }

    /// What happens when a rank has no batch left in an epoch and others have; default: the epoch is over for all.
    pub fn uneven_inputs(mut self, uneven_inputs: UnevenInputs) -> Self {
        self.config.uneven_inputs = uneven_inputs;
        self
    }

    /// A smaller type for gradients between ranks.
    pub fn gradient_compression(mut self, compression: GradientCompression) -> Self {
        self.config.gradient_compression = Some(compression);
        self
    }

    /// The size of the buckets in which gradients are reduced, in MiB; default 25.
    pub fn bucket_cap_mb(mut self, size: u64) -> Self {
        self.config.bucket_cap_mb = size;
        self
    }

    /// In which dtype weights are kept and steps compute.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.config.precision = precision;
        self
    }

    /// Leaves the parameters whose paths match (`head.*`) out of a reduced precision: steps use them in float32. Called several
    /// times, all of the patterns hold.
    ///
    /// The module casts at the layer's boundary: `step.full_precision(input)` before it, and `step.cast(output)` after it if more
    /// layers follow.
    pub fn keep_full_precision(mut self, paths: impl Into<String>) -> Self {
        self.config.keep_full_precision.push(paths.into());
        self
    }

    /// Computes cheap activations, those of operations that memory bounds, again in the backward pass instead of keeping them: less
    /// memory for more time, by Burn's balanced strategy. Results do not change. Default: no.
    pub fn gradient_checkpointing(mut self, on: bool) -> Self {
        self.config.gradient_checkpointing = on;
        self
    }

    /// How the loss is scaled before the backward pass; default as [`LossScalerOptions`] say in [`Precision::F16Mixed`], and not at
    /// all otherwise.
    pub fn loss_scaler(mut self, options: LossScalerOptions) -> Self {
        self.config.loss_scaler = Some(options);
        self
    }

    /// The limit of epochs; default 1000 unless there is a limit of steps or time.
    pub fn max_epochs(mut self, epochs: u64) -> Self {
        self.config.max_epochs = Some(epochs);
        self
    }

    /// The number of epochs before which nothing but an error or a signal stops the run.
    pub fn min_epochs(mut self, epochs: u64) -> Self {
        self.config.min_epochs = Some(epochs);
        self
    }

    /// The exact number of optimizer updates.
    pub fn max_steps(mut self, steps: u64) -> Self {
        self.config.max_steps = Some(steps);
        self
    }

    /// The number of updates before which nothing but an error or a signal stops the run.
    pub fn min_steps(mut self, steps: u64) -> Self {
        self.config.min_steps = Some(steps);
        self
    }

    /// The limit of time over all parts of the run, in whole seconds.
    pub fn max_time(mut self, time: Duration) -> Self {
        self.config.max_time = Some(time.as_secs());
        self
    }

    /// How much of the training data an epoch uses: a number of batches or a share.
    pub fn limit_train_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.config.limit_train_batches = limit.into();
        self
    }

    /// How much of the validation data is used.
    pub fn limit_val_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.config.limit_val_batches = limit.into();
        self
    }

    /// How much of the test data is used.
    pub fn limit_test_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.config.limit_test_batches = limit.into();
        self
    }

    /// How much of the prediction data is used.
    pub fn limit_predict_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.config.limit_predict_batches = limit.into();
        self
    }

    /// Train on the first training batches only, the same in every epoch and unshuffled, and validate on as many.
    pub fn overfit_batches(mut self, limit: impl Into<Limit>) -> Self {
        self.config.overfit_batches = Some(limit.into());
        self
    }

    /// Run this many batches of everything, once, without loggers and checkpoints.
    pub fn fast_dev_run(mut self, batches: u64) -> Self {
        self.config.fast_dev_run = Some(batches);
        self
    }

    /// How often the validation runs within an epoch.
    pub fn val_check_interval(mut self, interval: ValCheckInterval) -> Self {
        self.config.val_check_interval = interval;
        self
    }

    /// Validate in every n-th epoch; `0` counts `val_check_interval` over epoch borders.
    pub fn check_val_every_n_epoch(mut self, epochs: u64) -> Self {
        self.config.check_val_every_n_epoch = epochs;
        self
    }

    /// The number of validation batches that are tried before the first epoch.
    pub fn num_sanity_val_steps(mut self, batches: u64) -> Self {
        self.config.num_sanity_val_steps = batches;
        self
    }

    /// The number of micro-batches per update.
    pub fn accumulate_grad_batches(mut self, micro_batches: u64) -> Self {
        self.config.accumulate_grad_batches = micro_batches;
        self
    }

    /// How gradients are kept from exploding.
    pub fn gradient_clip(mut self, clip: GradientClip) -> Self {
        self.config.gradient_clip = Some(clip);
        self
    }

    /// What a loss or gradient that is not finite does.
    pub fn non_finite(mut self, action: NonFinite) -> Self {
        self.config.non_finite = action;
        self
    }

    /// Check every gradient of every micro-batch; slow.
    pub fn detect_anomaly(mut self, on: bool) -> Self {
        self.config.detect_anomaly = on;
        self
    }

    /// Log step values at every n-th update.
    pub fn log_every_n_steps(mut self, steps: u64) -> Self {
        self.config.log_every_n_steps = steps;
        self
    }

    /// The seed of weights, data order, augmentation and steps.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// Where runs are written.
    pub fn default_root_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.config.default_root_dir = path.into();
        self
    }

    /// The name of the experiment below the root.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// From where the run goes on.
    pub fn resume(mut self, from: impl Into<Resume>) -> Self {
        self.config.resume = Some(from.into());
        self
    }

    /// How progress is shown.
    pub fn progress(mut self, mode: ProgressMode) -> Self {
        self.config.progress = mode;
        self
    }

    /// Whether checkpoints are written.
    pub fn enable_checkpointing(mut self, on: bool) -> Self {
        self.config.enable_checkpointing = on;
        self
    }

    /// Whether the summary of the module is printed.
    pub fn enable_model_summary(mut self, on: bool) -> Self {
        self.config.enable_model_summary = on;
        self
    }

    /// Adds a callback.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Given::One(Box::new(callback)));
        self
    }

    /// Adds a callback that each rank makes for itself, as ranks need it that are threads of one process. With other ranks it
    /// is the same as [`callback`](Self::callback).
    pub fn callback_with<C: Callback + 'static>(
        mut self,
        make: impl Fn() -> C + Send + Sync + 'static,
    ) -> Self {
        let make = move || Box::new(make()) as Box<dyn Callback>;
        self.callbacks.push(Given::Each(Arc::new(make)));
        self
    }

    /// Adds a logger; without any, metrics are written to `metrics.csv` and TensorBoard event files.
    pub fn logger(mut self, logger: impl Logger + 'static) -> Self {
        self.loggers.get_or_insert_default().push(Box::new(logger));
        self
    }

    /// Writes no metrics.
    pub fn no_logger(mut self) -> Self {
        self.loggers = Some(Vec::new());
        self
    }

    /// The module's own hyper-parameters, which are written beside the metrics: anything that serialises to named fields.
    pub fn hyper_parameters(mut self, parameters: &impl serde::Serialize) -> Self {
        self.hyper_parameters = Some(toml::Table::try_from(parameters).map_err(|error| error.to_string()));
        self
    }

    /// Measures where the time goes.
    pub fn profiler(mut self, profiler: Profiler) -> Self {
        self.profiler = Some(profiler);
        self
    }

    /// Checks every option and makes the trainer. Nothing is written before a run begins.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] or [`Error::Contradiction`] for the first option that cannot be.
    pub fn build(self) -> Result<Trainer, Error> {
        self.config.check()?;
        let mut config = self.config;
        if config.resume.is_none() {
            config.resume = resume_of_restart();
        }
        // Before other ranks are started for nothing.
        config.accelerator.check()?;
        let hyper_parameters = self.hyper_parameters.transpose().map_err(|reason| {
            Error::Contradiction(format!(
                "hyper_parameters cannot be written down: {reason}; give a struct or a map"
            ))
        })?;
        let hyper_parameters = hyper_parameters.unwrap_or_default();
        let num_thread_ranks = num_thread_ranks(&config)?;
        let team = match num_thread_ranks {
            Some(num_ranks) => {
                let recipe = Recipe {
                    config: config.clone(),
                    callbacks: factories(&self.callbacks)?,
                    hyper_parameters: hyper_parameters.clone(),
                };
                Some(Team::new(num_ranks, recipe)?)
            }
            None => None,
        };
        let world = match team {
            Some(_) => World::single(),
            None => World::join(&config)?,
        };
        let callbacks = self.callbacks.into_iter().map(|given| match given {
            Given::One(callback) => callback,
            Given::Each(make) => make(),
        });
        let chosen = Chosen::for_rank(config.accelerator, config.precision, world.topology().local_rank);
        let chosen = world.reported(chosen.map_err(Error::from))?;
        let trainer = Trainer::new(
            world,
            chosen,
            config,
            callbacks.collect(),
            self.loggers,
            self.profiler,
            hyper_parameters,
        )?;
        Ok(trainer.with_team(team))
    }
}

/// How each rank makes its callbacks.
fn factories(given: &[Given]) -> Result<Vec<CallbackFactory>, Error> {
    let factories = given.iter().map(|given| match given {
        Given::Each(make) => Ok(Arc::clone(make)),
        Given::One(callback) => Err(Error::Contradiction(format!(
            "each rank that is a thread needs a callback {} of its own: give it to `callback_with(|| ..)` in place of \
             `callback(..)`, or use the launcher `process`",
            callback.name()
        ))),
    });
    factories.collect()
}

/// From where a program goes on that was started again: what restarts it says so, or Slurm has requeued its job.
fn resume_of_restart() -> Option<Resume> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let requeued = || {
        variable("SLURM_RESTART_COUNT")
            .filter(|count| count != "0")
            .map(|_| Resume::Auto)
    };
    let said = variable("FIREBRAND_RESUME").map(|from| Resume::from(from.as_str()));
    said.or_else(requeued)
}
