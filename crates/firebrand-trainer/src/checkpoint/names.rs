use super::CheckpointError;

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const STATE: &str = "state.json";
/// The stems of the tensor files that every checkpoint has.
pub(super) const MODEL: &str = "model";
pub(super) const OPTIMIZER: &str = "optimizer";
const TENSORS: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.json";

/// The tensor file of a stem: `model` → `model.safetensors`.
pub(super) fn tensor_file(stem: &str) -> String {
    format!("{stem}{TENSORS}")
}

/// The index of a sharded stem: `model` → `model.safetensors.index.json`.
pub(super) fn index_file(stem: &str) -> String {
    format!("{stem}{INDEX}")
}

/// The name of one of `num_shards` files, as Hugging Face spells it: `model-00001-of-00004.safetensors` for shard 0.
pub fn shard_file(stem: &str, shard: usize, num_shards: usize) -> String {
    format!("{stem}-{:05}-of-{num_shards:05}{TENSORS}", shard + 1)
}

/// The stem of a tensor file or of an index.
pub(super) fn stem_of(file: &str) -> Option<&str> {
    file.strip_suffix(INDEX).or_else(|| file.strip_suffix(TENSORS))
}

/// Whether a file is an index of shards.
pub(super) fn is_index(file: &str) -> bool {
    file.ends_with(INDEX)
}

/// Refuses whatever is not the plain name of a visible file in the same directory.
pub(super) fn check_plain(what: &'static str, name: &str) -> Result<(), CheckpointError> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.len() > 200 {
        "it is longer than 200 bytes"
    } else if name.chars().any(|c| matches!(c, '/' | '\\') || c.is_control()) {
        "it has a slash, a backslash or a control character; a plain name is needed"
    } else if name.starts_with('.') {
        "it starts with a dot"
    } else {
        return Ok(());
    };
    Err(CheckpointError::InvalidName {
        what,
        name: name.to_owned(),
        reason,
    })
}

/// Refuses names of checkpoints that are no plain names or that mean something else.
pub(super) fn check_checkpoint(name: &str) -> Result<(), CheckpointError> {
    check_plain("checkpoint name", name)?;
    if super::Pointer::ALL
        .iter()
        .any(|pointer| pointer.file_name() == name)
    {
        let reason = "the name is reserved for the pointer file";
        return Err(CheckpointError::InvalidName {
            what: "checkpoint name",
            name: name.to_owned(),
            reason,
        });
    }
    Ok(())
}

/// Refuses stems of tensor files that could be taken for another file of the checkpoint.
pub(super) fn check_stem(stem: &str) -> Result<(), CheckpointError> {
    check_plain("tensor file name", stem)?;
    let reason = if !stem
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
    {
        "use ASCII letters, digits, '_', '-' and '.' only"
    } else if stem.contains(TENSORS) {
        "leave out the ending '.safetensors'"
    } else if [MODEL, OPTIMIZER]
        .iter()
        .any(|own| stem != *own && is_shard_like(stem, own))
    {
        "it reads like a part of the model's or the optimizer's files"
    } else {
        return Ok(());
    };
    Err(CheckpointError::InvalidName {
        what: "tensor file name",
        name: stem.to_owned(),
        reason,
    })
}

/// Whether a stem could be a shard of another or is equal to it on a file system that ignores case.
fn is_shard_like(stem: &str, other: &str) -> bool {
    let stem = stem.to_ascii_lowercase();
    stem.strip_prefix(other)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_pass() {
        for name in [
            "",
            ".",
            "..",
            "../x",
            "/etc",
            "a/b",
            "a\\b",
            "a\0b",
            ".hidden",
            &"x".repeat(201),
        ] {
            assert!(check_plain("name", name).is_err(), "{name:?}");
        }
        for name in ["epoch=003-step=001200", "val_loss=0.25", "a b", "ä"] {
            check_plain("name", name).unwrap();
        }
        assert!(check_checkpoint("last").is_err() && check_checkpoint("best").is_err());
    }

    #[test]
    fn stems_stay_apart() {
        for stem in [
            "Model",
            "model-x",
            "optimizer-00001-of-00002",
            "OPTIMIZER",
            "a.safetensors",
            "ä",
            "a b",
        ] {
            assert!(check_stem(stem).is_err(), "{stem}");
        }
        for stem in ["model", "optimizer", "ema", "ema.0", "model_ema", "modelling"] {
            check_stem(stem).unwrap();
        }
    }

    #[test]
    fn shards_are_counted_from_one() {
        assert_eq!(shard_file("model", 0, 4), "model-00001-of-00004.safetensors");
        assert_eq!(stem_of("model.safetensors.index.json"), Some("model"));
        assert_eq!(stem_of("model.safetensors"), Some("model"));
        assert_eq!(stem_of("state.json"), None);
    }
}
