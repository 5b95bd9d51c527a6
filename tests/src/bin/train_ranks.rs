//! Trains a plain network on any number of ranks, and goes wrong on request: `train_ranks --devices N [--fault WHAT ..]`.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Int, Tensor};
use clap::{Parser, ValueEnum};
use firebrand::metrics::MeanSquaredError;
use firebrand::nn::{BatchNorm, BatchNormConfig};
use firebrand::prelude::*;

#[derive(Parser, Clone)]
struct Args {
    /// Samples of a batch on all ranks together.
    #[arg(long, default_value_t = 12)]
    global_batch: usize,
    /// What goes wrong.
    #[arg(long, value_enum)]
    fault: Option<Fault>,
    /// On which rank.
    #[arg(long, default_value_t = 1)]
    fault_rank: usize,
    /// In which update.
    #[arg(long, default_value_t = 5)]
    fault_step: u64,
    /// Normalise the hidden layer with the statistics of all ranks.
    #[arg(long)]
    batch_norm: bool,
    /// How many batches of an epoch each rank has, in a stream of its own; one rank that is alone has the batches of all.
    #[arg(long, value_delimiter = ',')]
    stream: Vec<usize>,
    /// A folder in which each rank writes down which samples it has seen.
    #[arg(long)]
    samples: Option<std::path::PathBuf>,
    /// Evaluate and predict after the fit, and print what comes of it.
    #[arg(long)]
    evaluate: bool,
    /// How long the data takes to be prepared.
    #[arg(long, default_value_t = 0.0)]
    prepare: f64,
    /// How long the ranks after the first have something to do after the fit.
    #[arg(long)]
    after: Option<f64>,
    /// With what exit code they end then, if not as usual.
    #[arg(long)]
    after_code: Option<i32>,
    #[command(flatten)]
    trainer: TrainerArgs,
}

#[derive(ValueEnum, Clone, Copy, PartialEq)]
enum Fault {
    Error,
    Panic,
    Kill,
    /// Kill between the forward and the backward pass.
    Backward,
    Stop,
    Slow,
    Hang,
    Nan,
    /// An infinite loss, once.
    Inf,
    Validation,
    Unused,
}

/// A point, and its index in the dataset.
#[derive(Batch, Clone, Debug)]
struct Points {
    features: Tensor<2>,
    targets: Tensor<2>,
    indices: Tensor<1, Int>,
}

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    norm: Option<BatchNorm>,
    output: Linear,
    spare: Linear,
    #[module(skip)]
    plan: Plan,
}

/// What the steps need of the arguments.
#[derive(Clone, Debug, Default)]
struct Plan {
    fault: Option<String>,
    rank: usize,
    step: u64,
    batch_norm: bool,
    samples: Option<std::path::PathBuf>,
}

impl Net {
    fn new(device: &Device, plan: Plan) -> Result<Self> {
        let norm = BatchNormConfig::new(32).with_synchronize(true);
        Ok(Self {
            hidden: LinearConfig::new(4, 32).init(device),
            norm: plan.batch_norm.then(|| norm.init(device)).transpose()?,
            output: LinearConfig::new(32, 2).init(device),
            spare: LinearConfig::new(4, 2).init(device),
            plan,
        })
    }

    fn forward(&self, features: Tensor<2>, step: &StepContext) -> Result<Tensor<2>> {
        let mut hidden = self.hidden.forward(features);
        if let Some(norm) = &self.norm {
            hidden = norm.forward(hidden, step)?;
        }
        Ok(self.output.forward(tanh(hidden)))
    }

    fn is_due(&self, step: &StepContext) -> bool {
        step.global_rank() == self.plan.rank && step.global_step() == self.plan.step
    }

