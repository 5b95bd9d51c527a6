use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use firebrand_trainer::data::{DataLoader, EpochRequest, Samples};

use super::{erased, plain};

/// Samples that count how often they are read.
fn counted(len: usize, pause: Duration) -> (Samples<usize>, Arc<AtomicUsize>) {
    let reads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reads);
    let samples = Samples::from_fn(len, move |sample, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(pause);
        Ok(sample)
    });
    (samples, reads)
}

/// Whether the threads of this process whose name starts with a prefix become `expected`. A thread that was joined may be
/// listed a moment longer.
#[cfg(target_os = "linux")]
fn threads_become(prefix: &str, expected: usize) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while threads(prefix) != expected {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[cfg(target_os = "linux")]
fn threads(prefix: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with(prefix))
        .count()
}

#[test]
#[cfg(target_os = "linux")]
fn no_thread_is_left_after_many_epochs_however_they_end() {
    let samples = Samples::from_fn(12, |sample, _| {
        assert_ne!(sample, 11, "the last sample always fails");
        Ok(sample)
    });
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let samples = samples.map(move |sample, _| {
        let _ = &held;
        Ok(sample)
    });
    let loader = plain(samples).batch_size(2).num_workers(2).name("leak");
    for number in 0..1_000_u64 {
        let mut batches = erased(&loader, &EpochRequest::train(0, number));
        assert!(threads("leak-") <= 2);
        // Dropped at once, in the middle, at the end of what works, and behind the panic of a worker.
        let taken = batches
            .by_ref()
            .take((number % 8) as usize)
            .filter(Result::is_ok)
            .count();
        assert!(taken <= 5);
        drop(batches);
        assert!(threads_become("leak-", 0));
    }
    drop(loader);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_dropped_epoch_reads_nothing_more_and_does_not_wait_for_its_end() {
    let (samples, reads) = counted(3_000, Duration::from_millis(5));
    let loader = plain(samples).batch_size(1_000).num_workers(3);
    let start = Instant::now();
    let batches = erased(&loader, &EpochRequest::train(0, 0));
    std::thread::sleep(Duration::from_millis(50));
    drop(batches);
    // A batch takes five seconds, and the workers were in the middle of their first ones.
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    let read = reads.load(Ordering::SeqCst);
    assert!(read < 2_400, "{read}");
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(reads.load(Ordering::SeqCst), read);
}

#[test]
fn workers_read_ahead_only_as_far_as_they_may() {
    for (num_workers, prefetch) in [(1, 0), (2, 1), (3, 2)] {
        let (samples, reads) = counted(1_000, Duration::ZERO);
        let loader = plain(samples)
            .batch_size(1)
            .num_workers(num_workers)
            .prefetch(prefetch);
        let mut batches = erased(&loader, &EpochRequest::train(0, 0));
        for taken in 1..20 {
            batches.next().unwrap().unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let read = reads.load(Ordering::SeqCst);
            assert!(
                read <= taken + num_workers * (prefetch + 1),
                "{read} after {taken}"
            );
        }
    }
}

#[test]
fn workers_read_at_the_same_time() {
    // Every sample waits until its neighbour, which the other worker has, is being read as well.
    let started = Arc::new((Mutex::new([false; 8]), Condvar::new()));
    let samples = Samples::from_fn(8, move |sample, _| {
        let (samples, changed) = &*started;
        let mut samples = samples.lock().unwrap();
        samples[sample] = true;
        changed.notify_all();
        let patience = Duration::from_secs(30);
        let (_samples, waited) = changed
            .wait_timeout_while(samples, patience, |samples| !samples[sample ^ 1])
            .unwrap();
        if waited.timed_out() {
            Err("alone".into())
        } else {
            Ok(sample)
        }
    });
    let loader = plain(samples).num_workers(2);
    let read: Vec<usize> = erased(&loader, &EpochRequest::train(0, 0))
        .flat_map(|batch| batch.unwrap().samples)
        .collect();
    assert_eq!(read, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn an_epoch_may_be_read_in_another_thread() {
    let loader = plain(Samples::from_fn(10, |sample, _| Ok(sample)))
        .batch_size(3)
        .num_workers(2);
    let batches = erased(&loader, &EpochRequest::train(0, 0));
    drop(loader);
    let count = std::thread::spawn(move || batches.count()).join().unwrap();
    assert_eq!(count, 4);
}

#[test]
fn throughput() {
    const SAMPLES: usize = 64 * 500;
    let digits = Samples::from_fn(SAMPLES, |sample, _| Ok([sample as f32; 64]));
    let loader = DataLoader::from_fn(digits, |items: Vec<[f32; 64]>, device| {
        let num_samples = items.len();
        Ok(Tensor::<1>::from_floats(items.as_flattened(), device).reshape([num_samples, 64]))
    })
    .batch_size(64)
    .shuffle(true);
    let nothing = plain(Samples::from_fn(SAMPLES, |sample, _| Ok(sample))).batch_size(64);
    let print = |name: &str, batches: &mut dyn Iterator<Item = ()>| {
        let start = Instant::now();
        assert_eq!(batches.count(), 500);
        println!(
            "{name}: {:.2} µs per batch of 64",
            start.elapsed().as_secs_f64() * 1e6 / 500.0
        );
    };
    for num_workers in [0, 1, 2] {
        let loader = loader.clone().num_workers(num_workers).erase();
        let mut batches = loader.epoch(&EpochRequest::train(0, 0), &Device::flex()).unwrap();
        print(
            &format!("tensors, {num_workers} workers"),
            &mut batches.by_ref().map(|batch| drop(batch.unwrap())),
        );
        let loader = nothing.clone().num_workers(num_workers);
        let mut batches = erased(&loader, &EpochRequest::train(0, 0));
        print(
            &format!("indices, {num_workers} workers"),
            &mut batches.by_ref().map(|batch| drop(batch.unwrap())),
        );
    }
}
