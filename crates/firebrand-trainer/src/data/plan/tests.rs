use proptest::prelude::*;

use super::*;

const NAME: &str = "train";

fn division(num_samples: usize, batch_size: usize) -> Division {
    Division {
        num_samples,
        batch_size,
        drop_last: false,
        shard_tail: ShardTail::Pad,
    }
}

fn plan(division: &Division, request: &EpochRequest) -> EpochPlan {
    let split = division.split(request, NAME).unwrap();
    EpochPlan::new(split, division.num_samples, Some((request.seed, request.epoch)))
}

/// The samples of each batch of each rank.
fn batches(division: &Division, request: &EpochRequest, world_size: usize) -> Vec<Vec<Vec<usize>>> {
    (0..world_size)
        .map(|rank| {
            let plan = plan(division, &request.clone().shard(Shard { rank, world_size }));
            (0..plan.num_batches()).map(|batch| plan.samples(batch)).collect()
        })
        .collect()
}

/// All ranks' samples in the order of the epoch: the first of each rank, the second of each rank, ….
fn interleaved(batches: &[Vec<Vec<usize>>]) -> Vec<usize> {
    let ranks: Vec<Vec<usize>> = batches.iter().map(|rank| rank.concat()).collect();
    let longest = ranks.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|number| ranks.iter().filter_map(move |rank| rank.get(number).copied()))
        .collect()
}

#[test]
fn ranks_take_turns() {
    let request = EpochRequest::evaluate(0, 0);
    let all = division(7, 2);
    let split = all
        .split(
            &request.clone().shard(Shard {
                rank: 1,
                world_size: 3,
            }),
            NAME,
        )
        .unwrap();
    let plan = EpochPlan::new(split, 7, None);
    assert_eq!(plan.num_batches(), 1);
    assert_eq!(plan.samples(0), [1, 4]);
    let split = all
        .split(
            &request.shard(Shard {
                rank: 0,
                world_size: 3,
            }),
            NAME,
        )
        .unwrap();
    let plan = EpochPlan::new(split, 7, None);
    assert_eq!((plan.samples(0), plan.samples(1)), (vec![0, 3], vec![6]));
    assert_eq!((plan.consumed_after(0), plan.consumed_after(1)), (6, 7));
}

#[test]
fn training_pads_with_the_head_or_drops_the_tail() {
    let request = EpochRequest::overfit(0, 100);
    let padded = batches_in_order(&division(7, 2), &request, 3);
    assert_eq!(
        padded,
        [
            vec![vec![0, 3], vec![6]],
            vec![vec![1, 4], vec![0]],
            vec![vec![2, 5], vec![1]]
        ]
    );
    let dropped = Division {
        shard_tail: ShardTail::Drop,
        ..division(7, 2)
    };
    assert_eq!(
        batches_in_order(&dropped, &request, 3),
        [vec![vec![0, 3]], vec![vec![1, 4]], vec![vec![2, 5]]]
    );
    // More ranks than samples: the head is repeated as often as it takes.
    assert_eq!(
        batches_in_order(&division(2, 1), &request, 5),
        [
            vec![vec![0]],
            vec![vec![1]],
            vec![vec![0]],
            vec![vec![1]],
            vec![vec![0]]
        ]
    );
}

fn batches_in_order(division: &Division, request: &EpochRequest, world_size: usize) -> Vec<Vec<Vec<usize>>> {
    (0..world_size)
        .map(|rank| {
            let request = request.clone().shard(Shard { rank, world_size });
            let plan = EpochPlan::new(
                division.split(&request, NAME).unwrap(),
                division.num_samples,
                None,
            );
            (0..plan.num_batches()).map(|batch| plan.samples(batch)).collect()
        })
        .collect()
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let request = EpochRequest::train(0, 0);
    let message =
        |division: &Division, request: &EpochRequest| division.split(request, NAME).unwrap_err().to_string();
    assert_eq!(
        message(&division(7, 0), &request),
        "the train loader cannot work with `batch_size(0)`: a batch needs at least one sample"
    );
    assert!(message(&division(0, 1), &request).contains("the dataset of the train loader is empty"));
    let dropping = Division {
        drop_last: true,
        ..division(7, 8)
    };
    assert!(message(&dropping, &request).contains("its 7 samples are fewer than the 8 of one batch of 8"));
    // The same data is enough in smaller batches, and a request may ask for them.
    assert_eq!(
        dropping
            .split(&request.clone().batch_size(Some(3)), NAME)
            .unwrap()
            .num_batches,
        2
    );
    assert!(
        message(&division(7, 2), &request.clone().skip_samples(8))
            .contains("after 8 samples, since it has 7")
    );
    let shard = Shard {
        rank: 2,
        world_size: 2,
    };
    assert!(message(&division(7, 2), &request.clone().shard(shard)).contains("no rank 2 among 2"));
    let shard = Shard {
        rank: 0,
        world_size: 0,
    };
    assert!(message(&division(7, 2), &request.shard(shard)).contains("no rank 0 among 0"));
}