    fn go_wrong(&self, step: &StepContext) -> Result<()> {
        if !self.is_due(step) {
            return Ok(());
        }
        match self.plan.fault.as_deref() {
            Some("error") => return Err("the disk of the dataset is gone".into()),
            #[allow(clippy::panic)] // That is what is tried.
            Some("panic") => panic!("an index is out of bounds"),
            Some("kill") => signal("-KILL"),
            Some("stop") => signal("-STOP"),
            Some("slow") => std::thread::sleep(Duration::from_secs(3)),
            Some("hang") => std::thread::sleep(Duration::from_secs(1000)),
            _ => {}
        }
        Ok(())
    }
}

fn signal(name: &str) {
    let id = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args([name, &id]).status();
}

impl LightningModule for Net {
    type Batch = Points;

    fn training_step(&self, batch: Points, step: &mut StepContext) -> Result<Tensor<1>> {
        self.go_wrong(step)?;
        if let Some(folder) = &self.plan.samples {
            let path = folder.join(format!("rank{}.txt", step.global_rank()));
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            let indices: Vec<String> = batch
                .indices
                .clone()
                .into_data()
                .iter::<i64>()
                .map(|i| i.to_string())
                .collect();
            writeln!(
                file,
                "{} {} {}",
                step.epoch(),
                step.global_step(),
                indices.join(" ")
            )?;
        }
        let mut output = self.forward(batch.features.clone(), step)?;
        if self.plan.fault.as_deref() != Some("unused") || step.global_rank() != self.plan.rank {
            output = output + self.spare.forward(batch.features);
        }
        let output = step.full_precision(output);
        let mut loss = (output - step.full_precision(batch.targets))
            .powf_scalar(2.0)
            .mean();
        if self.plan.fault.as_deref() == Some("nan") && self.is_due(step) {
            loss = loss * f32::NAN;
        }
        if self.plan.fault.as_deref() == Some("inf") && self.is_due(step) {
            // Once: an update that is left out is tried again under the same number.
            static DONE: AtomicBool = AtomicBool::new(false);
            if !DONE.swap(true, Ordering::Relaxed) {
                loss = loss * f32::INFINITY;
            }
        }
        if self.plan.fault.as_deref() == Some("backward") && self.is_due(step) {
            signal("-KILL");
        }
        step.log("train_loss", &loss);
        Ok(loss)
    }

    fn validation_step(&self, batch: Points, step: &mut StepContext) -> Result<()> {
        if self.plan.fault.as_deref() == Some("validation") && step.global_rank() == self.plan.rank {
            return Err("the validation data is gone".into());
        }
        let output = step.full_precision(self.forward(batch.features, step)?);
        let targets = step.full_precision(batch.targets);
        step.log(
            "val_loss",
            (output.clone() - targets.clone()).powf_scalar(2.0).mean(),
        );
        step.log_metric("val_mse", MeanSquaredError::new().update(&output, &targets)?);
        Ok(())
    }

    fn predict_step(&self, batch: Points, _: &mut StepContext) -> Result<Prediction> {
        Ok(Prediction::from(batch.indices))
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(AdamWConfig::new(), 1e-2)
    }
}

fn collate(indices: Vec<usize>, device: &Device) -> Result<Points> {
    let value = |index: usize, column: usize| ((index * 37 + column * 101) % 97) as f64 / 97.0 - 0.5;
    let count = indices.len();
    let features: Vec<f64> = indices
        .iter()
        .flat_map(|i| (0..4).map(|c| value(*i, c)))
        .collect();
    let targets: Vec<f64> = indices
        .iter()
        .flat_map(|i| [value(*i, 0) * value(*i, 1), value(*i, 2).sin()])
        .collect();
    let tensor = |values: Vec<f64>, width: usize| {
        Tensor::<1>::from_data(values.as_slice(), device).reshape([count, width])
    };
    let indices: Vec<i64> = indices.into_iter().map(|index| index as i64).collect();
    Ok(Points {
        features: tensor(features, 4),
        targets: tensor(targets, 2),
        indices: Tensor::from_data(indices.as_slice(), device),
    })
}

