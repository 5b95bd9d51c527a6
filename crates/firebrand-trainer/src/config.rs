use std::path::PathBuf;

use firebrand_core::Stage;
use firebrand_strategy::{
    DdpOptions, GradientClip, GradientCompression, LossScalerOptions, NonFinite, Precision, PrecisionPolicy,
};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::accelerator::Accelerator;
use crate::checkpoint::Resume;
use crate::options::{Launcher, Limit, Strategy, UnevenInputs, ValCheckInterval};
use crate::progress::ProgressMode;

/// The place from which a run goes on, as the text that the command line takes.
mod resume_text {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::checkpoint::Resume;

    pub(super) fn serialize<S: Serializer>(
        resume: &Option<Resume>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match resume {
            Some(resume) => serializer.collect_str(resume),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Resume>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(|text| Resume::from(text.as_str())))
    }
}

/// The resolved options of a trainer. [`Trainer::builder`](crate::Trainer::builder) makes one; a configuration file has the
/// same keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TrainerConfig {
    /// Which device computes; default `auto`.
    pub accelerator: Accelerator,
    /// How many devices, and so ranks, each node uses; default 1, or what the launcher started.
    pub devices: Option<usize>,
    /// How many nodes take part; default 1, or what the launcher started.
    pub num_nodes: Option<usize>,
    /// What the ranks are that the trainer starts itself; default `process`.
    pub launcher: Launcher,
    /// How ranks work together; default `single`, or `ddp` where there are several.
    pub strategy: Option<Strategy>,
    /// Whether ranks may use different parameters in a step; see [`DdpOptions::find_unused_parameters`]. Default no.
    pub find_unused_parameters: bool,
    /// What happens when a rank has no batch left in an epoch and others have; default `stop`.
    pub uneven_inputs: UnevenInputs,
    /// A smaller type for gradients between ranks; default none.
    pub gradient_compression: Option<GradientCompression>,
    /// The size of the buckets in which gradients are reduced, in MiB; default 25.
    pub bucket_cap_mb: u64,
    /// In which dtype weights are kept and steps compute; default `32-true`.
    pub precision: Precision,
    /// The paths of parameters that steps use in the dtype in which they are kept, `*` standing for anything; default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keep_full_precision: Vec<String>,
    /// How the loss is scaled; default as [`LossScalerOptions`] say in `16-mixed`, and not at all otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scaler: Option<LossScalerOptions>,
    /// Compute cheap activations again in the backward pass instead of keeping them; default no.
    pub gradient_checkpointing: bool,
    /// The limit of epochs; default 1000 unless there is a limit of steps or time.
    pub max_epochs: Option<u64>,
    /// The number of epochs before which nothing but an error or a signal stops the run.
    pub min_epochs: Option<u64>,
    /// The exact number of optimizer updates.
    pub max_steps: Option<u64>,
    /// The number of updates before which nothing but an error or a signal stops the run.
    pub min_steps: Option<u64>,
    /// The limit of time over all parts of the run, in seconds.
    pub max_time: Option<u64>,
    /// How much of the training data an epoch uses; default all.
    pub limit_train_batches: Limit,
    /// How much of the validation data is used; default all.
    pub limit_val_batches: Limit,
    /// How much of the test data is used; default all.
    pub limit_test_batches: Limit,
    /// How much of the prediction data is used; default all.
    pub limit_predict_batches: Limit,
    /// Train on the first training batches only, the same in every epoch and unshuffled, and validate on as many.
    pub overfit_batches: Option<Limit>,
    /// Run this many batches of everything, once, without loggers and checkpoints.
    pub fast_dev_run: Option<u64>,
    /// How often the validation runs within an epoch; default once, at its end.
    pub val_check_interval: ValCheckInterval,
    /// Validate in every n-th epoch; default 1. `0` counts `val_check_interval` in batches over epoch borders.
    pub check_val_every_n_epoch: u64,
    /// The number of validation batches that are tried before the first epoch; default 2.
    pub num_sanity_val_steps: u64,
    /// The number of micro-batches per update; default 1.
    pub accumulate_grad_batches: u64,
    /// How gradients are kept from exploding; default not at all.
    pub gradient_clip: Option<GradientClip>,
    /// What a loss or gradient that is not finite does; default `stop`.
    pub non_finite: NonFinite,
    /// Check every gradient of every micro-batch, and name the first parameter whose gradient is not finite; slow.
    pub detect_anomaly: bool,
    /// Log step values at every n-th update; default 50.
    pub log_every_n_steps: u64,
    /// The seed of weights, data order, augmentation and steps; default 42.
    pub seed: u64,
    /// Where runs are written; default `runs`.
    pub default_root_dir: PathBuf,
    /// The name of the experiment below it; default the program's.
    pub name: String,
    /// From where the run goes on; default nowhere.
    #[serde(with = "resume_text", skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// How progress is shown; default bars on a terminal and lines elsewhere.
    pub progress: ProgressMode,
    /// Whether checkpoints are written; default yes: the last, if no `ModelCheckpoint` says otherwise.
    pub enable_checkpointing: bool,
    /// Whether the summary of the module is printed; default yes.
    pub enable_model_summary: bool,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            accelerator: Accelerator::Auto,
            devices: None,
            num_nodes: None,
            launcher: Launcher::Process,
            strategy: None,
            find_unused_parameters: false,
            uneven_inputs: UnevenInputs::Stop,
            gradient_compression: None,
            bucket_cap_mb: 25,
            precision: Precision::F32,
            keep_full_precision: Vec::new(),
            loss_scaler: None,
            gradient_checkpointing: false,
            max_epochs: None,
            min_epochs: None,
            max_steps: None,
            min_steps: None,
            max_time: None,
            limit_train_batches: Limit::ALL,
            limit_val_batches: Limit::ALL,
            limit_test_batches: Limit::ALL,
            limit_predict_batches: Limit::ALL,
            overfit_batches: None,
            fast_dev_run: None,
            val_check_interval: ValCheckInterval::Fraction(1.0),
            check_val_every_n_epoch: 1,
            num_sanity_val_steps: 2,
            accumulate_grad_batches: 1,
            gradient_clip: None,
            non_finite: NonFinite::Stop,
            detect_anomaly: false,
            log_every_n_steps: 50,
            seed: 42,
            default_root_dir: "runs".into(),
            name: program_name(),
            resume: None,
            progress: ProgressMode::Auto,
            enable_checkpointing: true,
            enable_model_summary: true,
        }
    }
}

