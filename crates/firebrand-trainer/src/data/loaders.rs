use std::any::type_name;

use firebrand_core::{Batch, Result, Stage};

use super::erased_module::missing;
use super::{DataLoader, DataModule};

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
