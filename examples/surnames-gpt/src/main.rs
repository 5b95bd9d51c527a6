//! Trains a character-level GPT on the surnames of the US Census of 1990, and lets it make up new ones.

mod data;
mod gpt;
mod model;
mod sample;
mod settings;
mod surnames;

use std::collections::HashSet;
use std::process::ExitCode;

use burn::module::Module;
use clap::Parser;
use firebrand::load_from_checkpoint;
use firebrand::prelude::*;

use crate::model::LitSurnames;
use crate::settings::{Settings, Size};
use crate::surnames::{Splits, spelled};

/// Trains a character-level GPT on surnames, and prints some that it makes up
#[derive(Parser, Debug)]
struct Args {
    /// The size of the network: from 0.1 (tiny, the default) to 101 million parameters
    #[arg(long, value_enum)]
    size: Option<Size>,

    /// The number of features
    #[arg(long, value_name = "N")]
    width: Option<usize>,

    /// The number of blocks
    #[arg(long, value_name = "N")]
    layers: Option<usize>,

    /// The number of attention heads
    #[arg(long, value_name = "N")]
    heads: Option<usize>,

    /// The number of places of a row, which several names share
    #[arg(long, value_name = "N")]
    context: Option<usize>,

    /// The number of rows of a batch
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,

    /// The highest learning rate, after the warm-up
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,

    /// The probability with which a value is dropped in training
    #[arg(long, value_name = "P")]
    dropout: Option<f64>,

    /// The number of names that are made up at the end
    #[arg(long, value_name = "N", default_value_t = 20)]
    samples: usize,

    /// How freely they are made up: below 1 likelier, above 1 stranger ones
    #[arg(long, value_name = "T", default_value = "0.8", value_parser = temperature)]
    temperature: f64,

    /// The seed of the names that are made up
    #[arg(long, value_name = "N", default_value_t = 1)]
    sample_seed: u64,

    #[command(flatten)]
    trainer: TrainerArgs,
}

fn temperature(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(temperature) if temperature > 0.0 && temperature.is_finite() => Ok(temperature),
        _ => Err("expected a number above 0, such as 0.8".to_owned()),
    }
}

fn main() -> ExitCode {
    firebrand::run(|| train(&Args::parse()))
}

fn train(args: &Args) -> Result<()> {
    let settings = Settings::resolve(args)?;
    let splits = Splits::load()?;

    let mut trainer = Trainer::builder()
        .max_epochs(3)
        .log_every_n_steps(10)
        .gradient_clip(GradientClip::Norm(1.0))
        .keep_full_precision(gpt::KEPT[0])
        .keep_full_precision(gpt::KEPT[1])
        .args(&args.trainer)?
        .hyper_parameters(&settings)
        .callback(ModelCheckpoint::monitor("val_loss").save_last(true))
        .callback(LearningRateMonitor::new())
        .logger(CsvLogger::new())
        .logger(TensorBoardLogger::new())
        .build()?;
    let data = data::loaders(&splits, &settings);
    let fitted = trainer.fit(LitSurnames::new(&settings)?, data.clone())?;
    // The weights with the best validation loss, if they were saved.
    let tested = match fitted.report.best_checkpoint {
        Some(_) => trainer.test_from("best", &fitted.module, data)?,
        None => trainer.test(&fitted.module, data)?,
    };

    if trainer.is_global_zero() {
        let device = trainer.device().clone().without_autodiff();
        let lit = match &fitted.report.best_checkpoint {
            Some(best) => load_from_checkpoint(best, LitSurnames::new(&settings)?, &device)?,
            None => fitted.module.valid(),
        };
        let names = sample::names(
            &lit.gpt,
            args.samples,
            args.temperature,
            args.sample_seed,
            &device,
        )?;
        let known: HashSet<&[u8]> = splits.train.iter().map(|name| name.tokens()).collect();
        let copied = names
            .iter()
            .filter(|name| known.contains(name.as_slice()))
            .count();
        for name in &names {
            trainer.print(spelled(name));
        }
        trainer.print(format!(
            "{copied} of {} names are in the training data",
            names.len()
        ));
    }
    let loss = tested.get("test_loss").ok_or("no test batch was evaluated")?;
    trainer.print(format!("test_loss={loss:.4}"));
    Ok(())
}
