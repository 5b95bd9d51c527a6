use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Device;
use firebrand_core::{BoxError, ErrorChain};
use firebrand_trainer::data::{DataError, DataLoader, EpochRequest, Shard};

use super::{epoch, erased};

/// Samples `0..len`, ranks taking turns, in batches of 4.
fn numbers(len: usize) -> DataLoader<Vec<usize>> {
    DataLoader::from_stream(move |request| {
        assert_eq!(request.skip_samples, 0);
        let Shard { rank, world_size } = request.shard;
        let own: Vec<usize> = (0..len).skip(rank).step_by(world_size).collect();
        let batches: Vec<Vec<usize>> = own.chunks(4).map(<[usize]>::to_vec).collect();
        Ok(batches.into_iter().map(Ok))
    })
}

#[test]
fn a_stream_has_no_length_unless_it_says_so() {
    let loader = numbers(10);
    let request = EpochRequest::train(0, 0);
    assert_eq!(
        epoch(&loader, &request),
        [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]
    );
    assert_eq!(loader.num_batches(&request).unwrap(), None);
    let known = loader.clone().epoch_batches(2).batch_size(4);
    assert_eq!(known.num_batches(&request).unwrap(), Some(2));
    assert_eq!(
        known
            .num_batches(&request.clone().limit_batches(Some(1)))
            .unwrap(),
        Some(1)
    );
    assert_eq!(epoch(&known, &request).len(), 2);
    assert_eq!(epoch(&known, &request.clone().limit_batches(Some(1))).len(), 1);
    assert_eq!(known.num_batches(&request.skip_samples(4)).unwrap(), None);
    let erased = known.erase();
    assert_eq!((erased.num_samples(), erased.batch_size()), (None, Some(4)));
}

#[test]
fn an_endless_stream_ends_where_the_epoch_does() {
    let loader = DataLoader::from_stream(|request| {
        let first = request.seed + 100 * request.epoch;
        Ok((first..).map(|number| Ok(vec![number])))
    })
    .epoch_batches(3)
    .num_workers(4);
    assert_eq!(epoch(&loader, &EpochRequest::train(7, 1)), [[107], [108], [109]]);
    // The declared length counts from the start of the epoch, a limit from the position.
    assert_eq!(
        epoch(&loader, &EpochRequest::train(7, 1).skip_samples(2)),
        [[109]]
    );
    assert_eq!(epoch(&loader.clone().seed(9), &EpochRequest::train(7, 0))[0], [9]);
    let mut overfit = EpochRequest::overfit(7, 2);
    overfit.epoch = 5;
    assert_eq!(epoch(&loader, &overfit), [[7], [8]]);
}

#[test]
fn a_stream_goes_on_behind_any_batch_and_within_one() {
    for num_workers in [0, 2] {
        let loader = numbers(10).num_workers(num_workers);
        let request = EpochRequest::train(0, 0);
        assert_eq!(
            epoch(&loader, &request.clone().skip_samples(4)),
            [vec![4, 5, 6, 7], vec![8, 9]]
        );
        assert_eq!(
            epoch(&loader, &request.clone().skip_samples(6)),
            [vec![6, 7], vec![8, 9]]
        );
        assert!(epoch(&loader, &request.clone().skip_samples(10)).is_empty());
        let batches: Vec<_> = erased(&loader, &request.skip_samples(6))
            .map(Result::unwrap)
            .collect();
        assert_eq!(
            batches.iter().map(|batch| batch.consumed).collect::<Vec<_>>(),
            [8, 10]
        );
        assert_eq!(batches[0].samples, [6, 7]);
        assert_eq!(batches[1].num_samples, 2);
    }
}

