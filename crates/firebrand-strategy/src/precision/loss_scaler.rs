use serde::{Deserialize, Serialize};

use crate::Error;

/// How a [`LossScaler`] finds its scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossScalerOptions {
    /// The scale at the beginning; default 65536.
    pub initial_scale: f32,
    /// What the scale is multiplied by after enough good updates in a row; default 2.
    pub growth_factor: f64,
    /// What the scale is multiplied by when a gradient is not finite; default 0.5.
    pub backoff_factor: f64,
    /// How many good updates in a row let the scale grow; default 2000.
    pub growth_interval: u32,
    /// Below this training stops, since gradients that overflow even so come from something else; default 1/1024.
    pub min_scale: f32,
    /// The scale does not grow beyond this; default the largest finite float32.
    pub max_scale: f32,
}

impl Default for LossScalerOptions {
    fn default() -> Self {
        Self {
            initial_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            min_scale: 1.0 / 1024.0,
            max_scale: f32::MAX,
        }
    }
}

impl LossScalerOptions {
    /// What is wrong with the options, and what is right.
    ///
    /// # Errors
    ///
    /// The first option that is out of its range, with its value.
    pub fn check(&self) -> Result<(), String> {
        let Self {
            initial_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            min_scale,
            max_scale,
        } = *self;
        if !(min_scale.is_normal() && min_scale > 0.0 && min_scale <= max_scale && max_scale.is_finite()) {
            return Err(format!(
                "min_scale {min_scale} and max_scale {max_scale} must be finite, above 0 and in this order"
            ));
        }
        if !(min_scale..=max_scale).contains(&initial_scale) {
            return Err(format!(
                "initial_scale {initial_scale} must lie between min_scale {min_scale} and max_scale {max_scale}"
            ));
        }
        if !(growth_factor > 1.0 && growth_factor.is_finite()) {
            return Err(format!(
                "growth_factor {growth_factor} must be above 1, such as 2"
            ));
        }
        if !(backoff_factor > 0.0 && backoff_factor < 1.0) {
            return Err(format!(
                "backoff_factor {backoff_factor} must lie between 0 and 1, such as 0.5"
            ));
        }
        if growth_interval == 0 {
            return Err("growth_interval 0 must be at least 1 update, such as 2000".to_owned());
        }
        Ok(())
    }
}

/// What a checkpoint keeps of a [`LossScaler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossScalerState {
    /// The bits of the scale, a float32.
    pub scale_bits: u32,
    /// The good updates in a row since the scale last changed.
    pub good_updates: u32,
}

/// Finds a factor for the loss with which small gradients do not vanish in float16 and large ones do not overflow: it shrinks
/// at every update with a gradient that is not finite, and grows after many good ones.
///
/// The rule and its defaults are those of PyTorch's `torch.amp.GradScaler`.
///
/// ```
/// use firebrand_strategy::{LossScaler, LossScalerOptions};
/// let mut scaler = LossScaler::new(LossScalerOptions::default())?;
/// // The loss is multiplied by the scale before its backward pass, and the gradients are divided by it after.
/// assert_eq!(scaler.scale(), 65536.0);
/// scaler.update(false)?;
/// assert_eq!(scaler.scale(), 32768.0);
/// # Ok::<(), firebrand_strategy::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    options: LossScalerOptions,
    scale: f32,
    good_updates: u32,
}

impl LossScaler {
    /// A scaler at the beginning.
    ///
    /// # Errors
    ///
    /// [`Error::LossScaler`] if an option is out of its range.
    pub fn new(options: LossScalerOptions) -> Result<Self, Error> {
        options.check().map_err(|reason| Error::LossScaler { reason })?;
        Ok(Self {
            options,
            scale: options.initial_scale,
            good_updates: 0,
        })
    }

    /// What the loss is multiplied by before its backward pass.
    pub fn scale(&self) -> f64 {
        f64::from(self.scale)
    }

    /// The good updates in a row since the scale last changed.
    pub fn good_updates(&self) -> u32 {
        self.good_updates
    }

    /// Takes notice of an update: whether every gradient, on every rank, was finite.
    ///
    /// # Errors
    ///
    /// [`Error::LossScaleTooSmall`] if gradients overflow although the scale has reached its minimum; the scale stays.
    pub fn update(&mut self, finite: bool) -> Result<(), Error> {
        // The scale is a float32 and the factors are float64, as in PyTorch, so that both agree for every factor.
        let times = |factor: f64| (f64::from(self.scale) * factor) as f32;
        if !finite {
            self.good_updates = 0;
            let smaller = times(self.options.backoff_factor);
            if smaller < self.options.min_scale {
                return Err(Error::LossScaleTooSmall {
                    scale: self.scale,
                    min_scale: self.options.min_scale,
                });
            }
            self.scale = smaller;
            return Ok(());
        }
        self.good_updates += 1;
        if self.good_updates >= self.options.growth_interval {
            self.good_updates = 0;
            let larger = times(self.options.growth_factor);
            if larger <= self.options.max_scale {
                self.scale = larger;
            }
        }
        Ok(())
    }

