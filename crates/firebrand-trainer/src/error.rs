use std::fmt;
use std::path::PathBuf;

use firebrand_core::{BoxError, ErrorChain};

use crate::accelerator::AcceleratorError;
use crate::checkpoint::CheckpointError;
use crate::data::DataError;
use crate::loggers::LoggerError;

/// Why a trainer could not be built, or a run could not go on.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option cannot have its value.
    #[error("{field}: {value} is not {expected}")]
    Option {
        /// The option, by its name in the builder; the flag is the same with dashes.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// Two options contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// A configuration file cannot be used.
    #[error("the configuration file {}: {reason}", path.display())]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the key that it is about.
        reason: String,
    },
    /// What the engine found.
    #[error(transparent)]
    Strategy(#[from] firebrand_strategy::Error),
    /// A broken contract of the module.
    #[error(transparent)]
    Core(#[from] firebrand_core::Error),
    /// What is wrong with the data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// What is wrong with a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A run directory or logger cannot be used.
    #[error(transparent)]
    Logger(#[from] LoggerError),
    /// A step or hook of the module failed outside the training step.
    #[error("{hook} failed in epoch {epoch}, global step {global_step}")]
    Module {
        /// The method that failed.
        hook: &'static str,
        /// The epoch.
        epoch: u64,
        /// The number of updates so far.
        global_step: u64,
        /// What the user's code returned.
        #[source]
        source: BoxError,
    },
    /// A step of an evaluation failed.
    #[error("{step} failed at batch {batch_index} of loader {loader_index}")]
    EvaluationStep {
        /// The method that failed.
        step: &'static str,
        /// The loader.
        loader_index: usize,
        /// The batch.
        batch_index: u64,
        /// What the user's code returned.
        #[source]
        source: BoxError,
    },
    /// A rank could not make its module and data.
    #[error("the module and the data of a rank could not be made")]
    Make(#[source] BoxError),
    /// A callback failed.
    #[error("the callback {name} failed in {event}")]
    Callback {
        /// The callback.
        name: String,
        /// The event.
        event: &'static str,
        /// What it returned.
        #[source]
        source: BoxError,
    },
    /// There is no checkpoint to go on from.
    #[error("there is no checkpoint '{from}' to take: no run under {} has one; name a checkpoint's path, or use 'auto' to start afresh when there is none", searched.display())]
    NothingToResume {
        /// What was asked for.
        from: String,
        /// Where runs were looked for.
        searched: PathBuf,
    },
    /// Another process writes into the run.
    #[error("another process writes into the run {}; wait for it, or start a run of your own without `resume`", path.display())]
    RunInUse {
        /// The run's directory.
        path: PathBuf,
    },
    /// A prediction is not one row per sample.
    #[error(
        "predict_step returned {found} rows for a batch of {expected} samples (batch {batch_index}); the first axis of \
         every predicted tensor is the sample"
    )]
    PredictionLength {
        /// The samples of the batch.
        expected: usize,
        /// The rows that were returned.
        found: String,
        /// The batch.
        batch_index: u64,
    },
    /// A checkpoint belongs to another module.
    #[error("the checkpoint {} does not fit the module: {reason}", path.display())]
    ForeignCheckpoint {
        /// The checkpoint.
        path: PathBuf,
        /// The first thing that does not fit.
        reason: String,
    },
    /// The run was stopped by a signal, after its checkpoint was written.
    #[error("stopped by {signal} at global step {global_step}; {saved}")]
    Interrupted {
        /// The signal's name.
        signal: &'static str,
        /// The exit code that belongs to it.
        exit_code: u8,
        /// The number of updates so far.
        global_step: u64,
        /// Whether and where a checkpoint was written.
        saved: String,
    },
    /// The profiler's trace cannot be written.
    #[error(transparent)]
    Profiler(#[from] crate::profiler::ProfilerError),
    /// The accelerator cannot be used.
    #[error(transparent)]
    Accelerator(#[from] AcceleratorError),
    /// The ranks could not be started or brought together.
    #[error(transparent)]
    Launch(#[from] firebrand_launch::Error),
    /// What went wrong between ranks.
    #[error(transparent)]
    Ranks(#[from] firebrand_collective::Error),
    /// A signal handler cannot be installed.
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ErrorChain(self))
    }
}

impl Error {
    /// What went wrong between ranks, if that is what it is: also in a step of the user's, which a layer in it or a collective of
    /// its own has told that another rank failed.
    pub(crate) fn of_ranks(&self) -> Option<&firebrand_collective::Error> {
        if let Self::Ranks(error) | Self::Strategy(firebrand_strategy::Error::Ranks(error)) = self {
            return Some(error);
        }
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            if let Some(error @ firebrand_collective::Error::RankFailed { .. }) = error.downcast_ref() {
                return Some(error);
            }
            cause = error.source();
        }
        None
    }

    /// The exit code that belongs to it: 130 and 143 for signals, 2 for a usage error, 1 for the rest.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted { exit_code, .. } => *exit_code,
            Self::Accelerator(error) if error.is_usage() => 2,
            // A rank that was stopped and has saved.
            Self::Launch(firebrand_launch::Error::Child { exit_code, .. })
                if matches!(*exit_code, 130 | 143) =>
            {
                *exit_code
            }
            Self::Option { .. }
            | Self::Contradiction(_)
            | Self::Data(DataError::Setting { .. })
            | Self::ConfigFile { .. }
            | Self::Launch(
                firebrand_launch::Error::Contradiction(_)
                | firebrand_launch::Error::Variable { .. }
                | firebrand_launch::Error::Missing { .. },
            ) => 2,
            _ => 1,
        }
    }
}
