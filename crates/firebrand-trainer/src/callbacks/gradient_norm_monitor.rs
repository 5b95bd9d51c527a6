use firebrand_core::Result;
use firebrand_strategy::Update;

use super::{Callback, Commands, View};

/// Logs `grad_norm`: the norm over all gradients of an update before clipping, at the steps at which step values are logged.
#[must_use]
#[derive(Clone, Copy, Debug, Default)]
pub struct GradientNormMonitor;

impl GradientNormMonitor {
    /// A monitor; it has no options and costs nothing, since every update computes the norm. Manual optimization has no norm.
    pub fn new() -> Self {
        Self
    }
}

impl Callback for GradientNormMonitor {
    fn name(&self) -> String {
        "GradientNormMonitor".to_owned()
    }

    fn on_train_batch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if let Some(Update::Stepped { gradient_norm }) = view.update
            && !gradient_norm.is_nan()
            && view.global_step.is_multiple_of(view.config.log_every_n_steps)
        {
            commands.log("grad_norm", gradient_norm);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callbacks::test_fixture::{Fixture, commands, stepped};

    #[test]
    fn the_norm_is_logged_when_step_values_are() {
        let mut fixture = Fixture::new();
        fixture.config.log_every_n_steps = 3;
        for (step, update, expected) in [
            (3, Some(stepped(1.5)), Some(1.5)),
            (4, Some(stepped(1.5)), None),
            (3, Some(Update::Skipped), None),
            (3, None, None),
            (3, Some(stepped(f64::NAN)), None),
        ] {
            (fixture.global_step, fixture.update) = (step, update);
            let commands = commands(|c| GradientNormMonitor::new().on_train_batch_end(&fixture.view(), c));
            let value = commands.log.first().map(|(name, value)| (name.as_str(), *value));
            assert_eq!(
                value,
                expected.map(|value| ("grad_norm", value)),
                "{step} {update:?}"
            );
        }
    }
}
