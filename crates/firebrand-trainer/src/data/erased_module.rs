use std::any::type_name;

use firebrand_core::{BoxError, Stage};

use super::{AnyLoader, DataError, DataModule};

/// A [`DataModule`] without its type: what the loops work with. Its loaders are named after their stage.
#[allow(missing_docs)] // Each method is the one of `DataModule` of the same name, unless it says otherwise.
pub trait ErasedDataModule: Send {
    fn prepare(&mut self) -> Result<(), DataError>;
    fn setup(&mut self, stage: Stage) -> Result<(), DataError>;
    fn teardown(&mut self, stage: Stage) -> Result<(), DataError>;
    fn train_loader(&self) -> Result<AnyLoader, DataError>;
    /// The loaders of validation, test or prediction, possibly none; for [`Stage::Train`] the one of training.
    fn loaders(&self, stage: Stage) -> Result<Vec<AnyLoader>, DataError>;
    /// The type of the data module, for messages.
    fn type_name(&self) -> &'static str;

    /// The loaders of a stage, at least one; [`DataError::MissingLoader`] otherwise.
    fn required_loaders(&self, stage: Stage) -> Result<Vec<AnyLoader>, DataError> {
        let loaders = self.loaders(stage)?;
        if loaders.is_empty() {
            return Err(missing(self.type_name(), stage));
        }
        Ok(loaders)
    }
}

impl<D: DataModule> ErasedDataModule for D {
    fn prepare(&mut self) -> Result<(), DataError> {
        DataModule::prepare(self).map_err(failed::<D>("prepare"))
    }

    fn setup(&mut self, stage: Stage) -> Result<(), DataError> {
        DataModule::setup(self, stage).map_err(failed::<D>("setup"))
    }

    fn teardown(&mut self, stage: Stage) -> Result<(), DataError> {
        DataModule::teardown(self, stage).map_err(failed::<D>("teardown"))
    }

    fn train_loader(&self) -> Result<AnyLoader, DataError> {
        let loader = DataModule::train_loader(self).map_err(failed::<D>("train_loader"))?;
        Ok(loader.erase_as(|| "train".to_owned()))
    }

    fn loaders(&self, stage: Stage) -> Result<Vec<AnyLoader>, DataError> {
        let (loaders, name) = match stage {
            Stage::Train => return Ok(vec![ErasedDataModule::train_loader(self)?]),
            Stage::Validate => (self.validation_loaders(), "validation"),
            Stage::Test => (self.test_loaders(), "test"),
            Stage::Predict => (self.predict_loaders(), "predict"),
        };
        let loaders = loaders.map_err(failed::<D>(methods(stage).0))?;
        let several = loaders.len() > 1;
        Ok(loaders
            .into_iter()
            .enumerate()
            .map(|(index, loader)| {
                loader.erase_as(|| {
                    if several {
                        format!("{name}[{index}]")
                    } else {
                        name.to_owned()
                    }
                })
            })
            .collect())
    }

    fn type_name(&self) -> &'static str {
        type_name::<D>()
    }
}

/// An owned [`ErasedDataModule`]; `.into()` makes one of any [`DataModule`].
pub struct AnyDataModule(Box<dyn ErasedDataModule>);

impl AnyDataModule {
    /// Erases the type of a data module.
    pub fn new<D: DataModule + 'static>(data: D) -> Self {
        Self(Box::new(data))
    }
}

impl<D: DataModule + 'static> From<D> for AnyDataModule {
    fn from(data: D) -> Self {
        Self::new(data)
    }
}

impl std::ops::Deref for AnyDataModule {
    type Target = dyn ErasedDataModule;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl std::ops::DerefMut for AnyDataModule {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_mut()
    }
}

/// The method of `DataModule`, the method of `Data` and the entry point of the trainer that belong to a stage.
fn methods(stage: Stage) -> (&'static str, &'static str, &'static str) {
    match stage {
        Stage::Train => ("train_loader", "train", "fit"),
        Stage::Validate => ("validation_loaders", "validation", "validate"),
        Stage::Test => ("test_loaders", "test", "test"),
        Stage::Predict => ("predict_loaders", "predict", "predict"),
    }
}

pub(super) fn missing(module: &'static str, stage: Stage) -> DataError {
    let (method, field, entry) = methods(stage);
    DataError::MissingLoader {
        module,
        method,
        field,
        entry,
    }
}

/// What a method of a user's data module says, with its name; errors of our own, such as a missing loader, stay as they are.
fn failed<D: DataModule>(method: &'static str) -> impl FnOnce(BoxError) -> DataError {
    move |error| match error.downcast::<DataError>() {
        Ok(error) => *error,
        Err(source) => DataError::Module {
            module: type_name::<D>(),
            method,
            source,
        },
    }
}
