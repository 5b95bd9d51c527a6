use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::TensorData;
use firebrand_core::Result;
use firebrand_strategy::Update;

use super::file_name::FileName;
use super::kept::Entry;
use super::{ModelCheckpoint, State};
use crate::callbacks::state::read_state;
use crate::callbacks::{Callback, CheckpointRequest, Commands, View};

impl ModelCheckpoint {
    fn epoch_is_due(&self, view: &View<'_>) -> bool {
        let only_others = self.every_n_train_steps.is_some() || self.train_time_interval.is_some();
        let every = self.every_n_epochs.unwrap_or(if only_others { 0 } else { 1 });
        every > 0 && (view.epoch + 1).is_multiple_of(every)
    }

    /// Asks for a checkpoint, with the value by which it is ranked; with a monitor and no value it is the last at most.
    fn save(&mut self, view: &View<'_>, value: Option<f64>, commands: &mut Commands) {
        let (Some(_), Some(file_name)) = (view.run, &self.file_name) else {
            return;
        };
        let step = view.global_step;
        let name = file_name.format(view.epoch, step, view.metrics);
        let entry = Entry {
            name: name.clone(),
            global_step: step,
            value,
            written: false,
        };
        let kept = &mut self.state.kept;
        let ranked = value.is_some() || self.monitor.is_none();
        let top = ranked && !kept.has_step(step) && kept.admits(self.top_k, self.mode, &entry);
        let last = self.save_last
            && self
                .state
                .newest
                .as_ref()
                .is_none_or(|(newest, _)| *newest != step);
        if !top && !last {
            return;
        }
        let change = kept.add(entry, top.then_some((self.top_k, self.mode)), self.save_last);
        self.state.newest = Some((step, name.clone()));
        commands.checkpoint(CheckpointRequest {
            name: Some(name),
            last: self.save_last,
            best: change.best,
            remove: change
                .remove
                .into_iter()
                .map(|name| self.directory.join(name))
                .collect(),
        });
    }
}

impl Callback for ModelCheckpoint {
    fn name(&self) -> String {
        let metric = self.monitor.as_ref().map(|monitor| monitor.metric.as_str());
        let steps = self.every_n_train_steps.map(|_| "steps");
        let time = self.train_time_interval.map(|_| "time");
        let parts: Vec<&str> = metric.into_iter().chain(steps).chain(time).collect();
        if parts.is_empty() {
            "ModelCheckpoint".to_owned()
        } else {
            format!("ModelCheckpoint({})", parts.join(", "))
        }
    }

    fn saves_checkpoints(&self) -> bool {
        true
    }

    fn kept_checkpoints(&self) -> Vec<String> {
        self.state.kept.names()
    }

    fn on_fit_start(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        self.check()?;
        self.file_name = Some(FileName::parse(&self.template)?);
        if !std::mem::take(&mut self.restored) {
            self.state = State::default();
        }
        if let Some(run) = view.run {
            self.directory = run.checkpoints();
            self.state.kept.settle(|name| self.directory.join(name).is_dir());
        }
        if let Some(monitor) = &mut self.monitor {
            monitor.on_train_epoch_end = self.save_on_train_epoch_end;
            monitor.on_fit_start();
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if !matches!(view.update, Some(Update::Stepped { .. })) {
            return Ok(());
        }
        let step_is_due = self
            .every_n_train_steps
            .is_some_and(|steps| view.global_step.is_multiple_of(steps));
        let since = view.elapsed.saturating_sub(self.state.fired_at);
        let time_is_due = self.train_time_interval.is_some_and(|interval| since >= interval);
        if time_is_due {
            self.state.fired_at = view.elapsed;
        }
        if step_is_due || time_is_due {
            let newest = self.monitor.as_ref().and_then(|monitor| monitor.newest(view));
            let value = newest.filter(|_| !self.state.seen.from_validation);
            self.state.due |= self.monitor.is_some() && value.is_none();
            self.save(view, value, commands);
        }
        Ok(())
    }

    fn on_evaluation_start(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        if let Some(monitor) = &mut self.monitor {
            monitor.on_evaluation_start(view);
        }
        Ok(())
    }

    fn on_evaluation_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let value = match &mut self.monitor {
            Some(monitor) => match monitor.on_evaluation_end(&mut self.state.seen, view)? {
                Some(value) => Some(value),
                None => return Ok(()),
            },
            None if self.save_on_train_epoch_end != Some(false) => return Ok(()),
            None => None,
        };
        if std::mem::take(&mut self.state.due) || self.epoch_is_due(view) {
            self.save(view, value, commands);
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let value = match &mut self.monitor {
            Some(monitor) => monitor.on_train_epoch_end(&self.state.seen, view)?,
            None if self.save_on_train_epoch_end == Some(false) => return Ok(()),
            None => None,
        };
        let was_due = value.is_some() && std::mem::take(&mut self.state.due);
        if was_due || self.epoch_is_due(view) {
            self.save(view, value, commands);
        }
        Ok(())
    }

    fn on_checkpoint_saved(&mut self, path: &Path) {
        self.state.kept.saved(&name_of(path));
    }

    fn on_checkpoint_failed(&mut self, path: &Path) {
        let name = name_of(path);
        self.state.kept.failed(self.mode, &name);
        // Another try at the same step is welcome.
        self.state.newest = self.state.newest.take().filter(|(_, newest)| *newest != name);
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

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
