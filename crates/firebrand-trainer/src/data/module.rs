use std::any::type_name;

use firebrand_core::{Batch, BoxError, Result, Stage};

use super::{AnyLoader, DataError, DataLoader};

/// The data of a module: how it is fetched and split, and a loader for each stage.
///
/// Implement it where the data needs preparation; where loaders are enough, use [`Data`]. The trainer calls, in this order:
///
/// ```text
/// prepare                      on the first rank of each node, while the others wait
/// per stage:  setup ─► train_loader, validation_loaders, … ─► teardown      on every rank
/// ```
///
/// Fitting is the stage [`Stage::Train`] and includes the validation within it.
///
/// ```
/// use burn::data::dataset::InMemDataset;
/// use firebrand_core::{Result, Stage};
/// use firebrand_trainer::data::{DataLoader, DataModule};
///
/// struct Words {
///     words: Vec<String>,
/// }
///
/// impl DataModule for Words {
///     type Batch = Vec<String>;
///
///     fn setup(&mut self, _stage: Stage) -> Result<()> {
///         self.words = ["one", "two", "three"].map(String::from).to_vec();
///         Ok(())
///     }
///
///     fn train_loader(&self) -> Result<DataLoader<Vec<String>>> {
///         let words = InMemDataset::new(self.words.clone());
///         Ok(DataLoader::from_fn(words, |words, _| Ok(words)).batch_size(2).shuffle(true))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a data module",
    label = "the trainer cannot get data from it",
    note = "wrap loaders in `Data::new().train(loader)`, or implement `DataModule`"
)]
pub trait DataModule: Send {
    /// What its loaders give.
    type Batch: Batch;

    /// Fetches data to a place that every rank of the node can read: a download, a conversion. It runs on the first rank of
    /// each node only, so it must not keep anything in `self` that the other ranks need.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong; the trainer adds the method and stops.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Reads and splits the data, before the loaders of a stage are asked for.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    fn setup(&mut self, stage: Stage) -> Result<()> {
        let _ = stage;
        Ok(())
    }

    /// After a stage, also after one that failed.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    fn teardown(&mut self, stage: Stage) -> Result<()> {
        let _ = stage;
        Ok(())
    }

    /// The loader of the training data; needed to fit.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    fn train_loader(&self) -> Result<DataLoader<Self::Batch>> {
        Err(missing(type_name::<Self>(), Stage::Train).into())
    }

    /// The loaders of the validation data; without one, fitting does not validate.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    fn validation_loaders(&self) -> Result<Vec<DataLoader<Self::Batch>>> {
        Ok(Vec::new())
    }

    /// The loaders of the test data.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    fn test_loaders(&self) -> Result<Vec<DataLoader<Self::Batch>>> {
        Ok(Vec::new())
    }

    /// The loaders of the data to predict.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    fn predict_loaders(&self) -> Result<Vec<DataLoader<Self::Batch>>> {
        Ok(Vec::new())
    }
}

impl<D: DataModule + ?Sized> DataModule for &mut D {
    type Batch = D::Batch;

    fn prepare(&mut self) -> Result<()> {
        (**self).prepare()
    }

    fn setup(&mut self, stage: Stage) -> Result<()> {
        (**self).setup(stage)
    }

    fn teardown(&mut self, stage: Stage) -> Result<()> {
        (**self).teardown(stage)
    }

    fn train_loader(&self) -> Result<DataLoader<Self::Batch>> {
        (**self).train_loader()
    }

    fn validation_loaders(&self) -> Result<Vec<DataLoader<Self::Batch>>> {
        (**self).validation_loaders()
    }

    fn test_loaders(&self) -> Result<Vec<DataLoader<Self::Batch>>> {
        (**self).test_loaders()
    }

    fn predict_loaders(&self) -> Result<Vec<DataLoader<Self::Batch>>> {
        (**self).predict_loaders()
    }
}

/// Loaders without a data module of your own.
///
/// ```
/// # use burn::data::dataset::InMemDataset;
/// # use firebrand_trainer::data::{Data, DataLoader};
/// # let loader = |n: i32| DataLoader::from_fn(InMemDataset::new((0..n).collect()), |items: Vec<i32>, _| Ok(items));
/// let data = Data::new().train(loader(100).batch_size(8).shuffle(true)).validation(loader(20).batch_size(8));
/// ```
#[must_use]
pub struct Data<B> {
    train: Option<DataLoader<B>>,
    validation: Vec<DataLoader<B>>,
    test: Vec<DataLoader<B>>,
    predict: Vec<DataLoader<B>>,
}

impl<B> Data<B> {
    /// No loader yet.
    pub fn new() -> Self {
        Self {
            train: None,
            validation: Vec::new(),
            test: Vec::new(),
            predict: Vec::new(),
        }
    }

    /// The loader of the training data.
    pub fn train(mut self, loader: DataLoader<B>) -> Self {
        self.train = Some(loader);
        self
    }

    /// Adds a loader of validation data. With several, `StepContext::loader_index` tells them apart.
    pub fn validation(mut self, loader: DataLoader<B>) -> Self {
        self.validation.push(loader);
        self
    }

    /// Adds a loader of test data.
    pub fn test(mut self, loader: DataLoader<B>) -> Self {
        self.test.push(loader);
        self
    }

    /// Adds a loader of data to predict.
    pub fn predict(mut self, loader: DataLoader<B>) -> Self {
        self.predict.push(loader);
        self
    }
}

impl<B> Default for Data<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> Clone for Data<B> {
    fn clone(&self) -> Self {
        Self {
            train: self.train.clone(),
            validation: self.validation.clone(),
            test: self.test.clone(),
            predict: self.predict.clone(),
        }
    }
}

impl<B> std::fmt::Debug for Data<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Data")
            .field("train", &self.train)
            .field("validation", &self.validation)
            .field("test", &self.test)
            .field("predict", &self.predict)
            .finish()
    }
}

impl<B: Batch> DataModule for Data<B> {
    type Batch = B;

    fn train_loader(&self) -> Result<DataLoader<B>> {
        let loader = self.train.clone();
        Ok(loader.ok_or_else(|| missing(type_name::<Self>(), Stage::Train))?)
    }

    fn validation_loaders(&self) -> Result<Vec<DataLoader<B>>> {
        Ok(self.validation.clone())
    }

    fn test_loaders(&self) -> Result<Vec<DataLoader<B>>> {
        Ok(self.test.clone())
    }

    fn predict_loaders(&self) -> Result<Vec<DataLoader<B>>> {
        Ok(self.predict.clone())
    }
}

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

fn missing(module: &'static str, stage: Stage) -> DataError {
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
