use firebrand_strategy::GradientClip;

use super::options::Options;
use super::values::ClipAlgorithm;
use crate::progress::ProgressMode;
use crate::{Error, TrainerConfig};

impl Options {
    /// Puts what was said in the place of what a configuration has, but for clipping, which [`clip`] resolves.
    pub(super) fn apply(&self, config: &mut TrainerConfig) {
        // The one says how long to train in terms of the other: 2000 updates are 2000 updates, however many epochs there were
        // to be without that.
        if self.max_steps.is_some() && self.max_epochs.is_none() {
            config.max_epochs = None;
        }
        if self.max_epochs.is_some() && self.max_steps.is_none() {
            config.max_steps = None;
        }
        for (to, from) in [
            (&mut config.max_epochs, self.max_epochs),
            (&mut config.min_epochs, self.min_epochs),
            (&mut config.max_steps, self.max_steps),
            (&mut config.min_steps, self.min_steps),
            (&mut config.max_time, self.max_time),
            (&mut config.fast_dev_run, self.fast_dev_run),
        ] {
            *to = from.or(*to);
        }
        set(&mut config.accelerator, &self.accelerator);
        config.devices = self.devices.or(config.devices);
        config.num_nodes = self.num_nodes.or(config.num_nodes);
        set(&mut config.launcher, &self.launcher);
        config.strategy = self.strategy.or(config.strategy);
        set(&mut config.find_unused_parameters, &self.find_unused_parameters);
        set(&mut config.uneven_inputs, &self.uneven_inputs);
        config.gradient_compression = self.gradient_compression.or(config.gradient_compression);
        set(&mut config.bucket_cap_mb, &self.bucket_cap_mb);
        set(&mut config.precision, &self.precision);
        set(&mut config.gradient_checkpointing, &self.gradient_checkpointing);
        set(&mut config.limit_train_batches, &self.limit_train_batches);
        set(&mut config.limit_val_batches, &self.limit_val_batches);
        set(&mut config.limit_test_batches, &self.limit_test_batches);
        set(&mut config.limit_predict_batches, &self.limit_predict_batches);
        if let Some(limit) = self.overfit_batches {
            config.overfit_batches = Some(limit).filter(|limit| !limit.is_none());
        }
        set(&mut config.val_check_interval, &self.val_check_interval);
        set(&mut config.check_val_every_n_epoch, &self.check_val_every_n_epoch);
        set(&mut config.num_sanity_val_steps, &self.num_sanity_val_steps);
        set(&mut config.accumulate_grad_batches, &self.accumulate_grad_batches);
        set(&mut config.non_finite, &self.non_finite);
        set(&mut config.detect_anomaly, &self.detect_anomaly);
        set(&mut config.log_every_n_steps, &self.log_every_n_steps);
        set(&mut config.seed, &self.seed);
        set(&mut config.default_root_dir, &self.default_root_dir);
        set(&mut config.name, &self.name);
        if self.resume.is_some() {
            config.resume.clone_from(&self.resume);
        }
        set(&mut config.progress, &self.progress);
        match self.enable_progress_bar {
            Some(false) => config.progress = ProgressMode::Off,
            Some(true) if config.progress == ProgressMode::Off => config.progress = ProgressMode::Auto,
            _ => {}
        }
        set(&mut config.enable_checkpointing, &self.enable_checkpointing);
        set(&mut config.enable_model_summary, &self.enable_model_summary);
    }
}

fn set<T: Clone>(to: &mut T, from: &Option<T>) {
    if let Some(from) = from {
        to.clone_from(from);
    }
}

/// The clipping that layers of options give together, the strongest first: its limit and its algorithm may stand in different
/// layers.
///
/// # Errors
///
/// If there is an algorithm and nothing that it could clip to.
pub(super) fn clip(
    layers: [&Options; 2],
    default: Option<GradientClip>,
) -> Result<Option<GradientClip>, Error> {
    let limit = layers.iter().find_map(|options| options.gradient_clip_val);
    let algorithm = layers.iter().find_map(|options| options.gradient_clip_algorithm);
    let (default_limit, default_algorithm) = match default {
        Some(GradientClip::Norm(limit)) => (Some(limit), ClipAlgorithm::Norm),
        Some(GradientClip::Value(limit)) => (Some(limit), ClipAlgorithm::Value),
        None => (None, ClipAlgorithm::Norm),
        // Another kind of clipping, which these options cannot change in part.
        Some(other) if limit.is_none() => return Ok(Some(other)),
        Some(_) => (None, ClipAlgorithm::Norm),
    };
    match (limit.or(default_limit), algorithm.unwrap_or(default_algorithm)) {
        (Some(0.0), _) => Ok(None),
        (Some(limit), ClipAlgorithm::Norm) => Ok(Some(GradientClip::Norm(limit))),
        (Some(limit), ClipAlgorithm::Value) => Ok(Some(GradientClip::Value(limit))),
        (None, _) if algorithm.is_some() => Err(Error::Contradiction(
            "gradient_clip_algorithm says how to clip, and nothing says to what: add gradient_clip_val"
                .to_owned(),
        )),
        (None, _) => Ok(None),
    }
}
