use std::collections::BTreeMap;

use firebrand_strategy::Update;

use super::*;
use crate::callbacks::test_fixture::{Fixture, commands, stepped};
use crate::callbacks::{Callback, CheckpointRequest, Commands};

/// A callback in a run whose checkpoints are written at once.
struct Run {
    fixture: Fixture,
    callback: ModelCheckpoint,
}

impl Run {
    fn new(callback: ModelCheckpoint) -> Self {
        let mut run = Self {
            fixture: Fixture::new(),
            callback,
        };
        run.callback
            .on_fit_start(&run.fixture.view(), &mut Commands::default())
            .unwrap();
        run
    }

    fn directory(&self) -> PathBuf {
        self.fixture.run.as_ref().unwrap().checkpoints()
    }

    fn write(&mut self, commands: Commands) -> Option<CheckpointRequest> {
        let request = commands.checkpoints.into_iter().next()?;
        let path = self.directory().join(request.name.as_deref().unwrap());
        std::fs::create_dir_all(&path).unwrap();
        for removed in &request.remove {
            std::fs::remove_dir(removed).unwrap();
        }
        self.callback.on_checkpoint_saved(&path);
        Some(request)
    }

    fn batch_end(&mut self) -> Option<CheckpointRequest> {
        self.fixture.step();
        let commands = commands(|commands| self.callback.on_train_batch_end(&self.fixture.view(), commands));
        self.write(commands)
    }

    fn validate(&mut self, value: f64) -> Option<CheckpointRequest> {
        self.callback
            .on_evaluation_start(&self.fixture.view(), &mut Commands::default())
            .unwrap();
        self.fixture.metrics.insert("val_loss".to_owned(), value);
        let commands = commands(|commands| self.callback.on_evaluation_end(&self.fixture.view(), commands));
        self.write(commands)
    }

    fn epoch_end(&mut self) -> Option<CheckpointRequest> {
        let commands = commands(|commands| self.callback.on_train_epoch_end(&self.fixture.view(), commands));
        self.fixture.epoch += 1;
        self.fixture.batches_in_epoch = 0;
        self.write(commands)
    }

    fn epoch(&mut self, value: f64) -> (Option<CheckpointRequest>, Option<CheckpointRequest>) {
        for _ in 0..10 {
            assert!(self.batch_end().is_none());
        }
        (self.validate(value), self.epoch_end())
    }

