//! The classic toy of data parallel training: a small network learns random data on two ranks, once by hand and once through the
//! trainer. Read `by_hand.rs` and `with_trainer.rs` side by side.

mod by_hand;
mod model;
mod with_trainer;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use firebrand::prelude::*;

/// Trains a toy network on several ranks
#[derive(Parser, Debug)]
struct Args {
    /// Which of the two programs runs
    #[arg(long, value_enum, default_value = "with-trainer")]
    form: Form,

    #[command(flatten)]
    trainer: TrainerArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// On the process group: join, broadcast, all-reduce, step
    ByHand,
    /// Through `Trainer`
    WithTrainer,
}

fn main() -> ExitCode {
    firebrand::run(|| {
        let args = Args::parse();
        match args.form {
            Form::ByHand => by_hand::train(),
            Form::WithTrainer => with_trainer::train(&args.trainer),
        }
    })
}
