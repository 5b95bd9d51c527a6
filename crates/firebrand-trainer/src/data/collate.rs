use std::marker::PhantomData;

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::Device;
use firebrand_core::{Batch, Result};

/// Makes a batch of samples.
///
/// It runs in the loader's workers, on a device without autodiff, and must not draw random numbers from that device: random
/// augmentation belongs to the samples, see [`Samples::map`](super::Samples::map). Closures collate too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make a batch of `{I}` samples",
    label = "not a collate function for `{I}`",
    note = "implement `Collate<{I}>`, give a closure to `DataLoader::from_fn`, or one of Burn's batchers to `DataLoader::from_batcher`"
)]
pub trait Collate<I>: Send + Sync + 'static {
    /// What it makes.
    type Batch: Batch;

    /// Makes a batch of at least one sample.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong; the loader adds which samples they were and training stops.
    fn collate(&self, samples: Vec<I>, device: &Device) -> Result<Self::Batch>;
}

impl<I, B, F> Collate<I> for F
where
    B: Batch,
    F: Fn(Vec<I>, &Device) -> Result<B> + Send + Sync + 'static,
{
    type Batch = B;

    fn collate(&self, samples: Vec<I>, device: &Device) -> Result<B> {
        self(samples, device)
    }
}

/// One of Burn's batchers as a collate function.
///
/// Burn's batchers cannot fail: where one panics, the loader makes an error of it that names the samples.
pub(crate) struct BurnBatcher<T, B> {
    batcher: T,
    batch: PhantomData<fn() -> B>,
}

impl<T, B> BurnBatcher<T, B> {
    pub(crate) fn new(batcher: T) -> Self {
        Self {
            batcher,
            batch: PhantomData,
        }
    }
}

impl<I, B, T> Collate<I> for BurnBatcher<T, B>
where
    B: Batch,
    T: Batcher<I, B> + 'static,
{
    type Batch = B;

    fn collate(&self, samples: Vec<I>, device: &Device) -> Result<B> {
        Ok(self.batcher.batch(samples, device))
    }
}
