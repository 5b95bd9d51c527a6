use firebrand_core::{ErrorChain, Result, Stage};
use firebrand_trainer::data::{
    AnyDataModule, Data, DataError, DataLoader, DataModule, ErasedDataModule, Samples,
};

use super::plain;

fn loader(len: usize) -> DataLoader<Vec<usize>> {
    plain(Samples::from_fn(len, |sample, _| Ok(sample)))
}

/// Remembers what was called, and fails on demand.
#[derive(Default)]
struct Recorded {
    calls: Vec<String>,
    fail: bool,
}

impl DataModule for Recorded {
    type Batch = Vec<usize>;

    fn prepare(&mut self) -> Result<()> {
        self.calls.push("prepare".to_owned());
        if self.fail {
            Err("no network".into())
        } else {
            Ok(())
        }
    }

    fn setup(&mut self, stage: Stage) -> Result<()> {
        self.calls.push(format!("setup {}", stage.as_str()));
        Ok(())
    }

    fn validation_loaders(&self) -> Result<Vec<DataLoader<Vec<usize>>>> {
        if self.fail {
            Err("no file".into())
        } else {
            Ok(vec![loader(1)])
        }
    }
}

fn names(data: &dyn ErasedDataModule, stage: Stage) -> Vec<String> {
    let loaders = data.loaders(stage).unwrap();
    loaders.iter().map(|loader| loader.name().to_owned()).collect()
}

#[test]
fn loaders_are_named_after_their_stage() {
    let data = Data::new()
        .train(loader(3))
        .validation(loader(4))
        .validation(loader(5).name("hard"))
        .validation(loader(6))
        .test(loader(7));
    let data = AnyDataModule::from(data.clone());
    assert_eq!(data.train_loader().unwrap().name(), "train");
    assert_eq!(names(&*data, Stage::Train), ["train"]);
    assert_eq!(
        names(&*data, Stage::Validate),
        ["validation[0]", "hard", "validation[2]"]
    );
    assert_eq!(names(&*data, Stage::Test), ["test"]);
    assert!(names(&*data, Stage::Predict).is_empty());
    let sizes: Vec<_> = data
        .loaders(Stage::Validate)
        .unwrap()
        .iter()
        .map(|loader| loader.num_samples())
        .collect();
    assert_eq!(sizes, [Some(4), Some(5), Some(6)]);
    assert!(data.train_loader().unwrap().batch_type().contains("Vec<usize>"));
}

#[test]
fn a_missing_loader_says_how_to_give_one() {
    let data = AnyDataModule::new(Data::<Vec<usize>>::new());
    let error = data.train_loader().err().unwrap().to_string();
    assert!(
        error.contains("has no loader for `fit`: implement `train_loader`, or give one to `Data::train`"),
        "{error}"
    );
    let error = data.required_loaders(Stage::Predict).err().unwrap().to_string();
    assert!(
        error.contains("has no loader for `predict`: implement `predict_loaders`"),
        "{error}"
    );
    let error = ErasedDataModule::train_loader(&Recorded::default())
        .err()
        .unwrap();
    assert!(matches!(&error, DataError::MissingLoader { module, .. } if module.ends_with("Recorded")));
}

#[test]
fn a_module_is_called_by_reference_too_and_keeps_its_state() {
    let mut recorded = Recorded::default();
    {
        let mut borrowed = &mut recorded;
        let data: &mut dyn ErasedDataModule = &mut borrowed;
        data.prepare().unwrap();
        data.setup(Stage::Train).unwrap();
        data.teardown(Stage::Train).unwrap();
        assert_eq!(names(data, Stage::Validate), ["validation"]);
        assert_eq!(data.required_loaders(Stage::Validate).unwrap().len(), 1);
    }
    assert_eq!(recorded.calls, ["prepare", "setup train"]);
}

#[test]
fn a_failing_method_is_named() {
    let mut data = AnyDataModule::from(Recorded {
        fail: true,
        ..Recorded::default()
    });
    let error = ErrorChain(&data.prepare().unwrap_err()).to_string();
    assert!(error.starts_with("`prepare` of the data module"), "{error}");
    assert!(error.ends_with("failed: no network"), "{error}");
    let error = ErrorChain(&data.loaders(Stage::Validate).err().unwrap()).to_string();
    assert!(
        error.starts_with("`validation_loaders` of the data module"),
        "{error}"
    );
}
