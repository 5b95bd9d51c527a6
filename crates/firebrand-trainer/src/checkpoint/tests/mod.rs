//! The storage as a whole, with damage, full disks and killed processes.

mod background;
mod crash;
mod damage;
mod disk;
mod python;
mod round_trip;

use burn::tensor::{TensorData, bf16, f16};
use serde_json::json;

use super::Snapshot;

/// A snapshot with something of every kind, all of whose content depends on `step`.
fn snapshot(step: u64) -> Snapshot {
    let value = step as f32 + 0.5;
    let mut snapshot = Snapshot::default();
    let weights = &mut snapshot.weights;
    weights.insert(
        "net.fc.weight".into(),
        TensorData::new(vec![value; 512], [16, 32]),
    );
    weights.insert(
        "net.fc.bias".into(),
        TensorData::new(vec![bf16::from_f32(value); 32], [32]),
    );
    weights.insert(
        "bn.running_mean".into(),
        TensorData::new(vec![f64::from(value); 4], [4]),
    );
    weights.insert(
        "scalar".into(),
        TensorData::new(vec![f16::from_f32(value)], Vec::<usize>::new()),
    );
    weights.insert("empty".into(), TensorData::new(Vec::<f32>::new(), [0, 3]));
    snapshot.optimizer.insert(
        "net.fc.weight.moment_1".into(),
        TensorData::new(vec![-value; 512], [16, 32]),
    );
    snapshot.optimizer.insert(
        "net.fc.weight.time".into(),
        TensorData::new(vec![step as i64], [1]),
    );
    snapshot.extra.insert("ema".into(), snapshot.weights.clone());
    snapshot.extra.insert(
        "mask".into(),
        [("m".to_owned(), TensorData::from([true, false]))].into(),
    );
    snapshot.state = json!({
        "epoch": step / 10, "global_step": step, "lr": 0.1 / (step as f64 + 3.0), "nested": { "list": [1, -0.0, null] },
    });
    snapshot
}

/// A directory name as the trainer writes it.
fn name(step: u64) -> String {
    format!("epoch={:03}-step={step:06}", step / 10)
}