    /// What a checkpoint keeps.
    pub fn state(&self) -> LossScalerState {
        LossScalerState {
            scale_bits: self.scale.to_bits(),
            good_updates: self.good_updates,
        }
    }

    /// Takes a state over.
    ///
    /// # Errors
    ///
    /// [`Error::LossScaler`] if its scale is outside the limits of this scaler.
    pub fn load_state(&mut self, state: LossScalerState) -> Result<(), Error> {
        let scale = f32::from_bits(state.scale_bits);
        let (min, max) = (self.options.min_scale, self.options.max_scale);
        if !(min..=max).contains(&scale) {
            return Err(Error::LossScaler {
                reason: format!(
                    "the checkpoint's scale {scale} does not lie between min_scale {min} and max_scale {max}"
                ),
            });
        }
        self.scale = scale;
        self.good_updates = state.good_updates;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn scaler(options: LossScalerOptions) -> LossScaler {
        LossScaler::new(options).unwrap()
    }

    #[test]
    fn grows_after_good_updates_in_a_row_and_backs_off_at_a_bad_one() {
        let mut scaler = scaler(LossScalerOptions {
            initial_scale: 8.0,
            growth_interval: 3,
            ..LossScalerOptions::default()
        });
        for (finite, scale, good) in [
            (true, 8.0, 1),
            (true, 8.0, 2),
            (true, 16.0, 0),
            (true, 16.0, 1),
            (false, 8.0, 0),
            (false, 4.0, 0),
            (true, 4.0, 1),
            (true, 4.0, 2),
            (false, 2.0, 0),
            (true, 2.0, 1),
            (true, 2.0, 2),
            (true, 4.0, 0),
        ] {
            scaler.update(finite).unwrap();
            assert_eq!((scaler.scale(), scaler.good_updates()), (scale, good));
        }
    }

    #[test]
    fn stays_at_its_ceiling_and_stops_at_its_floor() {
        let mut scaler = scaler(LossScalerOptions {
            initial_scale: 4.0,
            growth_interval: 1,
            min_scale: 2.0,
            max_scale: 16.0,
            ..LossScalerOptions::default()
        });
        for scale in [8.0, 16.0, 16.0, 16.0] {
            scaler.update(true).unwrap();
            assert_eq!(scaler.scale(), scale);
        }
        for scale in [8.0, 4.0, 2.0] {
            scaler.update(false).unwrap();
            assert_eq!(scaler.scale(), scale);
        }
        let error = scaler.update(false).unwrap_err().to_string();
        assert!(error.contains('2') && error.contains("bf16-mixed"), "{error}");
        assert_eq!(scaler.scale(), 2.0);
    }

    #[test]
    fn never_becomes_infinite() {
        let mut scaler = scaler(LossScalerOptions {
            growth_interval: 1,
            ..LossScalerOptions::default()
        });
        for _ in 0..300 {
            scaler.update(true).unwrap();
        }
        assert_eq!(scaler.scale(), 127f64.exp2());
    }

    #[test]
    fn refuses_options_and_states_that_cannot_work() {
        let with = |change: fn(&mut LossScalerOptions)| {
            let mut options = LossScalerOptions::default();
            change(&mut options);
            LossScaler::new(options).unwrap_err().to_string()
        };
        assert!(with(|o| o.initial_scale = 0.0).contains("initial_scale 0"));
        assert!(with(|o| o.initial_scale = f32::INFINITY).contains("initial_scale inf"));
        assert!(with(|o| o.growth_factor = 1.0).contains("growth_factor 1"));
        assert!(with(|o| o.growth_factor = f64::NAN).contains("growth_factor NaN"));
        assert!(with(|o| o.backoff_factor = 1.0).contains("backoff_factor 1"));
        assert!(with(|o| o.growth_interval = 0).contains("growth_interval 0"));
        assert!(with(|o| o.min_scale = -1.0).contains("min_scale -1"));
        assert!(with(|o| o.max_scale = f32::NAN).contains("max_scale NaN"));
        let state = LossScalerState {
            scale_bits: f32::NAN.to_bits(),
            good_updates: 0,
        };
        let error = scaler(LossScalerOptions::default())
            .load_state(state)
            .unwrap_err();
        assert!(error.to_string().contains("scale NaN"), "{error}");
    }

    #[test]
    fn a_state_goes_on_where_it_was() {
        let options = LossScalerOptions {
            growth_interval: 4,
            ..LossScalerOptions::default()
        };
        let mut first = scaler(options);
        let sequence = [true, false, true, true, true];
        sequence.iter().for_each(|finite| first.update(*finite).unwrap());
        let mut second = scaler(options);
        second.load_state(first.state()).unwrap();
        assert_eq!(first, second);
    }
}
