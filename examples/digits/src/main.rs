//! Trains a network to read handwritten digits, tests it, and draws the curves.

mod curves;
mod data;
mod dataset;
mod model;
mod settings;

use std::process::ExitCode;

use clap::Parser;
use firebrand::prelude::*;

use crate::model::LitDigits;
use crate::settings::{Architecture, Settings};

/// Trains a network to read handwritten digits, and tests it
#[derive(Parser, Debug)]
struct Args {
    /// The network to train: a multilayer perceptron (the default) or a convolutional network
    #[arg(long, value_enum)]
    model: Option<Architecture>,

    /// The number of images of a batch
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,

    /// The highest learning rate, after the warm-up
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,

    /// Stop when val_loss has not improved for this many epochs
    #[arg(long, value_name = "EPOCHS")]
    early_stopping: Option<u64>,

    #[command(flatten)]
    trainer: TrainerArgs,
}

fn main() -> ExitCode {
    firebrand::run(|| train(Args::parse()))
}

fn train(args: Args) -> Result<()> {
    let settings = Settings::resolve(&args)?;
    let data = data::loaders(&settings)?;

    let mut trainer = Trainer::builder()
        .max_epochs(settings.default_epochs())
        .log_every_n_steps(10)
        .args(&args.trainer)?
        .hyper_parameters(&settings)
        .callback(ModelCheckpoint::monitor("val_loss").save_last(true))
        .callback(LearningRateMonitor::new());
    if let Some(epochs) = args.early_stopping {
        trainer = trainer.callback(EarlyStopping::monitor("val_loss").patience(epochs));
    }
    let mut trainer = trainer
        .logger(CsvLogger::new())
        .logger(TensorBoardLogger::new())
        .build()?;

    let fitted = trainer.fit(LitDigits::new(&settings)?, data.clone())?;

    // The weights with the best validation loss, if they were saved.
    let tested = match fitted.report.best_checkpoint {
        Some(_) => trainer.test_from("best", &fitted.module, data)?,
        None => trainer.test(&fitted.module, data)?,
    };
    if let Some(run) = trainer.run_directory().filter(|_| trainer.is_global_zero()) {
        let svg = curves::draw(run)?;
        trainer.print(format!("curves: {}", svg.display()));
    }
    let accuracy = tested.get("test_acc").ok_or("no test batch was evaluated")?;
    trainer.print(format!("test_acc={accuracy:.4}"));
    Ok(())
}
