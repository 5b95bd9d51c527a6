use std::collections::BTreeMap;

use burn::tensor::TensorData;
use firebrand_core::{PathPattern, Result};
use serde::{Deserialize, Serialize};

use super::state::read_state;
use super::{Callback, CallbackError, Commands, View};

/// Trains some parameters only from an epoch on, as for finetuning: first the head alone, then the backbone too.
///
/// ```
/// use firebrand_trainer::callbacks::Unfreeze;
///
/// let finetuning = Unfreeze::at_epoch(5, ["backbone"]);
/// ```
#[must_use]
#[derive(Debug)]
pub struct Unfreeze {
    at_epoch: u64,
    paths: Vec<PathPattern>,
    restored: bool,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    done: bool,
}

impl Unfreeze {
    /// Freezes the parameters that match at the start of the fit, and trains them from the start of an epoch, counted from 0,
    /// on.
    pub fn at_epoch<P: Into<PathPattern>>(epoch: u64, paths: impl IntoIterator<Item = P>) -> Self {
        Self {
            at_epoch: epoch,
            paths: paths.into_iter().map(Into::into).collect(),
            restored: false,
            state: State::default(),
        }
    }
}

impl Callback for Unfreeze {
    fn name(&self) -> String {
        let paths: Vec<String> = self.paths.iter().map(ToString::to_string).collect();
        format!("Unfreeze({} at epoch {})", paths.join(", "), self.at_epoch)
    }

    fn on_fit_start(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if self.paths.is_empty() {
            let expected = "at least one path of parameters";
            return Err(CallbackError::Option {
                option: "paths",
                value: "an empty list".into(),
                expected,
            }
            .into());
        }
        if !std::mem::take(&mut self.restored) {
            self.state = State::default();
        }
        for paths in &self.paths {
            view.table.matching(paths)?;
            if !self.state.done && view.epoch < self.at_epoch {
                commands.freeze(paths.clone());
            }
        }
        Ok(())
    }

    fn on_train_epoch_start(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if view.epoch >= self.at_epoch && !std::mem::replace(&mut self.state.done, true) {
            for paths in &self.paths {
                commands.unfreeze(paths.clone());
            }
        }
        Ok(())
    }

    fn state(&self) -> Option<serde_json::Value> {
        serde_json::to_value(&self.state).ok()
    }

    fn load_state(&mut self, state: &serde_json::Value, _: BTreeMap<String, TensorData>) -> Result<()> {
        self.state = read_state(&self.name(), state)?;
        self.restored = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callbacks::test_fixture::{Fixture, commands};

    #[test]
    fn parameters_are_frozen_until_their_epoch_and_freed_once() {
        let mut fixture = Fixture::new();
        let mut unfreeze = Unfreeze::at_epoch(2, ["body", "norm.*"]);
        let start = commands(|commands| unfreeze.on_fit_start(&fixture.view(), commands));
        assert_eq!(start.freeze, [("body".into(), false), ("norm.*".into(), false)]);
        for (epoch, freed) in [(0, 0), (1, 0), (2, 2), (3, 0)] {
            fixture.epoch = epoch;
            let start = commands(|commands| unfreeze.on_train_epoch_start(&fixture.view(), commands));
            assert_eq!(
                start.freeze.iter().filter(|(_, trained)| *trained).count(),
                freed,
                "{epoch}"
            );
        }

        let text = unfreeze.state().unwrap().to_string();
        let mut resumed = Unfreeze::at_epoch(2, ["body"]);
        resumed
            .load_state(&serde_json::from_str(&text).unwrap(), BTreeMap::new())
            .unwrap();
        assert!(
            commands(|commands| resumed.on_fit_start(&fixture.view(), commands))
                .freeze
                .is_empty()
        );
        assert!(
            commands(|commands| resumed.on_train_epoch_start(&fixture.view(), commands))
                .freeze
                .is_empty()
        );
    }

    #[test]
    fn paths_that_match_nothing_are_errors() {
        let mut fixture = Fixture::new();
        let error = Unfreeze::at_epoch(2, ["backbone"])
            .on_fit_start(&fixture.view(), &mut Commands::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("'backbone'") && error.contains("body.weight"),
            "{error}"
        );
        let none: [&str; 0] = [];
        assert!(
            Unfreeze::at_epoch(2, none)
                .on_fit_start(&fixture.view(), &mut Commands::default())
                .is_err()
        );
    }
}
