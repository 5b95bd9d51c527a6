//! What a run does beside the trainer's options. It is saved as `[module]` in the run's `hparams.toml`.

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
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(crate = "burn::serde")]
pub struct Settings {
    /// The network to train.
    pub model: Architecture,
    /// The number of images of a batch.
    pub batch_size: usize,
    /// The highest learning rate.
    pub learning_rate: f64,
}

/// What a configuration file says of them: any part.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(crate = "burn::serde", default, deny_unknown_fields)]
struct FileSettings {
    model: Option<Architecture>,
    batch_size: Option<usize>,
    learning_rate: Option<f64>,
}

impl Settings {
    /// What the flags say, else what the configuration file says, else what suits the network.
    pub fn resolve(args: &Args) -> Result<Self> {
        let file: FileSettings = args.trainer.module()?.unwrap_or_default();
        let mut settings = Self::of(args.model.or(file.model).unwrap_or(Architecture::Mlp));
        // A file about another network says nothing about this one.
        let file = match file.model {
            Some(model) if model != settings.model => FileSettings::default(),
            _ => file,
        };
        settings.batch_size = args.batch_size.or(file.batch_size).unwrap_or(settings.batch_size);
        settings.learning_rate = args
            .learning_rate
            .or(file.learning_rate)
            .unwrap_or(settings.learning_rate);
        Ok(settings)
    }

    fn of(model: Architecture) -> Self {
        match model {
            Architecture::Mlp => Self {
                model,
                batch_size: 32,
                learning_rate: 1e-2,
            },
            Architecture::Conv => Self {
                model,
                batch_size: 64,
                learning_rate: 5e-3,
            },
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
