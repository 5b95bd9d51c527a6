//! What a run does beside the trainer's options. It is saved as `[module]` in the run's `hparams.toml`.

use burn::serde::{Deserialize, Serialize};
use firebrand::Result;

use crate::Args;
use crate::data::MAX_PLACES;

/// The size of the network.
#[derive(clap::ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[serde(crate = "burn::serde", rename_all = "lowercase")]
pub enum Size {
    /// 0.1 million parameters.
    Tiny,
    /// 0.8 million.
    Small,
    /// 4.7 million.
    Medium,
    /// 25 million.
    Large,
    /// 101 million.
    Xl,
}

/// The hyper-parameters of a run.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(crate = "burn::serde")]
pub struct Settings {
    /// The size that the others go by.
    pub size: Size,
    /// The number of features.
    pub width: usize,
    /// The number of blocks.
    pub layers: usize,
    /// The number of heads of each attention.
    pub heads: usize,
    /// The number of places of a row.
    pub context: usize,
    /// The number of rows of a batch.
    pub batch_size: usize,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// The probability with which a value is dropped in training.
    pub dropout: f64,
}

/// What a configuration file says of them: any part.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(crate = "burn::serde", default, deny_unknown_fields)]
struct FileSettings {
    size: Option<Size>,
    width: Option<usize>,
    layers: Option<usize>,
    heads: Option<usize>,
    context: Option<usize>,
    batch_size: Option<usize>,
    learning_rate: Option<f64>,
    dropout: Option<f64>,
}

impl Settings {
    /// What the flags say, else what the configuration file says, else what suits the size.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a row is too short for the longest name.
    pub fn resolve(args: &Args) -> Result<Self> {
        let file: FileSettings = args.trainer.module()?.unwrap_or_default();
        let of_size = Self::of(args.size.or(file.size).unwrap_or(Size::Tiny));
        // A file about another size says nothing about this one.
        let file = match file.size {
            Some(size) if size != of_size.size => FileSettings::default(),
            _ => file,
        };
        let settings = Self {
            size: of_size.size,
            width: args.width.or(file.width).unwrap_or(of_size.width),
            layers: args.layers.or(file.layers).unwrap_or(of_size.layers),
            heads: args.heads.or(file.heads).unwrap_or(of_size.heads),
            context: args.context.or(file.context).unwrap_or(of_size.context),
            batch_size: args.batch_size.or(file.batch_size).unwrap_or(of_size.batch_size),
            learning_rate: args
                .learning_rate
                .or(file.learning_rate)
                .unwrap_or(of_size.learning_rate),
            dropout: args.dropout.or(file.dropout).unwrap_or(of_size.dropout),
        };
        if settings.context < MAX_PLACES {
            return Err(format!(
                "--context {} is too short: the longest name takes {MAX_PLACES} places",
                settings.context
            )
            .into());
        }
        Ok(settings)
    }

    /// What suits a size.
    pub fn of(size: Size) -> Self {
        let (width, layers, heads, learning_rate, dropout) = match size {
            Size::Tiny => (64, 2, 4, 1e-2, 0.0),
            Size::Small => (128, 4, 4, 4e-3, 0.0),
            Size::Medium => (256, 6, 8, 2e-3, 0.1),
            Size::Large => (512, 8, 8, 1e-3, 0.1),
            Size::Xl => (1024, 8, 16, 5e-4, 0.1),
        };
        Self {
            size,
            width,
            layers,
            heads,
            context: 32,
            batch_size: 64,
            learning_rate,
            dropout,
        }
    }
}
