use std::collections::BTreeMap;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::tensor::{Device, Tensor};
use firebrand_trainer::data::{DataLoader, EpochRequest, Samples, Shard, ShardTail};
use proptest::prelude::*;

use super::{augmented, epoch, erased, plain};

fn numbers(len: usize) -> Samples<usize> {
    Samples::from_fn(len, |sample, _| Ok(sample))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_number_of_workers_gives_the_same_batches(
        num_samples in 1_usize..150, batch_size in 1_usize..20, num_workers in 1_usize..6, prefetch in 0_usize..4,
        seed: u64, number in 0_u64..5, drop_last: bool,
    ) {
        prop_assume!(!drop_last || num_samples >= batch_size);
        let loader = plain(augmented(num_samples)).batch_size(batch_size).shuffle(true).drop_last(drop_last);
        let request = EpochRequest::train(seed, number);
        let alone = epoch(&loader, &request);
        prop_assert_eq!(Some(alone.len() as u64), loader.num_batches(&request).unwrap());
        let together = epoch(&loader.num_workers(num_workers).prefetch(prefetch), &request);
        prop_assert_eq!(alone, together);
    }

    #[test]
    fn augmentation_of_a_sample_does_not_depend_on_batches_order_or_ranks(
        num_samples in 1_usize..60, batch_size in 1_usize..9, world_size in 1_usize..4, seed: u64,
    ) {
        let request = EpochRequest::evaluate(seed, 3);
        let expected: BTreeMap<usize, u64> =
            epoch(&plain(augmented(num_samples)), &request).concat().into_iter().collect();
        let loader = plain(augmented(num_samples)).batch_size(batch_size).shuffle(true).num_workers(2);
        let found: BTreeMap<usize, u64> = (0..world_size)
            .flat_map(|rank| epoch(&loader, &request.clone().shard(Shard { rank, world_size })).concat())
            .collect();
        prop_assert_eq!(expected, found);
    }

    #[test]
    fn an_epoch_goes_on_behind_any_batch(
        num_samples in 1_usize..120, batch_size in 1_usize..12, stop in 0_usize..12, num_workers in 0_usize..3, seed: u64,
    ) {
        let loader = plain(augmented(num_samples)).batch_size(batch_size).shuffle(true).num_workers(num_workers);
        let request = EpochRequest::train(seed, 1);
        let whole = epoch(&loader, &request);
        let stop = stop.min(whole.len());
        let consumed = erased(&loader, &request).take(stop).last().map_or(0, |batch| batch.unwrap().consumed);
        prop_assert_eq!(consumed as usize, whole[..stop].concat().len());
        let rest = epoch(&loader, &request.skip_samples(consumed));
        prop_assert_eq!(rest.as_slice(), &whole[stop..]);
    }
}

#[test]
fn a_run_goes_on_with_other_ranks_and_loses_no_sample() {
    let loader = plain(numbers(103)).batch_size(4).shuffle(true);
    let ranks = |request: &EpochRequest, world_size, batches: usize| -> (Vec<usize>, u64) {
        let (mut seen, mut consumed) = (Vec::new(), 0);
        for rank in 0..world_size {
            for batch in erased(&loader, &request.clone().shard(Shard { rank, world_size })).take(batches) {
                let batch = batch.unwrap();
                assert_eq!(batch.num_samples, batch.samples.len());
                seen.extend(batch.samples);
                consumed = batch.consumed;
            }
        }
        (seen, consumed)
    };
    let request = EpochRequest::train(11, 6);
    let (mut seen, first) = ranks(&request, 4, 3);
    assert_eq!(first, 48);
    let (more, second) = ranks(&request.clone().skip_samples(first), 2, 4);
    assert_eq!(second, 80);
    seen.extend(more);
    // What remains, 23 samples on 1 rank, ends the epoch without padding.
    let (rest, end) = ranks(&request.skip_samples(second), 1, 100);
    assert_eq!(end, 103);
    seen.extend(rest);
    seen.sort_unstable();
    assert_eq!(seen, (0..103).collect::<Vec<_>>());
}

#[test]
fn epochs_and_seeds_have_orders_of_their_own() {
    let loader = plain(numbers(50)).batch_size(50).shuffle(true);
    let first = epoch(&loader, &EpochRequest::train(1, 0));
    assert_eq!(first, epoch(&loader, &EpochRequest::train(1, 0)));
    assert_ne!(first, epoch(&loader, &EpochRequest::train(1, 1)));
    assert_ne!(first, epoch(&loader, &EpochRequest::train(2, 0)));
    let seeded = loader.seed(1);
    assert_eq!(first, epoch(&seeded, &EpochRequest::train(2, 0)));
    let stored = epoch(&seeded.shuffle(false), &EpochRequest::train(1, 0));
    assert_eq!(stored, [(0..50).collect::<Vec<_>>()]);
}

#[test]
fn overfitting_gives_the_first_batches_unchanged_in_every_epoch() {
    let loader = plain(augmented(50)).batch_size(4).shuffle(true);
    let mut request = EpochRequest::overfit(5, 3);
    let first = epoch(&loader, &request);
    let samples: Vec<usize> = first.concat().iter().map(|(sample, _)| *sample).collect();
    assert_eq!(samples, (0..12).collect::<Vec<_>>());
    request.epoch = 7;
    assert_eq!(epoch(&loader, &request), first);
}

#[test]
fn a_request_changes_batch_size_and_length() {
    let loader = plain(numbers(10)).batch_size(4);
    let request = EpochRequest::evaluate(0, 0).batch_size(Some(3));
    assert_eq!(
        epoch(&loader, &request),
        [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8], vec![9]]
    );
    let request = EpochRequest::evaluate(0, 0).limit_batches(Some(2));
    assert_eq!(
        epoch(&loader.clone().num_workers(3), &request),
        [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]
    );
    assert_eq!(loader.num_batches(&request).unwrap(), Some(2));
    assert!(epoch(&loader, &request.limit_batches(Some(0))).is_empty());
    let all = EpochRequest::evaluate(0, 0);
    assert_eq!(epoch(&loader.clone().drop_last(true), &all).len(), 2);
    let dropping = loader.shard_tail(ShardTail::Drop).erase();
    let shard = Shard {
        rank: 0,
        world_size: 3,
    };
    assert_eq!(
        dropping
            .num_batches(&EpochRequest::train(0, 0).shard(shard))
            .unwrap(),
        Some(1)
    );
    assert_eq!(
        (dropping.num_samples(), dropping.batch_size()),
        (Some(10), Some(4))
    );
}

struct Squares;

impl Batcher<f32, Tensor<1>> for Squares {
    fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<1> {
        Tensor::<1>::from_floats(items.as_slice(), device).powf_scalar(2.0)
    }
}

#[test]
fn datasets_and_batchers_of_burn_are_used_as_they_are() {
    let loader = DataLoader::from_batcher(InMemDataset::new(vec![1.0, 2.0, 3.0]), Squares).batch_size(2);
    let autodiff = Device::flex().autodiff();
    let batches: Vec<Tensor<1>> = loader
        .epoch(&EpochRequest::train(0, 0), &autodiff)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let values: Vec<Vec<f32>> = batches
        .iter()
        .map(|batch| batch.to_data().try_to_vec().unwrap())
        .collect();
    assert_eq!(values, [vec![1.0, 4.0], vec![9.0]]);
    // Batches are made without autodiff, whatever the device of the training.
    assert!(batches.iter().all(|batch| !batch.device().is_autodiff()));
}
