//! Ranks as threads, and what is compared between them.
#![allow(dead_code)]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::{DType, Device, Tensor, TensorData};
use firebrand_collective::{
    Backend, GroupContext, Health, MemoryStore, Monitor, MonitorContext, ProcessGroup, Store, connect,
};
use firebrand_core::{Stage, StepContext, StepInfo};
use firebrand_nn::{BatchNorm, BatchNormConfig};

/// The training device.
pub fn device() -> Device {
    Device::flex().autodiff()
}

/// A step of training on one rank.
pub fn step() -> StepContext {
    StepContext::new(StepInfo::first(Stage::Train, device()))
}

/// A step of training on a rank of a group.
pub fn step_of(group: &Arc<dyn ProcessGroup>) -> StepContext {
    StepContext::new(StepInfo {
        global_rank: group.rank(),
        world_size: group.size(),
        group: Some(Arc::clone(group)),
        ..StepInfo::first(Stage::Train, device())
    })
}

/// Runs a function on several ranks, each a thread with its own group, and gives what each returned.
pub fn on_ranks<T: Send + 'static>(
    ranks: usize,
    run: impl Fn(Arc<dyn ProcessGroup>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let outcomes = on_mortal_ranks(ranks, move |group| Some(run(group)));
    outcomes.into_iter().flatten().collect()
}

/// The same; a rank that returns nothing is gone without a word.
pub fn on_mortal_ranks<T: Send + 'static>(
    ranks: usize,
    run: impl Fn(Arc<dyn ProcessGroup>) -> Option<T> + Send + Sync + 'static,
) -> Vec<Option<T>> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let run = Arc::new(run);
    let threads: Vec<_> = (0..ranks)
        .map(|rank| {
            let (store, run) = (Arc::clone(&store), Arc::clone(&run));
            std::thread::spawn(move || as_rank(rank, ranks, store, &*run))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn as_rank<T>(
    rank: usize,
    ranks: usize,
    store: Arc<dyn Store>,
    run: &dyn Fn(Arc<dyn ProcessGroup>) -> Option<T>,
) -> Option<T> {
    let health = Arc::new(Health::new());
    let (address, secret): (_, Arc<[u8]>) = (Ipv4Addr::LOCALHOST.into(), Arc::from(&b"secret"[..]));
    let timeout = Duration::from_secs(60);
    let monitor = Monitor::start(MonitorContext {
        store: Arc::clone(&store),
        global_rank: rank,
        world_size: ranks,
        address,
        secret: Arc::clone(&secret),
        health: Arc::clone(&health),
        heartbeat: MonitorContext::DEFAULT_HEARTBEAT,
        silence: MonitorContext::DEFAULT_SILENCE,
        timeout,
    })
    .unwrap();
    let context = GroupContext {
        store,
        rank,
        global_ranks: (0..ranks).collect(),
        health,
        address,
        secret,
        timeout,
    };
    let outcome = run(connect(context, Backend::Auto).unwrap());
    if outcome.is_some() {
        // With a failure there is no goodbye.
        let _ = monitor.leave();
    }
    outcome
}

/// Values that look random and are the same everywhere: of a standard deviation near one, about `offset`.
pub fn values(count: usize, salt: u64, offset: f64) -> Vec<f64> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..count)
        .map(|_| offset + (0..4).map(|_| uniform() - 0.5).sum::<f64>() * 3f64.sqrt())
        .collect()
}

/// A tensor of a dtype.
pub fn tensor<const D: usize>(
    values: Vec<f64>,
    shape: [usize; D],
    dtype: DType,
    device: &Device,
) -> Tensor<D> {
    Tensor::from_data(
        TensorData::new(values, shape).convert_dtype(dtype),
        (device, dtype),
    )
}

/// The values of a tensor.
pub fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Fails where two lists differ by more than a part of the largest value.
pub fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected
        .iter()
        .fold(1e-3f64, |scale, value| scale.max(value.abs()));
    for (position, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * scale,
            "{what}[{position}] is {a} and not {b}"
        );
    }
}

/// A layer whose scale and shift are not those of a new one, in a dtype.
pub fn layer(config: &BatchNormConfig, dtype: DType) -> BatchNorm {
    let mut norm = config.init(&device()).unwrap();
    let parameter = |salt, offset| {
        let value = tensor(
            values(config.num_features, salt, offset),
            [config.num_features],
            dtype,
            &device(),
        );
        burn::module::Param::from_tensor(value)
    };
    norm.gamma = parameter(101, 1.0);
    norm.beta = parameter(102, 0.0);
    norm
}
