use std::fmt::{self, Debug};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::tensor::{Device, Tensor};
use firebrand_core::ErrorChain;
use firebrand_trainer::data::{DataError, DataLoader, EpochRequest, Samples};

use super::plain;

const WORKERS: [usize; 3] = [0, 1, 3];

/// The batches before the error and the error, which ends the epoch.
fn fails<B: firebrand_core::Batch>(loader: DataLoader<B>) -> (usize, DataError) {
    let mut batches = loader.epoch(&EpochRequest::train(0, 0), &Device::flex()).unwrap();
    let mut good = 0;
    loop {
        match batches.next().expect("the epoch fails") {
            Ok(_) => good += 1,
            Err(error) => {
                assert!(batches.next().is_none() && batches.next().is_none());
                return (good, error);
            }
        }
    }
}

#[derive(Debug)]
struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the disk is gone")
    }
}

impl std::error::Error for Unreadable {}

/// A dataset with an error type of its own that fails at one sample.
struct Broken {
    at: usize,
    panics: bool,
}

impl Dataset<usize, Unreadable> for Broken {
    fn get(&self, index: usize) -> Result<usize, Unreadable> {
        match (index == self.at, self.panics) {
            (false, _) => Ok(index),
            (true, false) => Err(Unreadable),
            (true, true) => panic!("index {index} out of bounds"),
        }
    }

    fn len(&self) -> usize {
        20
    }
}

#[test]
fn a_sample_that_cannot_be_read_is_named() {
    for num_workers in WORKERS {
        let dataset = Broken {
            at: 13,
            panics: false,
        };
        let loader = DataLoader::from_fn(dataset, |items, _| Ok(items))
            .batch_size(4)
            .num_workers(num_workers);
        let (good, error) = fails(loader);
        assert_eq!(good, 3);
        assert_eq!(
            ErrorChain(&error).to_string(),
            "the data loader cannot read sample 13: the disk is gone"
        );
    }
}

#[test]
fn a_panic_at_a_sample_is_an_error_that_names_it() {
    for num_workers in WORKERS {
        let dataset = Broken { at: 13, panics: true };
        let loader = DataLoader::from_fn(dataset, |items, _| Ok(items))
            .batch_size(4)
            .num_workers(num_workers);
        let (good, error) = fails(loader.name("train"));
        assert_eq!(good, 3);
        assert_eq!(
            error.to_string(),
            "the train loader panicked at sample 13: index 13 out of bounds"
        );
    }
}

#[test]
fn a_failing_transformation_names_its_sample() {
    let samples = Samples::from_fn(10, |sample, _| Ok(sample)).map(|sample, rng| {
        assert_eq!(rng.sample(), sample);
        if sample == 5 {
            Err("not a picture".into())
        } else {
            Ok(sample)
        }
    });
    for num_workers in WORKERS {
        let (good, error) = fails(plain(samples.clone()).num_workers(num_workers));
        assert_eq!(good, 5);
        assert!(
            matches!(&error, DataError::Sample { sample: 5, source, .. } if source.to_string() == "not a picture")
        );
    }
}

struct Fragile;

impl Batcher<usize, Vec<usize>> for Fragile {
    fn batch(&self, items: Vec<usize>, _device: &Device) -> Vec<usize> {
        assert!(!items.contains(&6), "cannot stack");
        items
    }
}

#[test]
fn a_batch_that_cannot_be_made_names_its_samples() {
    let numbers: Vec<usize> = (0..20).collect();
    for num_workers in WORKERS {
        let loader = DataLoader::from_batcher(numbers.clone(), Fragile)
            .batch_size(3)
            .num_workers(num_workers);
        let (good, error) = fails(loader);
        assert_eq!(good, 2);
        assert_eq!(
            error.to_string(),
            "the data loader panicked while it made a batch of the samples [6, 7, 8]: cannot stack"
        );
        let loader = DataLoader::from_fn(numbers.clone(), |items, _| {
            if items.contains(&6) {
                Err("ragged".into())
            } else {
                Ok(items)
            }
        });
        let (good, error) = fails(loader.batch_size(3).num_workers(num_workers));
        assert_eq!(good, 2);
        assert_eq!(
            ErrorChain(&error).to_string(),
            "the data loader cannot make a batch of the samples [6, 7, 8]: ragged"
        );
    }
}

#[test]
fn a_batch_whose_fields_disagree_is_refused() {
    let loader = DataLoader::from_fn(vec![1.0_f32; 4], |items, device| {
        let images = Tensor::<1>::from_floats(items.as_slice(), device);
        Ok((images, vec!["one label"]))
    });
    let (good, error) = fails(loader.batch_size(2));
    assert_eq!(good, 0);
    let message = ErrorChain(&error).to_string();
    assert!(
        message.starts_with("the data loader made a broken batch of the samples [0, 1]: "),
        "{message}"
    );
    assert!(
        message.contains("'1' holds 1 samples, and the fields before it hold 2"),
        "{message}"
    );
}

#[test]
fn an_empty_batch_is_refused() {
    let loader = DataLoader::from_fn((0..9).collect::<Vec<usize>>(), |items, _| {
        Ok(items.into_iter().filter(|item| *item < 4).collect::<Vec<_>>())
    });
    // A batch may lose samples, but not all of them.
    let (good, error) = fails(loader.batch_size(3));
    assert_eq!(good, 2);
    assert!(matches!(&error, DataError::EmptyBatch { samples, .. } if samples == &[6, 7, 8]));
}

#[test]
fn settings_that_cannot_work_are_refused_at_the_start() {
    let refused = |loader: DataLoader<Vec<usize>>| {
        let request = EpochRequest::train(0, 0);
        let error = loader.epoch(&request, &Device::flex()).err().expect("refused");
        assert_eq!(
            loader.num_batches(&request).unwrap_err().to_string(),
            error.to_string()
        );
        error.to_string()
    };
    let of = |len: usize| plain(Samples::from_fn(len, |sample, _| Ok(sample))).name("train");
    assert!(refused(of(5).batch_size(0)).contains("`batch_size(0)`"));
    assert!(refused(of(0)).contains("the dataset of the train loader is empty"));
    assert!(refused(of(5).batch_size(6).drop_last(true)).contains("gives no batch"));
    assert!(refused(of(5).seekable()).contains("`seekable(true)`"));
    assert!(refused(of(5).epoch_batches(9)).contains("`epoch_batches(9)`"));
}