/// The name of the running program, without folder and extension.
fn program_name() -> String {
    let program = std::env::args_os().next().map(PathBuf::from);
    program
        .as_deref()
        .and_then(|path| path.file_stem())
        .map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned())
}

impl TrainerConfig {
    /// The precision, and what is left out of it.
    pub(crate) fn precision_policy(&self) -> PrecisionPolicy {
        PrecisionPolicy {
            precision: self.precision,
            keep_full: self
                .keep_full_precision
                .iter()
                .map(|path| path.as_str().into())
                .collect(),
        }
    }

    /// The limit of epochs that is in force.
    pub(crate) fn epoch_limit(&self) -> Option<u64> {
        match (self.max_epochs, self.max_steps, self.max_time) {
            (Some(epochs), _, _) => Some(epochs),
            (None, None, None) => Some(1000),
            _ => None,
        }
    }

    /// The options of data parallel training.
    pub(crate) fn ddp(&self) -> DdpOptions {
        DdpOptions {
            bucket_bytes: usize::try_from(self.bucket_cap_mb << 20).unwrap_or(usize::MAX),
            find_unused_parameters: self.find_unused_parameters,
            compression: self.gradient_compression,
            ..DdpOptions::default()
        }
    }

    /// How much of a stage's data is used.
    pub(crate) fn limit(&self, stage: Stage) -> Limit {
        match (self.fast_dev_run, stage) {
            (Some(batches), _) => Limit::Batches(batches),
            (None, Stage::Train) => self.limit_train_batches,
            (None, Stage::Validate) => self.limit_val_batches,
            (None, Stage::Test) => self.limit_test_batches,
            (None, Stage::Predict) => self.limit_predict_batches,
        }
    }

    /// The same within a fit, where `overfit_batches` holds for training and validation.
    pub(crate) fn limit_in_fit(&self, stage: Stage) -> Limit {
        self.overfit().unwrap_or_else(|| self.limit(stage))
    }

