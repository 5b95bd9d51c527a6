/// What came of a layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a layer could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of a layer is wrong.
    #[error("{layer}: {reason}")]
    Config {
        /// The layer.
        layer: &'static str,
        /// The setting, its value, and what to do.
        reason: String,
    },
    /// A tensor has a shape that the layer cannot take.
    #[error("{layer}: {what} must be {expected}, and is {found:?}")]
    Shape {
        /// The layer.
        layer: &'static str,
        /// The tensor.
        what: &'static str,
        /// The shape that it takes.
        expected: String,
        /// The shape of the tensor.
        found: Vec<usize>,
    },
    /// The variance of one value is zero, and nothing can be learnt from it.
    #[error(
        "batch norm: a channel has {count} value in this batch, and training needs 2 or more; use a larger batch, `drop_last(true)` \
         where only the last batch is that small, or `with_synchronize(true)` over several ranks"
    )]
    TooFewValues {
        /// The values of each channel.
        count: u64,
    },
    /// The statistics of all ranks could not be brought together.
    #[error("batch norm: the statistics of all ranks could not be brought together")]
    Ranks(#[from] firebrand_collective::Error),
}
