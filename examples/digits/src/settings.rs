//! What a run does beside the trainer's options. It is saved as `[module]` in the run's `hparams.toml`.

use burn::config::Config;
use burn::serde::{Deserialize, Serialize};
use firebrand::Result;

use crate::Args;

/// The network to train.
#[derive(clap::ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(crate = "burn::serde", rename_all = "lowercase")]
pub enum Architecture {
    /// A multilayer perceptron: one hidden layer.
    Mlp,
    /// A convolutional network, trained on images that are shifted at random.
    Conv,
}

/// The hyper-parameters of a run.
#[derive(Config, Debug, PartialEq)]
pub struct Settings {
    /// The network to train.
    pub model: Architecture,
    /// The number of images of a batch.
    pub batch_size: usize,
    /// The highest learning rate.
    pub learning_rate: f64,
}

impl Settings {
    /// What the flags say, else what the configuration file says, else what suits the network.
    pub fn resolve(args: &Args) -> Result<Self> {
        let file: Option<Settings> = args.trainer.module()?;
        let model = args
            .model
            .or(file.as_ref().map(|file| file.model))
            .unwrap_or(Architecture::Mlp);
        // A file about another network says nothing about this one.
        let mut settings = file
            .filter(|file| file.model == model)
            .unwrap_or_else(|| Self::of(model));
        settings.batch_size = args.batch_size.unwrap_or(settings.batch_size);
        settings.learning_rate = args.learning_rate.unwrap_or(settings.learning_rate);
        Ok(settings)
    }

    fn of(model: Architecture) -> Self {
        match model {
            Architecture::Mlp => Self::new(model, 32, 1e-2),
            Architecture::Conv => Self::new(model, 64, 5e-3),
        }
    }

    /// How long to train unless the command line says otherwise.
    pub fn default_epochs(&self) -> u64 {
        match self.model {
            Architecture::Mlp => 40,
            Architecture::Conv => 20,
        }
    }
}
