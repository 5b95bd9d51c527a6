//! Data loading and `#[derive(Batch)]` through the public interface.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod derive;
mod failures;
mod module;
mod order;
mod stream;
mod workers;

use burn::tensor::Device;
use firebrand_trainer::data::{DataLoader, EpochRequest, LoadedBatches, SampleRng, Samples};

/// Samples `0..len`, each with a number that augmentation drew for it.
fn augmented(len: usize) -> Samples<(usize, u64)> {
    Samples::from_fn(len, |sample, _| Ok(sample)).map(|sample, rng: &mut SampleRng| {
        // An even sample draws once, an odd one twice: generators that were shared would drift apart.
        let draws = 1 + sample % 2;
        Ok((sample, (0..draws).map(|_| rng.below(1 << 40) as u64).sum()))
    })
}

/// Batches of the samples as they are.
fn plain<I: Clone + Send + 'static>(samples: Samples<I>) -> DataLoader<Vec<I>> {
    DataLoader::from_fn(samples, |samples, _| Ok(samples))
}

fn epoch<I: Clone + Send + 'static>(loader: &DataLoader<Vec<I>>, request: &EpochRequest) -> Vec<Vec<I>> {
    let batches = loader.epoch(request, &Device::flex()).unwrap();
    batches.map(Result::unwrap).collect()
}

fn erased<I: Clone + Send + 'static>(loader: &DataLoader<Vec<I>>, request: &EpochRequest) -> LoadedBatches {
    loader.clone().erase().epoch(request, &Device::flex()).unwrap()
}
