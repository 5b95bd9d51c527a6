use firebrand_core::{AnyTensor, ParamInfo, ParamVisitor, PathPattern, Result};
use firebrand_strategy::Update;

use super::{Callback, Commands, View};

/// Logs the distribution of every parameter, as `weights/<path>`, to loggers that can show one, such as TensorBoard.
///
/// It copies the parameters to the host, so it is not for every step.
#[must_use]
#[derive(Clone, Debug)]
pub struct WeightHistograms {
    every_n_steps: u64,
    paths: Vec<PathPattern>,
}

impl WeightHistograms {
    /// All parameters, every `steps` updates.
    pub fn every_n_steps(steps: u64) -> Self {
        Self {
            every_n_steps: steps.max(1),
            paths: Vec::new(),
        }
    }

    /// Only the parameters that match one of the patterns that are given.
    pub fn paths(mut self, pattern: impl Into<PathPattern>) -> Self {
        self.paths.push(pattern.into());
        self
    }
}

impl Callback for WeightHistograms {
    fn name(&self) -> String {
        "WeightHistograms".to_owned()
    }

    fn on_train_batch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let stepped = matches!(view.update, Some(Update::Stepped { .. }));
        if stepped && view.global_step.is_multiple_of(self.every_n_steps) {
            view.module.visit_params(&mut Visit {
                paths: &self.paths,
                commands,
            });
        }
        Ok(())
    }
}

struct Visit<'a> {
    paths: &'a [PathPattern],
    commands: &'a mut Commands,
}

impl ParamVisitor for Visit<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        let named = self.paths.is_empty() || self.paths.iter().any(|pattern| pattern.matches(info.path));
        named && info.float && info.initialized
    }

    fn visit(&mut self, info: &ParamInfo<'_>, value: AnyTensor, _requires_grad: bool) {
        let values = value.into_data().iter::<f64>().collect();
        self.commands
            .log_histogram(format!("weights/{}", info.path), values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callbacks::test_fixture::{Fixture, commands, stepped};

    #[test]
    fn the_parameters_that_are_named_are_logged_when_they_are_due() {
        let mut fixture = Fixture::new();
        let mut callback = WeightHistograms::every_n_steps(4);
        for (step, update, due) in [
            (4, Some(stepped(1.0)), true),
            (5, Some(stepped(1.0)), false),
            (4, None, false),
        ] {
            (fixture.global_step, fixture.update) = (step, update);
            let commands = commands(|c| callback.on_train_batch_end(&fixture.view(), c));
            assert_eq!(!commands.histograms.is_empty(), due, "{step}");
            for (name, values) in &commands.histograms {
                assert!(name.starts_with("weights/") && !values.is_empty(), "{name}");
            }
        }
        (fixture.global_step, fixture.update) = (4, Some(stepped(1.0)));
        let mut none = WeightHistograms::every_n_steps(4).paths("nothing.*");
        let commands = commands(|c| none.on_train_batch_end(&fixture.view(), c));
        assert!(commands.histograms.is_empty());
    }
}
