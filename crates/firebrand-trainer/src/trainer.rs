mod fit_with;

use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use firebrand_collective::{ProcessGroup, Topology};
use firebrand_core::{ErasedModule, LightningModule, Stage, erase, restore_type};
use firebrand_strategy::PrepareOptions;

use crate::accelerator::Chosen;
use crate::builder::TrainerBuilder;
use crate::callbacks::{Callback, ModelCheckpoint, ModelSummary};
use crate::checkpoint::{Checkpoint, Resume};
use crate::data::{AnyLoader, DataModule, ErasedDataModule};
use crate::fit::{
    Evaluated, Evaluation, Events, FitLoop, FitParts, FitReport, Fitted, Predictions, evaluation_module,
    in_compute_dtype, load_weights,
};
use crate::loggers::{CsvLogger, LogRow, Logger, Loggers, RunDirectory, TensorBoardLogger};
use crate::profiler::Profiler;
use crate::progress::{ProgressMode, ProgressReporter};
use crate::run::{RunLock, find_checkpoint, run_of};
use crate::team::Team;
use crate::world::World;
use crate::{Error, TrainerConfig};

/// Trains, evaluates and predicts with modules.
///
/// It owns the only loops there are. A module goes into [`fit`](Self::fit) by value and comes back by value:
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::data::dataset::InMemDataset;
/// # use burn::optim::SgdConfig;
/// # use burn::tensor::{Device, Tensor};
/// # use firebrand_core::{FitInfo, LightningModule, OptimizerSetup, Result, StepContext};
/// use firebrand_trainer::{Trainer, data::{Data, DataLoader}};
/// # #[derive(Module, Debug)]
/// # struct Line { linear: Linear }
/// # impl LightningModule for Line {
/// #     type Batch = (Tensor<2>, Tensor<2>);
/// #     fn training_step(&self, (x, y): Self::Batch, step: &mut StepContext) -> Result<Tensor<1>> {
/// #         let loss = (self.linear.forward(x) - y).powf_scalar(2.0).mean();
/// #         step.log("train_loss", &loss);
/// #         Ok(loss)
/// #     }
/// #     fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup { OptimizerSetup::new(SgdConfig::new(), 0.1) }
/// # }
/// # fn main() -> Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let device = Device::flex();
/// # let line = Line { linear: LinearConfig::new(1, 1).init(&device) };
/// # let points: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
/// # let loader = DataLoader::from_fn(InMemDataset::new(points), |xs: Vec<f32>, device: &Device| {
/// #     let x = Tensor::<1>::from_floats(xs.as_slice(), device).reshape([xs.len(), 1]);
/// #     Ok((x.clone(), x * 2.0))
/// # }).batch_size(8).shuffle(true);
/// let mut trainer = Trainer::builder()
///     .max_epochs(20)
///     .default_root_dir(folder.path())
///     .build()?;
/// let fitted = trainer.fit(line, Data::new().train(loader))?;
/// assert_eq!(fitted.report.global_step, 160);
/// # Ok(())
/// # }
/// ```
pub struct Trainer {
    config: TrainerConfig,
    /// The device of this rank.
    chosen: Chosen,
    events: Events,
    loggers: Loggers,
    progress: ProgressReporter,
    profiler: Profiler,
    hyper_parameters: toml::Table,
    world: World,
    /// The ranks that are threads, if they are, except in a fit: then this trainer is that of one rank.
    team: Option<Box<Team>>,
    last_run: Option<RunDirectory>,
    /// Where the last fit ended, for what is logged after it: `global_step`, and the epoch of its last batch. `None` if it failed.
    ended_at: Option<(u64, u64)>,
}

impl Trainer {
    /// Starts with the defaults.
    pub fn builder() -> TrainerBuilder {
        TrainerBuilder::default()
    }

