use std::path::PathBuf;

use firebrand_strategy::{GradientCompression, NonFinite, Precision};

use super::values::{self, ClipAlgorithm, ProfilerChoice};
use crate::accelerator::Accelerator;
use crate::checkpoint::Resume;
use crate::options::{Launcher, Limit, Strategy, UnevenInputs, ValCheckInterval};
use crate::progress::ProgressMode;

/// What the command line or a configuration file says; `None` where it says nothing.
///
/// The keys of the file are the names of these flags with underscores.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Trainer options")]
pub(super) struct Options {
    /// Which device computes
    #[arg(long, value_name = "auto|cpu|libtorch|libtorch-cuda|webgpu|cuda", value_parser = values::accelerator)]
    pub(super) accelerator: Option<Accelerator>,

    /// How many devices each node uses: so many ranks run on it
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::num_ranks)]
    pub(super) devices: Option<usize>,

    /// How many nodes take part
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::num_ranks)]
    pub(super) num_nodes: Option<usize>,

    /// What the ranks are that the program starts itself
    #[arg(long, value_name = "process|thread", value_parser = values::launcher)]
    pub(super) launcher: Option<Launcher>,

    /// How ranks work together
    #[arg(long, value_name = "single|ddp", value_parser = values::strategy)]
    pub(super) strategy: Option<Strategy>,

    /// Let ranks use different parameters in a step
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false", value_parser = values::switch)]
    pub(super) find_unused_parameters: Option<bool>,

    /// When a rank has no batch left in an epoch: end the epoch for all, or let the others go on
    #[arg(long, value_name = "stop|join", value_parser = values::uneven_inputs)]
    pub(super) uneven_inputs: Option<UnevenInputs>,

    /// Send gradients between ranks in a smaller type
    #[arg(long, value_name = "bf16|f16", value_parser = values::compression)]
    pub(super) gradient_compression: Option<GradientCompression>,

    /// The size of the buckets in which gradients are reduced, in MiB
    #[arg(long, allow_hyphen_values = true, value_name = "MIB", value_parser = values::at_least_one)]
    pub(super) bucket_cap_mb: Option<u64>,

    /// In which dtype weights are kept and steps compute
    #[arg(long, value_name = "32-true|64-true|bf16-mixed|16-mixed|bf16-true|16-true", value_parser = values::precision)]
    pub(super) precision: Option<Precision>,

    /// Compute cheap activations again in the backward pass instead of keeping them
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", value_parser = values::switch)]
    pub(super) gradient_checkpointing: Option<bool>,

    /// Stop after this many epochs
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::count)]
    pub(super) max_epochs: Option<u64>,

    /// Train at least this many epochs
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::count)]
    pub(super) min_epochs: Option<u64>,

    /// Stop after exactly this many optimizer updates; takes the place of the program's own number of epochs
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::count)]
    pub(super) max_steps: Option<u64>,

    /// Train for at least this many optimizer updates
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::count)]
    pub(super) min_steps: Option<u64>,

    /// Stop after this much time over all parts of the run
    #[arg(long, allow_hyphen_values = true, value_name = "DD:HH:MM:SS", value_parser = values::seconds)]
    pub(super) max_time: Option<u64>,

    /// How much of the training data an epoch uses: a number of batches or a share such as 0.5
    #[arg(long, allow_hyphen_values = true, value_name = "LIMIT", value_parser = values::limit)]
    pub(super) limit_train_batches: Option<Limit>,

    /// How much of the validation data is used
    #[arg(long, allow_hyphen_values = true, value_name = "LIMIT", value_parser = values::limit)]
    pub(super) limit_val_batches: Option<Limit>,

    /// How much of the test data is used
    #[arg(long, allow_hyphen_values = true, value_name = "LIMIT", value_parser = values::limit)]
    pub(super) limit_test_batches: Option<Limit>,

    /// How much of the prediction data is used
    #[arg(long, allow_hyphen_values = true, value_name = "LIMIT", value_parser = values::limit)]
    pub(super) limit_predict_batches: Option<Limit>,

    /// Train on the first training batches only, the same in every epoch; 0 turns it off
    #[arg(long, allow_hyphen_values = true, value_name = "LIMIT", value_parser = values::limit)]
    pub(super) overfit_batches: Option<Limit>,

    /// Run N batches (1 without a number) of everything, once, without loggers and checkpoints
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", value_parser = values::at_least_one)]
    pub(super) fast_dev_run: Option<u64>,

    /// Validate within an epoch: after a share of it such as 0.25, a number of batches, or a time as DD:HH:MM:SS
    #[arg(long, allow_hyphen_values = true, value_name = "INTERVAL", value_parser = values::val_check_interval)]
    pub(super) val_check_interval: Option<ValCheckInterval>,

    /// Validate in every N-th epoch; 0 counts the batches of the interval over epoch borders
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::count)]
    pub(super) check_val_every_n_epoch: Option<u64>,

    /// Try this many validation batches before the first epoch
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::count)]
    pub(super) num_sanity_val_steps: Option<u64>,

    /// Take the gradients of this many batches together for each optimizer update
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::at_least_one)]
    pub(super) accumulate_grad_batches: Option<u64>,

    /// Clip gradients to this; 0 turns it off
    #[arg(long, allow_hyphen_values = true, value_name = "X", value_parser = values::clip_limit)]
    pub(super) gradient_clip_val: Option<f64>,

    /// Clip the norm of all gradients together, the default, or the value of each element
    #[arg(long, value_name = "norm|value", value_parser = values::clip_algorithm)]
    pub(super) gradient_clip_algorithm: Option<ClipAlgorithm>,

    /// What a loss or gradient that is not finite does: stop with an error, or skip the update
    #[arg(long, value_name = "stop|skip", value_parser = values::non_finite)]
    pub(super) non_finite: Option<NonFinite>,

    /// Name the first parameter whose gradient is not finite; slow
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", value_parser = values::switch)]
    pub(super) detect_anomaly: Option<bool>,

    /// Log the values of every N-th step
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::at_least_one)]
    pub(super) log_every_n_steps: Option<u64>,

    /// The seed of weights, data order, augmentation and steps
    #[arg(long, allow_hyphen_values = true, value_name = "N", value_parser = values::count)]
    pub(super) seed: Option<u64>,

    /// Where runs are written
    #[arg(long, value_name = "DIR")]
    pub(super) default_root_dir: Option<PathBuf>,

    /// The name of the experiment below the root
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,

    /// Go on from a checkpoint: auto (the newest, or a fresh start), last, best, or a path
    #[arg(long, value_name = "auto|last|best|PATH")]
    pub(super) resume: Option<Resume>,

    /// How progress is shown; auto is bars on a terminal and lines elsewhere
    #[arg(long, value_name = "auto|bars|lines|off", value_parser = values::progress)]
    pub(super) progress: Option<ProgressMode>,

    /// Whether progress is shown; false is the same as --progress off
    #[arg(
        long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", value_parser = values::switch,
        conflicts_with = "progress"
    )]
    pub(super) enable_progress_bar: Option<bool>,

    /// Whether checkpoints are written
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", value_parser = values::switch)]
    pub(super) enable_checkpointing: Option<bool>,

    /// Whether the summary of the module is printed
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", value_parser = values::switch)]
    pub(super) enable_model_summary: Option<bool>,

    /// Measure where the time goes: print a table, or write a Chrome trace into a file
    #[arg(long, value_name = "simple|PATH", value_parser = values::profiler)]
    pub(super) profiler: Option<ProfilerChoice>,
}