/// Data that takes its time to be prepared.
struct Slow {
    data: Data<Points>,
    seconds: f64,
}

impl DataModule for Slow {
    type Batch = Points;

    fn prepare(&mut self) -> Result<()> {
        std::thread::sleep(Duration::from_secs_f64(self.seconds));
        Ok(())
    }

    fn train_loader(&self) -> Result<DataLoader<Points>> {
        self.data.train_loader()
    }

    fn validation_loaders(&self) -> Result<Vec<DataLoader<Points>>> {
        self.data.validation_loaders()
    }
}

/// The batches of ranks of which each has its own number. One rank that is alone has the k-th batches of all as one.
fn stream(lengths: Vec<usize>) -> DataLoader<Points> {
    const BATCH: usize = 6;
    DataLoader::from_stream(move |request| {
        let shard = request.shard;
        let ranks = match shard.world_size {
            1 => 0..lengths.len(),
            _ => shard.rank..shard.rank + 1,
        };
        let (lengths, epoch) = (lengths.clone(), request.epoch as usize);
        let longest = ranks.clone().map(|rank| lengths[rank]).max().unwrap_or_default();
        Ok((0..longest).map(move |number| {
            let with_one = ranks.clone().filter(|rank| number < lengths[*rank]);
            let indices = with_one.flat_map(|rank| {
                let first = 1000 * rank + BATCH * (number + 10 * epoch);
                first..first + BATCH
            });
            collate(indices.collect(), &Device::flex())
        }))
    })
}

fn main() -> ExitCode {
    firebrand::run(|| train(&Args::parse()))
}

fn train(args: &Args) -> Result<()> {
    let mut trainer = Trainer::builder()
        .name("ranks")
        .max_steps(200)
        .log_every_n_steps(1)
        .enable_model_summary(false)
        .callback_with(|| ModelCheckpoint::new().every_n_train_steps(7).save_last(true))
        .logger(CsvLogger::new())
        .args(&args.trainer)?
        .build()?;
    let loader =
        |count: usize| DataLoader::from_fn(InMemDataset::new((0..count).collect::<Vec<_>>()), collate);
    let batch = args.global_batch / trainer.topology().world_size;
    let train = match args.stream.is_empty() {
        true => loader(200).batch_size(batch).shuffle(true).drop_last(true),
        false => stream(args.stream.clone()),
    };
    let data = Data::new()
        .train(train)
        .validation(loader(50).batch_size(7))
        .predict(loader(23).batch_size(3));
    let plan = Plan {
        fault: args
            .fault
            .and_then(|fault| Some(fault.to_possible_value()?.get_name().to_owned())),
        rank: args.fault_rank,
        step: args.fault_step,
        batch_norm: args.batch_norm,
        samples: args.samples.clone(),
    };
    let (given, seconds) = (data.clone(), args.prepare);
    let fitted = trainer.fit_with(move || {
        let data = given.clone();
        Ok((Net::new(&Device::flex(), plan.clone())?, Slow { data, seconds }))
    })?;
    if args.evaluate {
        let evaluated = trainer.validate(&fitted.module, data.clone())?;
        let predicted = trainer.predict(&fitted.module, data)?;
        let order: Vec<i64> = predicted
            .first()
            .and_then(|loader| loader.tensor::<1, Int>())
            .map(|tensor| tensor.into_data().iter::<i64>().collect())
            .unwrap_or_default();
        // Every rank has the same, and each says so.
        let line = format!("{:?} {order:?}", evaluated.metrics);
        firebrand::progress::print_line(&line);
    }
    if let (Some(seconds), false) = (args.after, trainer.is_global_zero()) {
        drop(trainer);
        firebrand::progress::print_line("something to do");
        std::thread::sleep(Duration::from_secs_f64(seconds));
        if let Some(code) = args.after_code {
            std::process::exit(code);
        }
        firebrand::progress::print_line("it is done");
    }
    Ok(())
}