    pub(crate) fn new(
        world: World,
        chosen: Chosen,
        config: TrainerConfig,
        mut callbacks: Vec<Box<dyn Callback>>,
        loggers: Option<Vec<Box<dyn Logger>>>,
        profiler: Option<Profiler>,
        hyper_parameters: toml::Table,
    ) -> Result<Self, Error> {
        if config.enable_model_summary
            && !callbacks
                .iter()
                .any(|callback| is::<ModelSummary>(callback.as_ref()))
        {
            callbacks.insert(0, Box::new(ModelSummary::new()));
        }
        let saves = callbacks.iter().any(|callback| callback.saves_checkpoints());
        if config.enable_checkpointing && !saves {
            callbacks.push(Box::new(ModelCheckpoint::new()));
        }
        // So that the command line can turn off what a program has turned on.
        if config.fast_dev_run.is_some() || !config.enable_checkpointing {
            callbacks.retain(|callback| !callback.saves_checkpoints());
        }
        let mut names: Vec<String> = callbacks.iter().map(|callback| callback.name()).collect();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::Contradiction(format!(
                "two callbacks are named {}; their states could not be told apart in a checkpoint",
                pair[0]
            )));
        }
        let loggers = match loggers {
            // What is written, rank 0 writes.
            _ if config.fast_dev_run.is_some() || !world.is_global_zero() => Vec::new(),
            Some(loggers) => loggers,
            None => vec![
                Box::new(CsvLogger::new()) as Box<dyn Logger>,
                Box::new(TensorBoardLogger::new()),
            ],
        };
        Ok(Self {
            progress: ProgressReporter::new(if world.is_global_zero() {
                config.progress
            } else {
                ProgressMode::Off
            }),
            events: Events::new(callbacks),
            loggers: loggers.into_iter().collect(),
            profiler: profiler.unwrap_or_default().global_rank(world.rank()),
            hyper_parameters,
            config,
            chosen,
            world,
            team: None,
            last_run: None,
            ended_at: None,
        })
    }

    pub(crate) fn with_team(mut self, team: Option<Team>) -> Self {
        self.team = team.map(Box::new);
        self
    }

    /// From now on this is the trainer of a rank of another world.
    pub(crate) fn enter(&mut self, world: World) {
        self.world = world;
    }

    /// The resolved options.
    pub fn config(&self) -> &TrainerConfig {
        &self.config
    }

    /// The device of this rank, without autodiff.
    ///
    /// Modules and batches may be built on it or anywhere else: the trainer moves them. Built here, no parameter is drawn on one
    /// device to be copied to another.
    pub fn device(&self) -> &Device {
        &self.chosen.device
    }

    /// Who this process is among the ranks.
    pub fn topology(&self) -> &Topology {
        self.team
            .as_ref()
            .map_or(self.world.topology(), |team| team.topology())
    }

    /// Whether this is the process that writes and prints for all: global rank 0.
    pub fn is_global_zero(&self) -> bool {
        self.world.is_global_zero()
    }

    /// The group of all ranks, for communication of the program's own; `None` where there is one rank, and where ranks are threads,
    /// which have one in a fit only. Every rank must call the same operations in the same order.
    pub fn group(&self) -> Option<&Arc<dyn ProcessGroup>> {
        self.world.group()
    }

    /// Prints a line on rank 0, so that it appears once.
    pub fn print(&self, text: impl std::fmt::Display) {
        if self.is_global_zero() {
            crate::progress::print_line(&text.to_string());
        }
    }

    /// Where the last fit wrote.
    pub fn run_directory(&self) -> Option<&Path> {
        self.last_run.as_ref().map(RunDirectory::path)
    }

    /// The callback of a type, to read what it found.
    pub fn callback<C: Callback>(&self) -> Option<&C> {
        self.callbacks().next()
    }

    /// Every callback of a type, in the order in which they are called.
    pub fn callbacks<C: Callback>(&self) -> impl Iterator<Item = &C> {
        self.events
            .iter()
            .filter_map(|callback| (callback as &dyn std::any::Any).downcast_ref())
    }

    /// Trains a module.
    ///
    /// # Errors
    ///
    /// What stopped the run, with where it happened; [`Error::Interrupted`] after a signal, when the checkpoint is written.
    pub fn fit<M: LightningModule>(
        &mut self,
        module: M,
        mut data: impl DataModule<Batch = M::Batch>,
    ) -> Result<Fitted<M>, Error> {
        fitted(self.fit_erased(erase(module), &mut data)?)
    }

    /// Trains a module whose type is not known here, such as one that was chosen at run time.
    ///
    /// # Errors
    ///
    /// As [`fit`](Self::fit).
    pub fn fit_erased(
        &mut self,
        module: Box<dyn ErasedModule>,
        data: &mut dyn ErasedDataModule,
    ) -> Result<(Box<dyn ErasedModule>, FitReport), Error> {
        if let Some(team) = &self.team {
            return Err(Error::Contradiction(format!(
                "the {} ranks are threads, and each needs a module of its own, since clones share a graph: use \
                 `fit_with(|| Ok((module, data)))` in place of `fit(module, data)`, or the launcher `process`",
                team.topology().world_size
            )));
        }
        crate::progress::init_tracing(self.world.is_global_zero());
        let world = self.world.clone();
        let outcome = with_data(&world, data, Stage::Train, |data| self.fit_prepared(module, data));
        self.profiler.report();
        self.world.reported(outcome)
    }

    fn fit_prepared(
        &mut self,
        module: Box<dyn ErasedModule>,
        data: &dyn ErasedDataModule,
    ) -> Result<(Box<dyn ErasedModule>, FitReport), Error> {
        let resume = match &self.config.resume {
            Some(from) => self.find_on_every_rank(|| find_checkpoint(&self.config, from))?,
            None => None,
        };
        if self.config.resume == Some(Resume::Auto) && resume.is_none() {
            tracing::info!("there is no checkpoint that can be resumed from: the run starts afresh");
        }
        let run = self.run_of_every_rank(resume.as_ref())?;
        let lock = run.as_ref().filter(|_| self.is_global_zero());
        let _lock = lock.map(RunLock::take).transpose()?;
        self.last_run.clone_from(&run);
        self.ended_at = None;
        let hparams = self.hparams()?;
        self.check_options_alike(&hparams)?;
        let parts = FitParts {
            world: self.world.clone(),
            device: match self.config.gradient_checkpointing {
                true => self.chosen.device.clone().autodiff().gradient_checkpointing(),
                false => self.chosen.device.clone().autodiff(),
            },
            config: &self.config,
            events: &mut self.events,
            loggers: &mut self.loggers,
            progress: &mut self.progress,
            profiler: &self.profiler,
            run,
            resume,
            hparams: &hparams,
        };
        let (module, report) = FitLoop::new(parts, module, data)?.run()?;
        self.ended_at = Some((report.global_step, report.last_epoch));
        Ok((module, report))
    }

    /// Ranks that were started with different options would train different models.
    fn check_options_alike(&self, hparams: &toml::Table) -> Result<(), Error> {
        // What each rank may have for itself.
        const OWN: [&str; 3] = ["default_root_dir", "progress", "resume"];
        let mut mine = hparams.clone();
        mine.retain(|key, _| !OWN.contains(&key));
        let theirs: toml::Table = self.world.on_zero(|| Ok(mine.clone()))?;
        match first_difference(&mine, &theirs) {
            None => Ok(()),
            Some((key, mine, theirs)) => Err(Error::Contradiction(format!(
                "rank {} was started with {key} = {mine}, and rank 0 with {theirs}; give every rank the same options",
                self.topology().global_rank
            ))),
        }
    }

    /// The checkpoint that rank 0 finds, opened by every rank.
    fn find_on_every_rank(
        &self,
        find: impl FnOnce() -> Result<Option<Checkpoint>, Error>,
    ) -> Result<Option<Checkpoint>, Error> {
        let mut found = None;
        let path = self.world.on_zero(|| {
            found = find()?;
            Ok(found.as_ref().map(|checkpoint| checkpoint.path().to_owned()))
        })?;
        match path {
            Some(path) if !self.is_global_zero() => {
                self.check_shared(&path)?;
                Ok(Some(Checkpoint::open(path)?))
            }
            _ => Ok(found),
        }
    }

    /// The directory in which the run goes on, or a new one that rank 0 makes.
    fn run_of_every_rank(&self, resume: Option<&Checkpoint>) -> Result<Option<RunDirectory>, Error> {
        let mut run = None;
        let path = self.world.on_zero(|| {
            run = self.run_for(resume)?;
            Ok(run.as_ref().map(|run| run.path().to_owned()))
        })?;
        match path {
            Some(path) if !self.is_global_zero() => {
                self.check_shared(&path)?;
                Ok(Some(RunDirectory::open(path)?))
            }
            _ => Ok(run),
        }
    }

    /// What rank 0 has made must be there for every rank.
    fn check_shared(&self, path: &Path) -> Result<(), Error> {
        if path.exists() {
            return Ok(());
        }
        let topology = self.topology();
        Err(Error::Contradiction(format!(
            "{} of rank 0 is not there on node {} (rank {}); `default_root_dir` must lie on a file system that all nodes share, \
             under the same path",
            path.display(),
            topology.node_rank,
            topology.global_rank
        )))
    }

    /// The directory in which a resumed run goes on, or a new one.
    fn run_for(&self, resume: Option<&Checkpoint>) -> Result<Option<RunDirectory>, Error> {
        let writes = self.config.fast_dev_run.is_none()
            && (!self.loggers.is_empty() || self.events.saves_checkpoints());
        if !writes {
            return Ok(None);
        }
        match resume.and_then(run_of) {
            Some(run) => Ok(Some(run)),
            None => Ok(Some(RunDirectory::create(
                &self.config.default_root_dir,
                &self.config.name,
            )?)),
        }
    }

    /// The options, and the hyper-parameters of the module below them.
    fn hparams(&self) -> Result<toml::Table, Error> {
        let mut table = toml::Table::try_from(&self.config)
            .map_err(|error| Error::Contradiction(format!("the options cannot be written down: {error}")))?;
        // What `auto` found: numbers belong to a backend, and another node may have found something else.
        table.insert("accelerator".to_owned(), self.chosen.accelerator.as_str().into());
        if !self.hyper_parameters.is_empty() {
            table.insert(
                "module".to_owned(),
                toml::Value::Table(self.hyper_parameters.clone()),
            );
        }
        Ok(table)
    }

    /// Evaluates a module on the validation data.
    ///
    /// # Errors
    ///
    /// What stopped the evaluation.
    pub fn validate<M: LightningModule>(
        &mut self,
        module: &M,
        mut data: impl DataModule<Batch = M::Batch>,
    ) -> Result<Evaluated, Error> {
        self.evaluate_erased(erase(module.clone()), &mut data, Stage::Validate, None)
    }

    /// Evaluates a module on the test data.
    ///
    /// # Errors
    ///
    /// What stopped the evaluation.
    pub fn test<M: LightningModule>(
        &mut self,
        module: &M,
        mut data: impl DataModule<Batch = M::Batch>,
    ) -> Result<Evaluated, Error> {
        self.evaluate_erased(erase(module.clone()), &mut data, Stage::Test, None)
    }

    /// Evaluates a module with the weights of a checkpoint on the validation data.
    ///
    /// `best` and `last` mean the checkpoints of the last fit of this trainer, or else of the newest run.
    ///
    /// # Errors
    ///
    /// As [`validate`](Self::validate), and if the checkpoint cannot be used.
    pub fn validate_from<M: LightningModule>(
        &mut self,
        from: impl Into<Resume>,
        module: &M,
        mut data: impl DataModule<Batch = M::Batch>,
    ) -> Result<Evaluated, Error> {
        self.evaluate_erased(
            erase(module.clone()),
            &mut data,
            Stage::Validate,
            Some(from.into()),
        )
    }

    /// Evaluates a module with the weights of a checkpoint on the test data.
    ///
    /// # Errors
    ///
    /// As [`validate_from`](Self::validate_from).
    pub fn test_from<M: LightningModule>(
        &mut self,
        from: impl Into<Resume>,
        module: &M,
        mut data: impl DataModule<Batch = M::Batch>,
    ) -> Result<Evaluated, Error> {
        self.evaluate_erased(erase(module.clone()), &mut data, Stage::Test, Some(from.into()))
    }

    /// Predicts every sample of the prediction data. With several loaders, each has its predictions.
    ///
    /// # Errors
    ///
    /// What stopped the prediction.
    pub fn predict<M: LightningModule>(
        &mut self,
        module: &M,
        mut data: impl DataModule<Batch = M::Batch>,
    ) -> Result<Vec<Predictions>, Error> {
        self.predict_erased(erase(module.clone()), &mut data, None)
    }

    /// Predicts with the weights of a checkpoint.
    ///
    /// # Errors
    ///
    /// As [`validate_from`](Self::validate_from).
    pub fn predict_from<M: LightningModule>(
        &mut self,
        from: impl Into<Resume>,
        module: &M,
        mut data: impl DataModule<Batch = M::Batch>,
    ) -> Result<Vec<Predictions>, Error> {
        self.predict_erased(erase(module.clone()), &mut data, Some(from.into()))
    }

    /// Validates or tests a module whose type is not known here, with its own weights or those of a checkpoint.
    ///
    /// What the steps log is returned and shown; after a fit, it is also logged in that fit's run, at its last step.
    ///
    /// # Errors
    ///
    /// As [`validate_from`](Self::validate_from).
    pub fn evaluate_erased(
        &mut self,
        module: Box<dyn ErasedModule>,
        data: &mut dyn ErasedDataModule,
        stage: Stage,
        from: Option<Resume>,
    ) -> Result<Evaluated, Error> {
        let (module, device) = self.evaluation_module(module, from)?;
        let world = self.world.clone();
        let outcome = with_data(&world, data, stage, |data| {
            let loaders = data.required_loaders(stage)?;
            self.evaluation(stage, module.as_ref(), &loaders, &device).run()
        });
        let evaluated = self.world.reported(outcome)?;
        if self.is_global_zero() {
            self.progress.results(stage.as_str(), &evaluated.metrics);
        }
        self.progress.finish();
        self.log_after_fit(&evaluated.metrics);
        Ok(evaluated)
    }

    /// Adds values to the metrics of the last fit, if it wrote any. The evaluation stands, also where they cannot be written.
    fn log_after_fit(&mut self, values: &[(String, f64)]) {
        let (Some(run), Some((step, epoch)), false) =
            (&self.last_run, self.ended_at, self.loggers.is_empty())
        else {
            return;
        };
        if let Err(error) = self.loggers.begin(run, None) {
            tracing::warn!(
                "the results are not logged: {}",
                firebrand_core::ErrorChain(&error)
            );
            return;
        }
        self.loggers.log_metrics(&LogRow { step, epoch, values });
        drop(self.loggers.finish()); // Warned about by `finish`.
    }

    /// Predicts with a module whose type is not known here.
    ///
    /// # Errors
    ///
    /// As [`validate_from`](Self::validate_from).
    pub fn predict_erased(
        &mut self,
        module: Box<dyn ErasedModule>,
        data: &mut dyn ErasedDataModule,
        from: Option<Resume>,
    ) -> Result<Vec<Predictions>, Error> {
        let (module, device) = self.evaluation_module(module, from)?;
        let world = self.world.clone();
        let outcome = with_data(&world, data, Stage::Predict, |data| {
            let loaders = data.required_loaders(Stage::Predict)?;
            self.evaluation(Stage::Predict, module.as_ref(), &loaders, &device)
                .predict()
        });
        let predictions = self.world.reported(outcome)?;
        self.progress.finish();
        Ok(predictions)
    }

    /// One pass outside a fit.
    fn evaluation<'a>(
        &'a mut self,
        stage: Stage,
        module: &'a dyn ErasedModule,
        loaders: &'a [AnyLoader],
        device: &'a Device,
    ) -> Evaluation<'a> {
        Evaluation {
            stage,
            module,
            loaders,
            limit: self.config.limit(stage),
            seed: self.config.seed,
            epoch: 0,
            global_step: 0,
            device,
            dtype: self.config.precision.compute(),
            progress: &mut self.progress,
            profiler: &self.profiler,
            world: &self.world,
            title: stage.as_str(),
        }
    }

    /// A module in validation mode on the plain device, with the weights of a checkpoint if one is named.
    fn evaluation_module(
        &self,
        module: Box<dyn ErasedModule>,
        from: Option<Resume>,
    ) -> Result<(Box<dyn ErasedModule>, Device), Error> {
        crate::progress::init_tracing(self.world.is_global_zero());
        let device = self.chosen.device.clone();
        let prepare = PrepareOptions {
            device: device.clone().autodiff(),
            precision: self.config.precision_policy(),
            seed: self.config.seed,
        };
        let (mut module, table) = evaluation_module(module, &prepare)?;
        if let Some(from) = from {
            let checkpoint = self.checkpoint_for_weights(&from)?;
            let weights = checkpoint.weights()?;
            load_weights(module.as_mut(), &table, weights, checkpoint.path(), &device)?;
        }
        in_compute_dtype(module.as_mut(), &table, &prepare.precision);
        Ok((module, device))
    }

    fn checkpoint_for_weights(&self, from: &Resume) -> Result<Checkpoint, Error> {
        let found = self.find_on_every_rank(|| match (&self.last_run, from) {
            (Some(run), Resume::Last | Resume::Best | Resume::Auto) => {
                Ok(crate::checkpoint::CheckpointDir::new(run.checkpoints()).resolve(from)?)
            }
            _ => find_checkpoint(&self.config, from),
        })?;
        found.ok_or_else(|| Error::NothingToResume {
            from: from.to_string(),
            searched: self.config.default_root_dir.join(&self.config.name),
        })
    }
}

