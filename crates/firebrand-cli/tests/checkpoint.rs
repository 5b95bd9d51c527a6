//! `firebrand checkpoint inspect` on a checkpoint that is whole, and on one that is not.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use burn::tensor::TensorData;
use firebrand_trainer::checkpoint::{CheckpointDir, Snapshot};

#[test]
fn a_checkpoint_is_described_and_a_damaged_one_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut snapshot = Snapshot::default();
    snapshot
        .weights
        .insert("net.weight".to_owned(), TensorData::from([[1.0f32, 2.0, 3.0]]));
    snapshot.state = serde_json::json!({"global_step": 1200, "epoch": 3});
    let path = CheckpointDir::new(folder.path())
        .write("x", &snapshot)
        .unwrap()
        .path;
    let inspect = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firebrand"));
        command
            .args(["checkpoint", "inspect"])
            .arg(&path)
            .args(arguments)
            .output()
            .unwrap()
    };

    let output = inspect(&[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    for part in [
        "epoch 3, global step 1200",
        "net.weight  [1, 3]",
        "model.safetensors",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value = serde_json::from_slice(&inspect(&["--json"]).stdout).unwrap();
    assert_eq!(json["global_step"], 1200);

    let file = path.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let output = inspect(&[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("model.safetensors"), "{said}");
}
