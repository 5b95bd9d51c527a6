use std::error::Error;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::data::dataset::{Dataset, InMemDataset};
use firebrand_core::Result;

use super::SampleRng;

/// Reads the sample at an index.
type GetSample<I> = dyn Fn(usize, &mut SampleRng) -> Result<I> + Send + Sync;

/// The samples of a dataset, with what happens to each of them on the host before they become a batch.
///
/// A Burn [`Dataset`] is enough where nothing happens: a loader takes it as it is.
///
/// ```
/// use burn::data::dataset::InMemDataset;
/// use firebrand_trainer::data::{SampleRng, Samples};
///
/// let dataset = InMemDataset::new(vec![1.0_f64, 2.0, 3.0]);
/// let noisy = Samples::new(dataset).map(|x, rng| Ok(x + rng.normal(0.0, 0.1)));
/// let (seed, epoch, sample) = (0, 5, 2);
/// let value = noisy.get(sample, &mut SampleRng::new(seed, epoch, sample)).unwrap();
/// assert!((value - 3.0).abs() < 1.0);
/// ```
pub struct Samples<I> {
    len: usize,
    get: Arc<GetSample<I>>,
}

impl<I: 'static> Samples<I> {
    /// The items of a Burn dataset. Its length is read once, here.
    pub fn new<D, E>(dataset: D) -> Self
    where
        D: Dataset<I, E> + 'static,
        E: Error + Send + Sync + 'static,
    {
        Self::from_fn(dataset.len(), move |sample, _| Ok(dataset.get(sample)?))
    }

    /// `len` samples, each made by a function of its index.
    pub fn from_fn(
        len: usize,
        get: impl Fn(usize, &mut SampleRng) -> Result<I> + Send + Sync + 'static,
    ) -> Self {
        Self {
            len,
            get: Arc::new(get),
        }
    }

    /// Decodes or augments each sample. The generator is the sample's own, see [`SampleRng`]; several maps draw from it one
    /// after the other. An error stops the training and names the sample.
    #[must_use]
    pub fn map<O: 'static>(
        self,
        function: impl Fn(I, &mut SampleRng) -> Result<O> + Send + Sync + 'static,
    ) -> Samples<O> {
        let get = self.get;
        Samples::from_fn(self.len, move |sample, rng| function(get(sample, rng)?, rng))
    }
}

impl<I> Samples<I> {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads a sample.
    ///
    /// # Errors
    ///
    /// What the dataset or a map says.
    ///
    /// # Panics
    ///
    /// If the dataset does, as Burn's do for an index that is too large.
    pub fn get(&self, sample: usize, rng: &mut SampleRng) -> Result<I> {
        (self.get)(sample, rng)
    }
}

impl<I> Clone for Samples<I> {
    fn clone(&self) -> Self {
        Self {
            len: self.len,
            get: Arc::clone(&self.get),
        }
    }
}

impl<I> std::fmt::Debug for Samples<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} samples of {}", self.len, std::any::type_name::<I>())
    }
}

/// What a loader reads samples from: a Burn [`Dataset`], a `Vec` or [`Samples`].
///
/// The second parameter is inferred; it only keeps the three apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` gives no samples of `{I}`",
    label = "neither a Burn `Dataset`, nor a `Vec`, nor `Samples`",
    note = "a function of the index becomes samples with `Samples::from_fn`"
)]
pub trait IntoSamples<I, Kind> {
    /// The samples.
    fn into_samples(self) -> Samples<I>;
}

/// The [`IntoSamples`] of a Burn dataset with errors `E`.
#[derive(Debug)]
pub struct OfDataset<E>(PhantomData<E>);

/// The [`IntoSamples`] of a `Vec`.
#[derive(Debug)]
pub struct OfVec;

/// The [`IntoSamples`] of [`Samples`].
#[derive(Debug)]
pub struct OfSamples;

impl<I, D, E> IntoSamples<I, OfDataset<E>> for D
where
    I: 'static,
    D: Dataset<I, E> + 'static,
    E: Error + Send + Sync + 'static,
{
    fn into_samples(self) -> Samples<I> {
        Samples::new(self)
    }
}

impl<I: Clone + Send + Sync + 'static> IntoSamples<I, OfVec> for Vec<I> {
    fn into_samples(self) -> Samples<I> {
        Samples::new(InMemDataset::new(self))
    }
}

impl<I> IntoSamples<I, OfSamples> for Samples<I> {
    fn into_samples(self) -> Samples<I> {
        self
    }
}
