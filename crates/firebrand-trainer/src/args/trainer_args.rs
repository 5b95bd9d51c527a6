use std::path::PathBuf;

use serde::de::DeserializeOwned;

use super::apply::clip;
use super::file::ConfigFile;
use super::options::Options;
use super::values::ProfilerChoice;
use crate::profiler::Profiler;
use crate::{Error, TrainerConfig};

/// The options of a trainer as flags with Lightning's names, to be flattened into a program's own.
///
/// ```
/// use clap::Parser;
/// use firebrand_trainer::{Trainer, TrainerArgs};
///
/// #[derive(Parser)]
/// struct Args {
///     /// The number of hidden units
///     #[arg(long, default_value_t = 128)]
///     hidden: usize,
///     #[command(flatten)]
///     trainer: TrainerArgs,
/// }
///
/// let args = Args::parse_from(["program", "--hidden", "64", "--max-epochs", "3", "--gradient-clip-val", "1"]);
/// let trainer = Trainer::builder().max_epochs(30).args(&args.trainer)?.build()?;
/// assert_eq!(trainer.config().max_epochs, Some(3));
/// # Ok::<(), firebrand_trainer::Error>(())
/// ```
///
/// `--config FILE.toml` reads the same options from a file, whose keys are the names of the flags with underscores. A flag wins
/// over the file, the file over what the program set. The `hparams.toml` that a run writes is such a file; its table
/// `[module]` holds the module's own hyper-parameters, see [`module`](Self::module).
///
/// `max_steps` and `max_epochs` take each other's place: `--max-steps 2000` in a program that trains for 10 epochs trains for
/// 2000 updates. Give both for whichever comes first.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Trainer options")]
pub struct TrainerArgs {
    /// Read options from a file, such as the hparams.toml of an earlier run; flags win over it
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl TrainerArgs {
    /// The program's options with those of the file and of the command line in their place.
    ///
    /// # Errors
    ///
    /// [`Error::ConfigFile`] if the file cannot be used, [`Error::Contradiction`] if options need each other.
    pub fn resolve(&self, defaults: TrainerConfig) -> Result<TrainerConfig, Error> {
        let file = self.file()?;
        let mut config = defaults;
        config.gradient_clip = clip([&self.options, &file.options], config.gradient_clip)?;
        file.apply(&mut config);
        self.options.apply(&mut config);
        Ok(config)
    }

    /// The profiler that was asked for, if one was.
    ///
    /// # Errors
    ///
    /// [`Error::ConfigFile`] if the file cannot be used.
    pub fn profiler(&self) -> Result<Option<Profiler>, Error> {
        let choice = self.options.profiler.clone().or(self.file()?.options.profiler);
        Ok(choice.map(|choice| match choice {
            ProfilerChoice::Simple => Profiler::simple(),
            ProfilerChoice::ChromeTrace(path) => Profiler::simple().chrome_trace(path),
        }))
    }

    /// The module's own hyper-parameters: the table `[module]` of the configuration file; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::ConfigFile`] if the file cannot be read, or the table is not what the program expects of it.
    pub fn module<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let (Some(path), Some(table)) = (&self.config, self.file()?.module) else {
            return Ok(None);
        };
        table
            .try_into()
            .map(Some)
            .map_err(|error: toml::de::Error| Error::ConfigFile {
                path: path.clone(),
                reason: format!("[module]: {}", error.message()),
            })
    }

    fn file(&self) -> Result<ConfigFile, Error> {
        self.config
            .as_deref()
            .map_or_else(|| Ok(ConfigFile::default()), ConfigFile::read)
    }
}
