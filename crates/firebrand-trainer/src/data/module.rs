use std::any::type_name;

use firebrand_core::{Batch, Result, Stage};

use super::DataLoader;
use super::erased_module::missing;

/// The data of a module: how it is fetched and split, and a loader for each stage.
///
/// Implement it where the data needs preparation; where loaders are enough, use [`Data`](super::Data). The trainer calls, in this order:
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
    /// each node only, so it must not keep anything in `self` that the other ranks need. They wait for it without a deadline, as
    /// long as its rank is alive.
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
