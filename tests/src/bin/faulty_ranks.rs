//! Trains on several ranks, of which one goes wrong at a phase of the run: `faulty_ranks --fault WHAT --phase WHEN --fault-rank N`.

use std::process::ExitCode;

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use clap::{Parser, ValueEnum};
use firebrand::prelude::*;

#[derive(Parser, Clone)]
struct Args {
    /// What happens.
    #[arg(long, value_enum)]
    fault: Option<Fault>,
    /// When it happens.
    #[arg(long, value_enum, default_value = "step")]
    phase: Phase,
    /// On which rank.
    #[arg(long, default_value_t = 1)]
    fault_rank: usize,
    #[command(flatten)]
    trainer: TrainerArgs,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Fault {
    Error,
    Panic,
    Kill,
    Stop,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Before the ranks have met.
    Rendezvous,
    /// When the fit begins.
    Start,
    /// In the first forward pass.
    FirstStep,
    /// In a later forward pass.
    Step,
    /// In the middle of a backward pass.
    Backward,
    /// In a validation.
    Validation,
    /// While a checkpoint is being taken: in the hook of the rank that writes it, just before on the others.
    Checkpoint,
}

/// In which update the later phases are.
const LATER: u64 = 6;

/// What goes wrong, when and where.
#[derive(Clone, Copy, Debug)]
struct Plan {
    fault: Option<Fault>,
    phase: Phase,
    rank: usize,
}

impl Plan {
    /// Does what is planned, if this is the place.
    fn reach(&self, phase: Phase, rank: usize) -> Result<()> {
        if self.phase != phase || self.rank != rank {
            return Ok(());
        }
        // So that what this rank has just begun to do has reached the others.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let signal = |name: &str| {
            let id = std::process::id().to_string();
            let _ = std::process::Command::new("kill").args([name, &id]).status();
            // It takes a moment.
            std::thread::sleep(std::time::Duration::from_millis(50));
        };
        match self.fault {
            Some(Fault::Error) => return Err("the disk of the dataset is gone".into()),
            #[allow(clippy::panic)] // That is what is tried.
            Some(Fault::Panic) => panic!("an index is out of bounds"),
            Some(Fault::Kill) => signal("-KILL"),
            Some(Fault::Stop) => signal("-STOP"),
            None => {}
        }
        Ok(())
    }
}

/// A network of three layers, so that a backward pass has a middle.
#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    #[module(skip)]
    plan: Plan,
}

impl Net {
    fn new(plan: Plan) -> Self {
        Self {
            layers: (0..3)
                .map(|_| LinearConfig::new(8, 8).init(&Device::flex()))
                .collect(),
            plan,
        }
    }
}

impl LightningModule for Net {
    type Batch = Tensor<2>;

    fn on_fit_start(&mut self, step: &mut StepContext) -> Result<()> {
        self.plan.reach(Phase::Start, step.global_rank())
    }

    fn training_step(&self, batch: Tensor<2>, step: &mut StepContext) -> Result<Tensor<1>> {
        // So that a checkpoint is on disk before the next is due.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (rank, at) = (step.global_rank(), step.global_step());
        if at == 0 {
            self.plan.reach(Phase::FirstStep, rank)?;
        }
        if at == LATER {
            self.plan.reach(Phase::Step, rank)?;
        }
        let mut x = batch.clone();
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.forward(x).tanh();
            if number == 1 && at == LATER && self.plan.phase == Phase::Backward {
                x = tripped(x, Trip(self.plan, rank));
            }
        }
        let loss = (x - batch).powf_scalar(2.0).mean();
        step.log("train_loss", &loss);
        Ok(loss)
    }

    fn on_train_batch_end(&mut self, step: &mut StepContext) -> Result<()> {
        if step.global_step() == LATER && !step.is_global_zero() {
            self.plan.reach(Phase::Checkpoint, step.global_rank())?;
        }
        Ok(())
    }

    fn validation_step(&self, batch: Tensor<2>, step: &mut StepContext) -> Result<()> {
        if step.global_step() > 0 {
            self.plan.reach(Phase::Validation, step.global_rank())?;
        }
        step.log("val_loss", batch.mean());
        Ok(())
    }

    fn on_save_checkpoint(&self) -> Option<serde_json::Value> {
        // The first checkpoint is to be whole.
        static SAVED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        if SAVED.swap(true, std::sync::atomic::Ordering::Relaxed) && self.plan.rank == 0 {
            let outcome = self.plan.reach(Phase::Checkpoint, 0);
            #[allow(clippy::panic)] // The hook cannot return an error.
            if let Err(error) = outcome {
                panic!("{error}");
            }
        }
        None
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 1e-2)
    }
}

/// What a tensor carries into the backward pass.
#[derive(Clone, Copy, Debug)]
struct Trip(Plan, usize);

fn tripped(x: Tensor<2>, trip: Trip) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Tripwire>::tripwire(x.into_dispatch(), trip))
}

/// The identity, whose backward pass goes wrong.
#[backend_extension(Flex, Autodiff)]
trait Tripwire: Backend {
    fn tripwire(x: FloatTensor<Self>, trip: Trip) -> FloatTensor<Self>;
}

impl Tripwire for Flex {
    fn tripwire(x: FloatTensor<Self>, _: Trip) -> FloatTensor<Self> {
        x
    }
}

#[derive(Debug)]
struct Wire;

impl<B: Backend> Backward<B, 1> for Wire {
    type State = Trip;

    fn backward(self, ops: Ops<Trip, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let Trip(plan, rank) = ops.state;
        #[allow(clippy::panic)] // A backward pass cannot return an error.
        if let Err(error) = plan.reach(Phase::Backward, rank) {
            panic!("{error}");
        }
        let gradient = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, gradient);
        }
    }
}

impl<B: Tripwire, C: CheckpointStrategy> Tripwire for Autodiff<B, C> {
    fn tripwire(x: FloatTensor<Self>, trip: Trip) -> FloatTensor<Self> {
        match Wire.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(trip, x.into_primitive()),
            OpsKind::UnTracked(prepared) => prepared.finish(x.into_primitive()),
        }
    }
}

fn collate(indices: Vec<usize>, device: &Device) -> Result<Tensor<2>> {
    let values: Vec<f32> = indices
        .iter()
        .flat_map(|index| (0..8).map(move |column| ((index * 37 + column * 11) % 97) as f32 / 97.0))
        .collect();
    Ok(Tensor::<1>::from_floats(values.as_slice(), device).reshape([indices.len(), 8]))
}

fn main() -> ExitCode {
    firebrand::run(|| train(&Args::parse()))
}

fn train(args: &Args) -> Result<()> {
    let plan = Plan {
        fault: args.fault,
        phase: args.phase,
        rank: args.fault_rank,
    };
    // The first rank knows who it is without being told.
    let rank = std::env::var("FIREBRAND_RANK").map_or(Ok(0), |rank| rank.parse())?;
    plan.reach(Phase::Rendezvous, rank)?;
    let mut trainer = Trainer::builder()
        .name("faulty")
        .max_steps(20)
        .val_check_interval(ValCheckInterval::Batches(4))
        .callback(ModelCheckpoint::new().every_n_train_steps(3).save_last(true))
        .logger(CsvLogger::new())
        .enable_model_summary(false)
        .args(&args.trainer)?
        .build()?;
    let loader = || DataLoader::from_fn(InMemDataset::new((0..90).collect::<Vec<usize>>()), collate);
    let data = Data::new()
        .train(loader().batch_size(2))
        .validation(loader().batch_size(10));
    trainer.fit(Net::new(plan), data)?;
    Ok(())
}