/// What a fit gives back, with the type of its module.
fn fitted<M: LightningModule>(
    (module, report): (Box<dyn ErasedModule>, FitReport),
) -> Result<Fitted<M>, Error> {
    let name = module.type_name();
    let module = restore_type(module).ok_or(Error::Core(firebrand_core::Error::State {
        what: name.to_owned(),
        reason: "the module came back as another type".to_owned(),
    }))?;
    Ok(Fitted::new(module, report))
}

fn is<C: Callback>(callback: &dyn Callback) -> bool {
    (callback as &dyn std::any::Any).is::<C>()
}

/// The first key in which two tables differ, and its values in words.
fn first_difference(mine: &toml::Table, theirs: &toml::Table) -> Option<(String, String, String)> {
    let words = |value: Option<&toml::Value>| value.map_or_else(|| "nothing".to_owned(), ToString::to_string);
    let keys = mine
        .keys()
        .chain(theirs.keys().filter(|key| !mine.contains_key(*key)));
    for key in keys {
        match (mine.get(key), theirs.get(key)) {
            (Some(toml::Value::Table(mine)), Some(toml::Value::Table(theirs))) => {
                if let Some((inner, mine, theirs)) = first_difference(mine, theirs) {
                    return Some((format!("{key}.{inner}"), mine, theirs));
                }
            }
            (mine, theirs) if mine != theirs => return Some((key.clone(), words(mine), words(theirs))),
            _ => {}
        }
    }
    None
}

/// Prepares the data of a stage, and clears it up whatever happens. On each node one rank prepares, and the others wait for it
/// as long as it is alive: a download may take longer than any deadline.
fn with_data<T>(
    world: &World,
    data: &mut dyn ErasedDataModule,
    stage: Stage,
    run: impl FnOnce(&dyn ErasedDataModule) -> Result<T, Error>,
) -> Result<T, Error> {
    world.enter(|| "preparing data".to_owned());
    if world.topology().local_rank == 0 {
        data.prepare()?;
    }
    world.meet("the preparation of the data, which the first rank of each node does")?;
    world.enter(|| match stage {
        Stage::Train => "starting the fit".to_owned(),
        stage => format!("in {}", stage.as_str()),
    });
    let outcome = match data.setup(stage) {
        Ok(()) => run(data),
        Err(error) => Err(error.into()),
    };
    let cleared = data.teardown(stage);
    let value = outcome?;
    cleared?;
    Ok(value)
}
