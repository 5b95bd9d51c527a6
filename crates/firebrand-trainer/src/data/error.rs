use std::any::Any;
use std::fmt;

use firebrand_core::{BoxError, Error, ErrorChain};

/// What goes wrong between a dataset and a step. It names the loader: `train`, `validation`, `validation[1]`, ….
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A setting of a loader has a value that it cannot work with.
    #[error("the {loader} loader cannot work with `{setting}({value})`: {fix}")]
    Setting {
        /// The loader.
        loader: String,
        /// The method of the loader's builder.
        setting: &'static str,
        /// The value that was given.
        value: String,
        /// What to do.
        fix: &'static str,
    },
    /// The dataset is empty.
    #[error("the dataset of the {loader} loader is empty; check the path or the split that it was made from")]
    EmptyDataset {
        /// The loader.
        loader: String,
    },
    /// There are samples, but not enough for one batch.
    #[error(
        "the {loader} loader gives no batch: its {num_samples} samples are fewer than the {needed} of one batch of \
         {batch_size} on {world_size} rank(s); lower `batch_size`, or set `drop_last(false)` and `ShardTail::Pad`"
    )]
    NoBatch {
        /// The loader.
        loader: String,
        /// The number of samples.
        num_samples: usize,
        /// The number of samples that one batch would take.
        needed: usize,
        /// The number of samples of a batch on one rank.
        batch_size: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// An epoch is to start behind its end.
    #[error(
        "the {loader} loader cannot start after {position} samples, since it has {num_samples}; the checkpoint was \
         written with other data"
    )]
    Position {
        /// The loader.
        loader: String,
        /// The number of samples to skip.
        position: u64,
        /// The number of samples.
        num_samples: u64,
    },
    /// A shard that does not exist.
    #[error("there is no rank {rank} among {world_size} for the {loader} loader; ranks count from 0")]
    Shard {
        /// The loader.
        loader: String,
        /// The rank that was asked for.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// A sample cannot be read, or its transformation failed.
    #[error("the {loader} loader cannot read sample {sample}")]
    Sample {
        /// The loader.
        loader: String,
        /// The index of the sample in the dataset.
        sample: usize,
        /// What the dataset says.
        #[source]
        source: BoxError,
    },
    /// Reading a sample panicked.
    #[error("the {loader} loader panicked at sample {sample}: {message}")]
    SamplePanicked {
        /// The loader.
        loader: String,
        /// The index of the sample in the dataset.
        sample: usize,
        /// The message of the panic.
        message: String,
    },
    /// The samples do not become a batch.
    #[error("the {loader} loader cannot make a batch of the samples {}", shortened(.samples))]
    Collate {
        /// The loader.
        loader: String,
        /// The indices of the samples in the dataset.
        samples: Vec<usize>,
        /// What the collate function says.
        #[source]
        source: BoxError,
    },
    /// Making a batch of the samples panicked.
    #[error("the {loader} loader panicked while it made a batch of the samples {}: {message}", shortened(.samples))]
    CollatePanicked {
        /// The loader.
        loader: String,
        /// The indices of the samples in the dataset.
        samples: Vec<usize>,
        /// The message of the panic.
        message: String,
    },
    /// The fields of a batch disagree about its number of samples.
    #[error("the {loader} loader made a broken batch of the samples {}", shortened(.samples))]
    Fields {
        /// The loader.
        loader: String,
        /// The indices of the samples in the dataset.
        samples: Vec<usize>,
        /// The field that disagrees.
        #[source]
        source: Box<Error>,
    },
    /// A batch holds no sample.
    #[error(
        "the {loader} loader made an empty batch of the samples {}; filter the dataset before it is batched",
        shortened(.samples)
    )]
    EmptyBatch {
        /// The loader.
        loader: String,
        /// The indices of the samples in the dataset.
        samples: Vec<usize>,
    },
    /// A stream cannot be opened, or fails underway.
    #[error("the stream of the {loader} loader failed at batch {batch}")]
    Stream {
        /// The loader.
        loader: String,
        /// The index of the batch, from 0 at the start of the epoch or where a seekable stream was opened.
        batch: u64,
        /// What the stream says.
        #[source]
        source: BoxError,
    },
    /// A stream panicked.
    #[error("the stream of the {loader} loader panicked at batch {batch}: {message}")]
    StreamPanicked {
        /// The loader.
        loader: String,
        /// The index of the batch, from 0 at the start of the epoch or where a seekable stream was opened.
        batch: u64,
        /// The message of the panic.
        message: String,
    },
    /// A stream gave a batch without samples.
    #[error("the stream of the {loader} loader gave an empty batch at batch {batch}; leave such batches out")]
    EmptyStreamBatch {
        /// The loader.
        loader: String,
        /// The index of the batch, from 0 at the start of the epoch or where a seekable stream was opened.
        batch: u64,
    },
    /// A worker thread cannot be started.
    #[error("the {loader} loader cannot start worker {worker}; lower `num_workers` or the limit on threads")]
    SpawnWorker {
        /// The loader.
        loader: String,
        /// The index of the worker, from 0.
        worker: usize,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// A worker thread ended without having done its work.
    #[error("worker {worker} of the {loader} loader died: {message}")]
    WorkerDied {
        /// The loader.
        loader: String,
        /// The index of the worker, from 0.
        worker: usize,
        /// The message of its panic.
        message: String,
    },
    /// A batch is of another type than its loader says.
    #[error("the {loader} loader gave a batch of another type")]
    BatchType {
        /// The loader.
        loader: String,
        /// The two types.
        #[source]
        source: Box<Error>,
    },
    /// There is no loader for what was asked.
    #[error("`{module}` has no loader for `{entry}`: implement `{method}`, or give one to `Data::{field}`")]
    MissingLoader {
        /// The type of the data module.
        module: &'static str,
        /// The method of `DataModule` to implement.
        method: &'static str,
        /// The method of `Data` to call.
        field: &'static str,
        /// The entry point that needs the loader.
        entry: &'static str,
    },
    /// A method of a data module failed.
    #[error("`{method}` of the data module `{module}` failed")]
    Module {
        /// The type of the data module.
        module: &'static str,
        /// The method.
        method: &'static str,
        /// What it says.
        #[source]
        source: BoxError,
    },
}

impl fmt::Debug for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ErrorChain(self))
    }
}

/// `[3, 17, 8, 5, … 60 more]`
fn shortened(samples: &[usize]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = samples.iter().take(SHOWN).map(usize::to_string).collect();
    match samples.len().checked_sub(SHOWN) {
        None | Some(0) => format!("[{}]", shown.join(", ")),
        Some(more) => format!("[{}, … {more} more]", shown.join(", ")),
    }
}

/// What a panic said.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_samples_are_shortened() {
        assert_eq!(shortened(&[3, 1]), "[3, 1]");
        assert_eq!(shortened(&(0..8).collect::<Vec<_>>()), "[0, 1, 2, 3, 4, 5, 6, 7]");
        assert_eq!(
            shortened(&(0..70).collect::<Vec<_>>()),
            "[0, 1, 2, 3, 4, 5, 6, 7, … 62 more]"
        );
    }

    #[test]
    fn debug_tells_the_cause() {
        let error = DataError::Sample {
            loader: "train".to_owned(),
            sample: 7,
            source: "the file is gone".into(),
        };
        assert_eq!(
            format!("{error:?}"),
            "the train loader cannot read sample 7: the file is gone"
        );
    }
}
