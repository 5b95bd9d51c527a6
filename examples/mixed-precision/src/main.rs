//! Mixed precision: a network with float32 weights that computes in 16 bits, once by hand and once through the trainer. Read
//! `by_hand.rs` and `with_trainer.rs` side by side.

mod by_hand;
mod model;
mod with_trainer;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use firebrand::prelude::*;

/// Trains a small network in mixed precision
#[derive(Parser, Debug)]
struct Args {
    /// Which of the two programs runs
    #[arg(long, value_enum, default_value = "trainer")]
    form: Form,

    #[command(flatten)]
    trainer: TrainerArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// Cast, scale, back-propagate, unscale, check, step, adapt the scale
    ByHand,
    /// Through `Trainer`
    Trainer,
}

fn main() -> ExitCode {
    firebrand::run(|| {
        let args = Args::parse();
        match args.form {
            Form::ByHand => by_hand::train(&args.trainer),
            Form::Trainer => with_trainer::train(&args.trainer),
        }
    })
}