    fn on_disk(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn by_default_the_newest_is_kept_at_the_end_of_every_epoch() {
    let mut run = Run::new(ModelCheckpoint::new());
    let (validation, end) = run.epoch(1.0);
    assert_eq!(validation, None);
    let expected = CheckpointRequest {
        name: Some("epoch=000-step=000010".into()),
        last: true,
        ..Default::default()
    };
    assert_eq!(end, Some(expected));
    let end = run.epoch(0.5).1.unwrap();
    assert!(end.last && !end.best);
    assert_eq!(run.on_disk(), ["epoch=001-step=000020"]);
    assert_eq!(run.callback.kept_checkpoints(), ["epoch=001-step=000020"]);
    assert_eq!(
        run.callback.last_model_path(),
        Some(run.directory().join("epoch=001-step=000020"))
    );
    assert_eq!(run.callback.best_model_path(), None);
}

#[test]
fn the_best_are_kept_and_last_beside_them() {
    let mut run = Run::new(ModelCheckpoint::monitor("val_loss").save_top_k(2).save_last(true));
    for value in [f64::NAN, 3.0, 1.0, 2.0] {
        let (validation, end) = run.epoch(value);
        let request = validation.unwrap();
        assert!(request.last);
        assert_eq!(request.best, [3.0, 1.0].contains(&value), "{value}");
        // The epoch's end has nothing new to save.
        assert_eq!(end, None);
    }
    assert_eq!(
        run.epoch(9.0).0.map(|request| (request.last, request.best)),
        Some((true, false))
    );
    assert_eq!(
        run.on_disk(),
        [
            "epoch=002-step=000030",
            "epoch=003-step=000040",
            "epoch=004-step=000050"
        ]
    );
    assert_eq!(run.callback.best_score(), Some(1.0));
    assert_eq!(
        run.callback.best_model_path(),
        Some(run.directory().join("epoch=002-step=000030"))
    );
    let values: Vec<_> = run
        .callback
        .best_k_models()
        .into_iter()
        .map(|(_, value)| value)
        .collect();
    assert_eq!(values, [Some(1.0), Some(2.0)]);
}

#[test]
fn every_n_steps_fires_only_when_the_step_has_moved() {
    let mut run = Run::new(
        ModelCheckpoint::new()
            .every_n_train_steps(2)
            .save_top_k(TopK::All)
            .save_last(false),
    );
    assert!(run.batch_end().is_none());
    assert_eq!(
        run.batch_end().unwrap().name.as_deref(),
        Some("epoch=000-step=000002")
    );
    for update in [None, Some(Update::Skipped), Some(stepped(1.0))] {
        run.fixture.update = update;
        let commands = commands(|commands| run.callback.on_train_batch_end(&run.fixture.view(), commands));
        assert!(commands.checkpoints.is_empty(), "{update:?}");
    }
    assert_eq!(run.epoch_end(), None);
    assert!(run.batch_end().is_none());
    assert_eq!(
        run.batch_end().unwrap().name.as_deref(),
        Some("epoch=001-step=000004")
    );
    assert_eq!(run.on_disk().len(), 2);
}

#[test]
fn a_time_interval_counts_from_one_save_to_the_next() {
    let mut run = Run::new(ModelCheckpoint::new().train_time_interval(Duration::from_secs(60)));
    let mut saved = Vec::new();
    for seconds in [10, 59, 65, 120, 126, 130] {
        run.fixture.elapsed = Duration::from_secs(seconds);
        if run.batch_end().is_some() {
            saved.push(seconds);
        }
    }
    assert_eq!(saved, [65, 126]);
}

#[test]
fn a_step_waits_for_the_validation_that_gives_its_value() {
    let mut run = Run::new(
        ModelCheckpoint::monitor("val_loss")
            .every_n_train_steps(2)
            .save_top_k(TopK::All),
    );
    run.batch_end();
    assert!(run.batch_end().is_none());
    assert_eq!(
        run.validate(1.0).unwrap().name.as_deref(),
        Some("epoch=000-step=000002")
    );
    run.batch_end();
    assert_eq!(run.validate(0.9), None, "no step was due");
    assert!(run.batch_end().is_none(), "the value belongs to step 3");
    run.batch_end();
    assert_eq!(
        run.validate(0.8).unwrap().name.as_deref(),
        Some("epoch=000-step=000005")
    );

    // A value of the training is there at once.
    let mut run = Run::new(ModelCheckpoint::monitor("train_loss").every_n_train_steps(2));
    run.fixture.metrics.insert("train_loss".to_owned(), 1.0);
    run.batch_end();
    assert!(run.batch_end().unwrap().best);
    // `last` does not wait.
    let mut run = Run::new(
        ModelCheckpoint::monitor("val_loss")
            .every_n_train_steps(1)
            .save_last(true),
    );
    let request = run.batch_end().unwrap();
    assert!(request.last && !request.best);
    let request = run.validate(1.0).unwrap();
    assert!(request.last && request.best && request.remove.is_empty());
    assert_eq!(run.on_disk(), ["epoch=000-step=000001"]);
}

#[test]
fn other_epochs_save_nothing() {
    let mut run = Run::new(ModelCheckpoint::monitor("val_loss").every_n_epochs(2));
    assert_eq!(run.epoch(1.0), (None, None));
    assert!(run.epoch(2.0).0.unwrap().best);
}

#[test]
fn without_validation_a_monitor_looks_at_the_training() {
    let mut run = Run::new(ModelCheckpoint::monitor("train_loss"));
    run.fixture.metrics.insert("train_loss".to_owned(), 1.0);
    for _ in 0..10 {
        run.batch_end();
    }
    assert!(run.epoch_end().unwrap().best);

    let mut run = Run::new(ModelCheckpoint::monitor("val_los"));
    run.fixture.metrics.insert("val_loss".to_owned(), 1.0);
    let error = run
        .callback
        .on_evaluation_end(&run.fixture.view(), &mut Commands::default())
        .unwrap_err();
    assert!(
        error.to_string().contains("'val_los'") && error.to_string().contains("were: val_loss"),
        "{error}"
    );
}

#[test]
fn a_failed_checkpoint_is_forgotten_and_tried_again() {
    let mut run = Run::new(ModelCheckpoint::monitor("val_loss").save_last(true));
    run.epoch(2.0);
    for _ in 0..10 {
        run.batch_end();
    }
    run.fixture.metrics.insert("val_loss".to_owned(), 1.0);
    let commands = commands(|commands| run.callback.on_evaluation_end(&run.fixture.view(), commands));
    let request = &commands.checkpoints[0];
    assert!(request.best && request.remove == [run.directory().join("epoch=000-step=000010")]);
    run.callback
        .on_checkpoint_failed(&run.directory().join("epoch=001-step=000020"));
    assert_eq!(run.callback.best_score(), Some(2.0));
    assert_eq!(run.callback.kept_checkpoints(), ["epoch=000-step=000010"]);
    // The end of the epoch saves at least the last.
    let request = run.epoch_end().unwrap();
    assert!(request.last && request.remove.is_empty());
}

#[test]
fn a_resumed_run_remembers_its_best() {
    let build = || ModelCheckpoint::monitor("val_loss").save_top_k(2).save_last(true);
    let mut run = Run::new(build());
    run.epoch(1.0);
    run.epoch(f64::INFINITY);
    let text = run.callback.state().unwrap().to_string();

    let mut resumed = build();
    resumed
        .load_state(&serde_json::from_str(&text).unwrap(), BTreeMap::new())
        .unwrap();
    run.callback = resumed;
    run.callback
        .on_fit_start(&run.fixture.view(), &mut Commands::default())
        .unwrap();
    assert_eq!(run.callback.best_score(), Some(1.0));
    assert_eq!(run.callback.best_k_models()[1].1, Some(f64::INFINITY));
    assert_eq!(run.epoch_end(), None, "this step is saved already");
    run.fixture.epoch -= 1;
    let request = run.epoch(0.5).0.unwrap();
    assert!(request.best);
    assert_eq!(request.remove, [run.directory().join("epoch=001-step=000020")]);

    // Another fit starts anew.
    run.callback
        .on_fit_start(&run.fixture.view(), &mut Commands::default())
        .unwrap();
    assert_eq!(run.callback.best_score(), None);
}

#[test]
fn impossible_options_are_named() {
    for (callback, option) in [
        (ModelCheckpoint::new().every_n_epochs(0), "every_n_epochs"),
        (
            ModelCheckpoint::new().every_n_train_steps(0),
            "every_n_train_steps",
        ),
        (ModelCheckpoint::monitor("a").save_top_k(0), "save_top_k"),
        (ModelCheckpoint::new().filename("best"), "filename"),
    ] {
        let mut callback = callback;
        let error = callback
            .on_fit_start(&Fixture::new().view(), &mut Commands::default())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(option), "{error}");
    }
    let mut run = Run::new(ModelCheckpoint::new());
    run.fixture.run = None;
    assert_eq!(run.epoch(1.0), (None, None), "a run that writes nothing");
}

#[test]
fn names_tell_callbacks_apart() {
    assert_eq!(ModelCheckpoint::new().name(), "ModelCheckpoint");
    assert_eq!(
        ModelCheckpoint::monitor("a").every_n_train_steps(5).name(),
        "ModelCheckpoint(a, steps)"
    );
}