    /// The limit of `overfit_batches`, which a `fast_dev_run` replaces.
    pub(crate) fn overfit(&self) -> Option<Limit> {
        self.overfit_batches.filter(|_| self.fast_dev_run.is_none())
    }

    /// Checks every option.
    ///
    /// # Errors
    ///
    /// The first option that cannot be, with its value and what it takes.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fail = |field, value: String, expected| {
            Err(Error::Option {
                field,
                value,
                expected,
            })
        };
        if self.accumulate_grad_batches == 0 {
            return fail(
                "accumulate_grad_batches",
                "0".into(),
                "a number of micro-batches of at least 1",
            );
        }
        if self.log_every_n_steps == 0 {
            return fail(
                "log_every_n_steps",
                "0".into(),
                "a number of updates of at least 1",
            );
        }
        if self.fast_dev_run == Some(0) {
            return fail("fast_dev_run", "0".into(), "a number of batches of at least 1");
        }
        if self.name.is_empty() || self.name.contains(['/', '\\']) || self.name == ".." || self.name == "." {
            return fail(
                "name",
                format!("'{}'", self.name),
                "a folder name: not empty, without '/', and neither '.' nor '..'",
            );
        }
        let limits = [
            ("limit_train_batches", Some(self.limit_train_batches)),
            ("limit_val_batches", Some(self.limit_val_batches)),
            ("limit_test_batches", Some(self.limit_test_batches)),
            ("limit_predict_batches", Some(self.limit_predict_batches)),
            ("overfit_batches", self.overfit_batches),
        ];
        for (field, limit) in limits {
            if let Some(Limit::Fraction(share)) = limit
                && !(0.0..=1.0).contains(&share)
            {
                return fail(
                    field,
                    share.to_string(),
                    "a number of batches, or a share of all from 0.0 to 1.0",
                );
            }
        }
        match self.val_check_interval {
            ValCheckInterval::Fraction(share) if !(share > 0.0 && share <= 1.0) => {
                return fail(
                    "val_check_interval",
                    share.to_string(),
                    "a share of the epoch above 0 and up to 1.0",
                );
            }
            ValCheckInterval::Batches(0) => {
                return fail(
                    "val_check_interval",
                    "0".into(),
                    "a number of batches of at least 1",
                );
            }
            ValCheckInterval::Fraction(share) if self.check_val_every_n_epoch == 0 && share < 1.0 => {
                return fail(
                    "val_check_interval",
                    share.to_string(),
                    "a number of batches or a time when check_val_every_n_epoch is 0",
                );
            }
            _ => {}
        }
        if let Some(GradientClip::Norm(limit) | GradientClip::Value(limit)) = self.gradient_clip
            && !(limit.is_finite() && limit > 0.0)
        {
            return fail("gradient_clip", limit.to_string(), "a finite number above 0");
        }
        let pairs = [
            (
                "min_epochs",
                self.min_epochs,
                self.max_epochs,
                "at most max_epochs",
            ),
            ("min_steps", self.min_steps, self.max_steps, "at most max_steps"),
        ];
        for (field, minimum, maximum, expected) in pairs {
            if let (Some(minimum), Some(maximum)) = (minimum, maximum)
                && minimum > maximum
            {
                return fail(
                    field,
                    format!("{minimum} (with a maximum of {maximum})"),
                    expected,
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_configuration_survives_toml() {
        let config = TrainerConfig {
            val_check_interval: ValCheckInterval::Time(Duration::from_secs(90)),
            gradient_clip: Some(GradientClip::Norm(1.0)),
            resume: Some(Resume::Best),
            limit_val_batches: Limit::Batches(3),
            ..TrainerConfig::default()
        };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<TrainerConfig>(&text).unwrap(), config);
    }

    #[test]
    fn impossible_options_are_named() {
        let config = TrainerConfig {
            limit_val_batches: Limit::Fraction(1.5),
            ..TrainerConfig::default()
        };
        let text = config.check().unwrap_err().to_string();
        assert!(
            text.contains("limit_val_batches") && text.contains("1.5"),
            "{text}"
        );
    }
}