#[test]
fn a_finished_epoch_is_empty_and_not_an_error() {
    let all = division(7, 2);
    let split = all
        .split(&EpochRequest::train(0, 0).skip_samples(7), NAME)
        .unwrap();
    assert_eq!(split.num_batches, 0);
    // Neither is a rank that has nothing to evaluate.
    let shard = Shard {
        rank: 7,
        world_size: 8,
    };
    let split = all
        .split(&EpochRequest::evaluate(0, 0).shard(shard), NAME)
        .unwrap();
    assert_eq!(split.num_batches, 0);
}

proptest! {
    #[test]
    fn evaluation_counts_every_sample_once(
        num_samples in 1_usize..200, batch_size in 1_usize..20, world_size in 1_usize..9, seed: u64, epoch: u64,
    ) {
        let division = division(num_samples, batch_size);
        let request = EpochRequest::evaluate(seed, epoch);
        let ranks = batches(&division, &request, world_size);
        prop_assert_eq!(interleaved(&ranks), permutation(num_samples, seed, epoch));
    }

    #[test]
    fn training_gives_every_rank_equal_batches(
        num_samples in 1_usize..200, batch_size in 1_usize..20, world_size in 1_usize..9, seed: u64, pad: bool, drop_last: bool,
    ) {
        let shard_tail = if pad { ShardTail::Pad } else { ShardTail::Drop };
        let division = Division { num_samples, batch_size, drop_last, shard_tail };
        let request = EpochRequest::train(seed, 1);
        prop_assume!(division.split(&request.clone().shard(Shard { rank: 0, world_size }), NAME).is_ok());
        let ranks = batches(&division, &request, world_size);
        let sizes: Vec<Vec<usize>> = ranks.iter().map(|rank| rank.iter().map(Vec::len).collect()).collect();
        prop_assert!(sizes.iter().all(|rank| rank == &sizes[0]));
        let order = permutation(num_samples, seed, 1);
        let seen = interleaved(&ranks);
        let expected: Vec<usize> = order.iter().cycle().take(seen.len()).copied().collect();
        prop_assert_eq!(&seen, &expected);
        let per_rank = if drop_last { batch_size } else { 1 };
        if pad {
            prop_assert!(seen.len() + per_rank * world_size > num_samples);
            prop_assert!(seen.len() < num_samples + world_size);
        } else {
            prop_assert!(seen.len() <= num_samples);
            prop_assert!(seen.len() + per_rank * world_size + world_size > num_samples);
        }
    }

    #[test]
    fn a_position_goes_on_with_what_remains_on_any_number_of_ranks(
        num_samples in 1_usize..200, batch_size in 1_usize..12, world_size in 1_usize..6, after in 1_usize..6,
        steps in 0_usize..40, seed: u64, pad: bool,
    ) {
        let shard_tail = if pad { ShardTail::Pad } else { ShardTail::Drop };
        let division = Division { shard_tail, ..division(num_samples, batch_size) };
        let request = EpochRequest::train(seed, 0);
        let whole = request.clone().shard(Shard { rank: 0, world_size });
        prop_assume!(division.split(&whole, NAME).is_ok());
        prop_assume!(division.split(&whole.clone().shard(Shard { rank: 0, world_size: after }), NAME).is_ok());
        let before = plan(&division, &whole);
        let steps = steps.min(before.num_batches());
        let consumed = if steps == 0 { 0 } else { before.consumed_after(steps - 1) };

        // The same ranks go on exactly where they stopped, batch by batch.
        let uninterrupted = batches(&division, &request, world_size);
        let resumed = batches(&division, &request.clone().skip_samples(consumed), world_size);
        for (resumed, uninterrupted) in resumed.iter().zip(&uninterrupted) {
            prop_assert_eq!(resumed.as_slice(), &uninterrupted[steps..]);
        }

        // Other ranks share what remains: with the head, it is the rest of the order, and nothing is lost or repeated.
        let mut others = interleaved(&batches(&division, &request.clone().skip_samples(consumed), after));
        let order = permutation(num_samples, seed, 0);
        let rest = &order[consumed as usize..];
        let padding: Vec<usize> = others.split_off(others.len().min(rest.len()));
        prop_assert_eq!(others.as_slice(), &rest[..others.len()]);
        if pad {
            prop_assert_eq!(others.len(), rest.len());
            prop_assert!(padding.len() < after);
            prop_assert!(padding.iter().eq(order.iter().cycle().take(padding.len())));
        } else {
            prop_assert!(padding.is_empty() && rest.len() - others.len() < after);
        }
    }

    #[test]
    fn a_limit_is_a_prefix(num_samples in 1_usize..100, batch_size in 1_usize..9, limit in 0_u64..20) {
        let division = division(num_samples, batch_size);
        let request = EpochRequest::train(3, 2);
        let all = batches(&division, &request, 1).remove(0);
        let some = batches(&division, &request.limit_batches(Some(limit)), 1).remove(0);
        prop_assert_eq!(some.as_slice(), &all[..all.len().min(limit as usize)]);
    }
}