#[test]
fn other_ranks_go_on_with_what_remains_of_a_stream() {
    let loader = numbers(40);
    let request = EpochRequest::train(0, 0);
    let shard = |rank, world_size| request.clone().shard(Shard { rank, world_size });
    // Two ranks take two batches each.
    let mut seen = Vec::new();
    for rank in 0..2 {
        let batches: Vec<_> = erased(&loader, &shard(rank, 2))
            .take(2)
            .map(Result::unwrap)
            .collect();
        assert_eq!(batches[1].consumed, 16);
        seen.extend(batches.into_iter().flat_map(|batch| {
            assert_eq!(
                batch.samples,
                batch.batch.clone().downcast::<Vec<usize>>().unwrap()
            );
            batch.samples
        }));
    }
    // Three go on: 16 is not a multiple of 3, so their first batches are cut at different places.
    for rank in 0..3 {
        for batch in erased(&loader, &shard(rank, 3).skip_samples(16)) {
            let batch = batch.unwrap();
            assert_eq!(batch.samples, batch.batch.downcast::<Vec<usize>>().unwrap());
            seen.extend(batch.samples);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
}

#[test]
fn a_seekable_stream_starts_at_the_position_by_itself() {
    let opened = Arc::new(AtomicUsize::new(usize::MAX));
    let position = Arc::clone(&opened);
    let loader = DataLoader::from_stream(move |request| {
        position.store(request.skip_samples as usize, Ordering::SeqCst);
        Ok((request.skip_samples..)
            .step_by(2)
            .map(|number| Ok(vec![number, number + 1])))
    })
    .seekable();
    let request = EpochRequest::train(0, 0).skip_samples(6);
    let batches: Vec<_> = erased(&loader, &request).take(2).map(Result::unwrap).collect();
    assert_eq!(opened.load(Ordering::SeqCst), 6);
    assert_eq!(
        (batches[1].consumed, batches[1].samples.as_slice()),
        (10, [8, 9].as_slice())
    );
    let known = loader.epoch_batches(5);
    let refused = known.epoch(&request, &Device::flex()).err().unwrap();
    assert!(
        refused.to_string().contains("needs its `batch_size` too"),
        "{refused}"
    );
    assert_eq!(epoch(&known.batch_size(2), &request), [vec![6, 7], vec![8, 9]]);
}

#[test]
fn a_stream_that_fails_or_panics_ends_the_epoch() {
    for num_workers in [0, 1] {
        let failing = DataLoader::from_stream(|_| {
            Ok((0..9).map(|number| match number {
                2 => Err(BoxError::from("the connection is lost")),
                number => Ok(vec![number]),
            }))
        });
        let mut batches = erased(
            &failing.num_workers(num_workers).name("train"),
            &EpochRequest::train(0, 0),
        );
        assert_eq!(batches.by_ref().take(2).filter(Result::is_ok).count(), 2);
        let error = batches.next().unwrap().unwrap_err();
        assert_eq!(
            ErrorChain(&error).to_string(),
            "the stream of the train loader failed at batch 2: the connection is lost"
        );
        assert!(batches.next().is_none());

        let panicking = DataLoader::from_stream(|_| {
            Ok((0..9).map(|number| {
                assert!(number < 1, "no more");
                Ok(vec![number])
            }))
        });
        let mut batches = erased(&panicking.num_workers(num_workers), &EpochRequest::train(0, 0));
        assert!(batches.next().unwrap().is_ok());
        let error = batches.next().unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the stream of the data loader panicked at batch 1: no more"
        );
        assert!(batches.next().is_none());
    }
}

#[test]
fn a_stream_that_cannot_be_opened_or_gives_nothing_usable_is_named() {
    type Nothing = std::iter::Empty<Result<Vec<u8>, BoxError>>;
    let closed = DataLoader::from_stream(|_| Err::<Nothing, BoxError>("no such host".into()));
    let error = closed
        .epoch(&EpochRequest::train(0, 0), &Device::flex())
        .err()
        .unwrap();
    assert!(
        matches!(&error, DataError::Stream { batch: 0, source, .. } if source.to_string() == "no such host")
    );

    let empty = DataLoader::from_stream(|_| Ok([vec![1], vec![]].into_iter().map(Ok)));
    let mut batches = erased(&empty, &EpochRequest::train(0, 0));
    assert!(batches.next().unwrap().is_ok());
    assert!(matches!(
        batches.next().unwrap().unwrap_err(),
        DataError::EmptyStreamBatch { batch: 1, .. }
    ));

    let broken = DataLoader::from_stream(|_| Ok([(vec![1], vec![1, 2])].into_iter().map(Ok)));
    let mut batches = broken.epoch(&EpochRequest::train(0, 0), &Device::flex()).unwrap();
    let message = ErrorChain(&batches.next().unwrap().unwrap_err()).to_string();
    assert!(message.contains("'1' holds 2 samples"), "{message}");
}

#[test]
fn settings_that_mean_nothing_to_a_stream_are_refused() {
    let refused = |loader: DataLoader<Vec<usize>>| {
        let error = loader
            .epoch(&EpochRequest::train(0, 0), &Device::flex())
            .err()
            .unwrap();
        error.to_string()
    };
    assert!(refused(numbers(9).shuffle(true)).contains("`shuffle(true)`: shuffle within the stream"));
    assert!(refused(numbers(9).drop_last(true)).contains("`drop_last(true)`"));
    assert!(refused(numbers(9).build_on(Device::flex())).contains("`build_on(device)`"));
    assert!(refused(numbers(9).batch_size(0)).contains("`batch_size(0)`"));
    assert!(refused(numbers(9).epoch_batches(0)).contains("`epoch_batches(0)`"));
    let request = EpochRequest::train(0, 0).shard(Shard {
        rank: 1,
        world_size: 1,
    });
    let error = numbers(9).epoch(&request, &Device::flex()).err().unwrap();
    assert!(error.to_string().contains("no rank 1 among 1"));
}
