use proptest::prelude::*;

use super::*;

fn tensor(shape: &[usize]) -> TensorData {
    let len = shape.iter().product::<usize>();
    TensorData::new((0..len).map(|i| i as f32).collect::<Vec<_>>(), shape.to_vec())
}

/// A small model with one layer of each kind.
fn weights() -> BTreeMap<String, TensorData> {
    let shapes: [(&str, &[usize]); 13] = [
        ("emb.weight", &[10, 4]),
        ("blocks.0.fc.weight", &[4, 6]),
        ("blocks.0.fc.bias", &[6]),
        ("blocks.0.norm.gamma", &[6]),
        ("blocks.0.norm.beta", &[6]),
        ("conv.weight", &[3, 2, 5, 5]),
        ("bn.gamma", &[3]),
        ("bn.beta", &[3]),
        ("bn.running_mean", &[3]),
        ("bn.running_var", &[3]),
        ("rms.gamma", &[6]),
        ("own.matrix", &[2, 3]),
        ("scale", &[1]),
    ];
    shapes
        .into_iter()
        .map(|(name, shape)| (name.to_owned(), tensor(shape)))
        .collect()
}

fn map() -> NameMap {
    NameMap::layers([
        ("emb", LayerKind::Embedding),
        ("blocks.*.fc", LayerKind::Linear),
        ("blocks.*.norm", LayerKind::LayerNorm),
        ("conv", LayerKind::Conv),
        ("bn", LayerKind::BatchNorm),
        ("rms", LayerKind::RmsNorm),
    ])
    .transpose("own.matrix")
    .rename_glob("blocks.*.fc.*", "h.*.mlp.*")
    .rename_prefix("", "model.")
    .rename("model.scale", "logit_scale")
}

#[test]
fn names_and_layouts_become_those_of_pytorch() {
    let exported = map().export(weights()).unwrap();
    let shape = |name: &str| exported.get(name).map(|data| data.shape().to_vec());
    assert_eq!(shape("model.emb.weight"), Some(vec![10, 4]));
    assert_eq!(shape("model.h.0.mlp.weight"), Some(vec![6, 4]));
    assert_eq!(shape("model.h.0.mlp.bias"), Some(vec![6]));
    assert_eq!(shape("model.blocks.0.norm.weight"), Some(vec![6]));
    assert_eq!(shape("model.blocks.0.norm.bias"), Some(vec![6]));
    assert_eq!(shape("model.conv.weight"), Some(vec![3, 2, 5, 5]));
    assert_eq!(shape("model.bn.weight"), Some(vec![3]));
    assert_eq!(shape("model.bn.running_var"), Some(vec![3]));
    assert_eq!(shape("model.rms.weight"), Some(vec![6]));
    assert_eq!(shape("model.own.matrix"), Some(vec![3, 2]));
    assert_eq!(shape("logit_scale"), Some(vec![1]));
    assert_eq!(exported.len(), weights().len());
}

#[test]
fn a_file_from_pytorch_is_imported_without_its_counter_of_batches() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    export_file(&path, weights(), &map()).unwrap();
    export_file(&path, weights(), &map()).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(
        import_file(&path, weights().into_keys(), &map()).unwrap(),
        weights()
    );

    let mut tensors = open_weights(&path).unwrap();
    tensors.insert("model.bn.num_batches_tracked".into(), TensorData::from([7i64]));
    assert_eq!(
        map().import(tensors.clone(), weights().into_keys()).unwrap(),
        weights()
    );
    tensors.insert("lm_head.weight".into(), TensorData::from([7f32]));
    assert!(map().import(tensors.clone(), weights().into_keys()).is_err());
    let imported = map()
        .ignore("lm_head.**")
        .import(tensors, weights().into_keys())
        .unwrap();
    assert_eq!(imported, weights());
}

#[test]
fn missing_and_unknown_names_are_all_listed() {
    let mut tensors = map().export(weights()).unwrap();
    tensors.remove("model.bn.weight");
    tensors.remove("model.h.0.mlp.weight");
    tensors.insert("model.extra".into(), tensor(&[1]));
    let error = map()
        .import(tensors, weights().into_keys())
        .unwrap_err()
        .to_string();
    for part in [
        "missing: ",
        "'model.bn.weight'",
        "'model.h.0.mlp.weight'",
        "unknown: 'model.extra'",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn mistaken_rules_are_named() {
    let refuse = |map: NameMap, reason: &str| {
        let error = map.export(weights()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    refuse(
        NameMap::new().layer("block.*.fc", LayerKind::Linear),
        "unused: 'block.*.fc'",
    );
    refuse(NameMap::new().transpose("*.weights"), "unused: '*.weights'");
    refuse(
        NameMap::new().rename("x", "y").rename_prefix("z", "y"),
        "unused: 'x', 'z'",
    );
    refuse(
        NameMap::new().rename_glob("*.weight", "weight"),
        "different numbers of wildcards",
    );
    refuse(
        NameMap::new().rename("bn.beta", "bn.gamma"),
        "'bn.beta' and 'bn.gamma' would both be named 'bn.gamma'",
    );
    refuse(
        NameMap::new().transpose("conv.weight"),
        "'conv.weight' has the shape [3, 2, 5, 5]",
    );
}

proptest! {
    #[test]
    fn import_undoes_export(
        layers in prop::collection::btree_map("[a-c]{1,3}(\\.[0-9])?", (0usize..7, 1usize..9, 1usize..9), 1..6),
        prefix in "[a-z]{0,3}\\.?",
    ) {
        const KINDS: [LayerKind; 7] = [
            LayerKind::Linear,
            LayerKind::Conv,
            LayerKind::Embedding,
            LayerKind::LayerNorm,
            LayerKind::GroupNorm,
            LayerKind::RmsNorm,
            LayerKind::BatchNorm,
        ];
        let mut weights = BTreeMap::new();
        let mut map = NameMap::new().rename_prefix("", prefix);
        for (path, (kind, rows, cols)) in layers {
            let kind = KINDS[kind];
            map = map.layer(&path, kind);
            let norm = !matches!(kind, LayerKind::Linear | LayerKind::Conv | LayerKind::Embedding);
            let (weight, bias) = if norm { ("gamma", "beta") } else { ("weight", "bias") };
            let shape = if norm { vec![cols] } else { vec![rows, cols] };
            weights.insert(format!("{path}.{weight}"), tensor(&shape));
            weights.insert(format!("{path}.{bias}"), tensor(&[cols]));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        export_file(&path, weights.clone(), &map).unwrap();
        prop_assert_eq!(import_file(&path, weights.keys().cloned(), &map).unwrap(), weights);
    }
}
