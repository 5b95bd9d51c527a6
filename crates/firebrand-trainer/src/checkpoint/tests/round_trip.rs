use std::{collections::BTreeMap, fs, path::Path};

use burn::tensor::{BoolStore, DType, TensorData};
use proptest::prelude::*;
use serde_json::json;

use super::{name, snapshot};
use crate::checkpoint::{
    Checkpoint, CheckpointDir, Snapshot, open_weights, shard_file, tensor_file::STORED, write_tensor_file,
};

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect()
}

#[test]
fn a_snapshot_comes_back_as_it_was() {
    let temp = tempfile::tempdir().unwrap();
    let written = CheckpointDir::new(temp.path())
        .write(&name(7), &snapshot(7))
        .unwrap();
    let checkpoint = Checkpoint::open(&written.path).unwrap();
    assert_eq!(checkpoint.snapshot().unwrap(), snapshot(7));
    assert_eq!(checkpoint.extra("ema").unwrap().unwrap(), snapshot(7).weights);
    assert_eq!(checkpoint.extra("model").unwrap(), None);
    assert_eq!(open_weights(&written.path).unwrap(), snapshot(7).weights);
    assert_eq!(
        open_weights(written.path.join("ema.safetensors")).unwrap(),
        snapshot(7).weights
    );
    let sizes: usize = contents(&written.path)
        .iter()
        .filter(|(n, _)| *n != "manifest.json")
        .map(|(_, c)| c.len())
        .sum();
    assert_eq!(written.num_bytes, sizes as u64);
}

#[test]
fn equal_snapshots_give_equal_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let write = |place: &str, snapshot: &Snapshot| {
        let dir = CheckpointDir::new(temp.path().join(place));
        contents(&dir.write(&name(7), snapshot).unwrap().path)
    };
    let mut reordered = snapshot(7);
    let entries: Vec<_> = reordered
        .state
        .as_object()
        .unwrap()
        .clone()
        .into_iter()
        .rev()
        .collect();
    reordered.state = entries.into_iter().collect::<serde_json::Map<_, _>>().into();
    let first = write("a", &snapshot(7));
    assert_eq!(first, write("b", &reordered));
    // Written over another one of the same name.
    write("c", &snapshot(8));
    assert_eq!(first, write("c", &snapshot(7)));
}

#[test]
fn a_replaced_checkpoint_leaves_no_trace() {
    let temp = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::new(temp.path());
    dir.write("x", &snapshot(1)).unwrap();
    let second = Snapshot {
        extra: BTreeMap::new(),
        ..snapshot(2)
    };
    let path = dir.write("x", &second).unwrap().path;
    assert_eq!(Checkpoint::open(path).unwrap().snapshot().unwrap(), second);
    let mut left: Vec<_> = fs::read_dir(temp.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, [".lock", "x"]);
}

#[test]
fn shards_written_by_several_ranks_are_one_checkpoint() {
    let temp = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::new(temp.path());
    let whole = snapshot(3);
    let mut draft = dir.draft("x").unwrap();
    let mut weight_map = BTreeMap::new();
    for (rank, (name, data)) in whole.weights.iter().enumerate() {
        let file = shard_file("model", rank, whole.weights.len());
        let shard = BTreeMap::from([(name.clone(), data.clone())]);
        let entry = write_tensor_file(&draft.path().join(&file), &shard).unwrap();
        draft.record(&file, entry).unwrap();
        weight_map.insert(name.clone(), file);
    }
    draft.write_index("model", weight_map, 1234).unwrap();
    draft.write_tensors("optimizer", &whole.optimizer).unwrap();
    for (stem, tensors) in &whole.extra {
        draft.write_tensors(stem, tensors).unwrap();
    }
    draft.write_state(&whole.state).unwrap();
    let path = draft.commit().unwrap().path;
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.snapshot().unwrap(), whole);
    assert_eq!(
        checkpoint.summary().unwrap().tensors["model"].len(),
        whole.weights.len()
    );
    assert_eq!(open_weights(&path).unwrap(), whole.weights);
    assert_eq!(
        open_weights(path.join("model.safetensors.index.json")).unwrap(),
        whole.weights
    );
    let shard = path.join(shard_file("model", 0, whole.weights.len()));
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let error = open_weights(&path).unwrap_err().to_string();
    assert!(
        error.contains("model-00001-of-00005.safetensors' is damaged"),
        "{error}"
    );
}

#[test]
fn other_stores_of_booleans_come_back_as_booleans() {
    let temp = tempfile::tempdir().unwrap();
    let mut snapshot = Snapshot::default();
    let wide = TensorData::from_bytes_vec(vec![1, 0, 0, 0, 0, 0, 0, 0], [2], DType::Bool(BoolStore::U32));
    snapshot.weights.insert("mask".into(), wide);
    let path = CheckpointDir::new(temp.path())
        .write("x", &snapshot)
        .unwrap()
        .path;
    assert_eq!(
        open_weights(path).unwrap()["mask"],
        TensorData::from([true, false])
    );
}

/// A tensor of any stored dtype with any bits, NaN payloads and signed zeros among them.
fn any_tensor() -> impl Strategy<Value = TensorData> {
    (0..STORED.len(), prop::collection::vec(0usize..5, 0..5)).prop_flat_map(|(dtype, shape)| {
        let dtype = STORED[dtype];
        let len = shape.iter().product::<usize>() * dtype.size();
        let byte = if dtype.is_bool() {
            (0u8..2).boxed()
        } else {
            any::<u8>().boxed()
        };
        prop::collection::vec(byte, len)
            .prop_map(move |bytes| TensorData::from_bytes_vec(bytes, shape.clone(), dtype))
    })
}

fn any_tensors() -> impl Strategy<Value = BTreeMap<String, TensorData>> {
    // Any names, also those that JSON must escape.
    prop::collection::btree_map("[a-z.\"\\\\ä\n]{1,12}", any_tensor(), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_dtypes_shapes_and_names_survive_bit_for_bit(
        weights in any_tensors(),
        optimizer in any_tensors(),
        extra in prop::collection::btree_map("[a-z][a-z0-9_.]{3,8}", any_tensors(), 0..3),
        numbers in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO, 0..20),
        step in any::<u64>(),
    ) {
        let state = json!({ "numbers": numbers, "global_step": step });
        let snapshot = Snapshot { weights, optimizer, extra, state };
        let temp = tempfile::tempdir().unwrap();
        let path = CheckpointDir::new(temp.path()).write("x", &snapshot).unwrap().path;
        let read = Checkpoint::open(path).unwrap().snapshot().unwrap();
        let bits = |state: &serde_json::Value| -> Vec<u64> {
            state["numbers"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap().to_bits()).collect()
        };
        prop_assert_eq!(bits(&read.state), numbers.iter().map(|n| n.to_bits()).collect::<Vec<_>>());
        prop_assert_eq!(read, snapshot);
    }
}
