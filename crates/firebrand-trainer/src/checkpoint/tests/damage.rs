use std::{
    fs,
    path::{Path, PathBuf},
};

use proptest::prelude::*;

use super::{name, snapshot};
use crate::checkpoint::{Checkpoint, CheckpointDir, CheckpointError, inspect, open_weights};

const FILES: [&str; 6] = [
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "ema.safetensors",
    "mask.safetensors",
    "state.json",
];

fn written() -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let path = CheckpointDir::new(temp.path())
        .write(&name(12), &snapshot(12))
        .unwrap()
        .path;
    (temp, path)
}

fn load(path: &Path) -> Result<(), CheckpointError> {
    Checkpoint::open(path)?.snapshot().map(drop)
}

/// Damages each file in turn; each time the error must name the file and the reason.
#[track_caller]
fn each_file(damage: impl Fn(&Path), reasons: &[&str]) {
    let (_temp, path) = written();
    for file in FILES {
        let target = path.join(file);
        let original = fs::read(&target).unwrap();
        damage(&target);
        let error = load(&path).expect_err(file).to_string();
        assert!(
            reasons.iter().any(|reason| error.contains(reason)),
            "{file}: {error}"
        );
        // Without a manifest the directory itself is what is wrong.
        assert!(error.contains(file), "{file}: {error}");
        assert!(inspect(&path).is_err());
        fs::remove_dir(&target).or_else(|_| fs::remove_file(&target)).ok();
        fs::write(&target, original).unwrap();
    }
    load(&path).unwrap();
}

#[test]
fn truncated_files() {
    let cut = |keep: fn(usize) -> usize| {
        move |path: &Path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..keep(bytes.len())]).unwrap();
        }
    };
    let reasons = ["and the manifest says", "is not JSON", "checksum"];
    each_file(cut(|len| len / 2), &reasons);
    each_file(cut(|len| len - 2), &reasons);
    each_file(cut(|_| 7), &reasons);
}

#[test]
fn empty_files() {
    each_file(
        |path| fs::write(path, "").unwrap(),
        &["it has 0 bytes", "is not JSON"],
    );
}

#[test]
fn missing_files() {
    each_file(
        |path| fs::remove_file(path).unwrap(),
        &["the file is missing", "has no manifest.json"],
    );
}

#[test]
fn garbage_behind_the_end() {
    let append = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes.extend(b"{}garbage");
        fs::write(path, bytes).unwrap();
    };
    each_file(append, &["and the manifest says", "is not JSON"]);
}

#[test]
fn other_content_of_the_same_length() {
    let overwrite = |path: &Path| {
        let len = fs::metadata(path).unwrap().len() as usize;
        fs::write(path, vec![b'#'; len]).unwrap();
    };
    each_file(overwrite, &["its checksum differs", "is not JSON"]);
}

#[test]
fn directories_and_links_in_place_of_files() {
    let directory = |path: &Path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    each_file(directory, &["not a regular file"]);
    #[cfg(unix)]
    each_file(
        |path| {
            // Even a link to the very same bytes leads out of the checkpoint.
            let outside = path.parent().unwrap().with_file_name("outside");
            fs::copy(path, &outside).unwrap();
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink(outside, path).unwrap();
        },
        &["symbolic link"],
    );
}

#[test]
fn every_flipped_bit_of_the_small_files_is_found() {
    let (_temp, path) = written();
    for file in ["manifest.json", "state.json", "mask.safetensors"] {
        let target = path.join(file);
        let original = fs::read(&target).unwrap();
        for bit in 0..original.len() * 8 {
            let mut bytes = original.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&target, bytes).unwrap();
            let error = load(&path).expect_err(&format!("{file}, bit {bit}")).to_string();
            // A flip in the digits of a listed checksum shows as a mismatch of the manifest with itself.
            assert!(error.contains(file), "{file}, bit {bit}: {error}");
        }
        fs::write(&target, original).unwrap();
    }
    load(&path).unwrap();
}

#[test]
fn flipped_bits_of_tensor_files_are_found() {
    let (_temp, path) = written();
    for file in ["model.safetensors", "optimizer.safetensors", "ema.safetensors"] {
        let target = path.join(file);
        let original = fs::read(&target).unwrap();
        for bit in (0..original.len() * 8).step_by(211) {
            let mut bytes = original.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&target, bytes).unwrap();
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains("checksum"), "{error}");
            // Weights alone are checked as well; other files do not matter to them.
            assert_eq!(open_weights(&path).is_err(), file == "model.safetensors");
        }
        fs::write(&target, original).unwrap();
    }
}

#[test]
fn things_that_are_no_checkpoints() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    fs::create_dir(at("photos")).unwrap();
    fs::write(at("photos").join("a.jpg"), "x").unwrap();
    fs::write(at("weights.pt"), "x").unwrap();
    fs::create_dir(at("other")).unwrap();
    fs::write(
        at("other").join("manifest.json"),
        r#"{"name": "some app", "version": 3}"#,
    )
    .unwrap();
    for (name, reason) in [
        ("empty", "the directory is empty"),
        ("photos", "has no manifest.json"),
        ("weights.pt", "it is a file"),
        ("absent", "nothing at this path"),
        ("other", "not of the format 'firebrand-checkpoint'"),
    ] {
        for error in [load(&at(name)).unwrap_err(), open_weights(at(name)).unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains(name) && error.contains(reason), "{name}: {error}");
        }
    }
}

#[test]
fn foreign_weights_files_are_checked_in_structure() {
    let (temp, path) = written();
    let foreign = temp.path().join("foreign.safetensors");
    let original = fs::read(path.join("model.safetensors")).unwrap();
    for keep in [0, 4, 8, 100, original.len() - 1] {
        fs::write(&foreign, &original[..keep]).unwrap();
        let error = open_weights(&foreign).unwrap_err().to_string();
        assert!(
            error.contains("foreign.safetensors' is damaged"),
            "{keep}: {error}"
        );
    }
    fs::write(&foreign, &original).unwrap();
    assert_eq!(open_weights(&foreign).unwrap(), snapshot(12).weights);
}

#[test]
fn what_lies_beside_the_files_is_never_read() {
    let (_temp, path) = written();
    fs::write(path.join("evil.safetensors"), "x").unwrap();
    fs::write(path.join("notes.txt"), "x").unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().snapshot().unwrap(), snapshot(12));
}

#[cfg(unix)]
#[test]
fn a_pipe_does_not_block_the_reader() {
    let (temp, path) = written();
    for target in [
        path.join("state.json"),
        path.join("manifest.json"),
        temp.path().join("x.safetensors"),
    ] {
        fs::remove_file(&target).ok();
        let made = std::process::Command::new("mkfifo").arg(&target).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("skipped: mkfifo does not work here");
            return;
        }
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
    let error = open_weights(temp.path().join("x.safetensors"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("not a regular file"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A bare file has no checksum: whatever is in it, the answer is a value or an error that names it.
    #[test]
    fn arbitrary_changes_of_a_bare_file_are_survived(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in prop::option::of(any::<prop::sample::Index>()),
        in_header in any::<bool>(),
    ) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("x.safetensors");
        crate::checkpoint::write_tensor_file(&path, &snapshot(1).weights).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let header = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
        let range = if in_header { header } else { bytes.len() };
        for (at, value) in changes {
            bytes[at.index(range)] = value;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len()));
        }
        fs::write(&path, bytes).unwrap();
        if let Err(error) = open_weights(&path) {
            prop_assert!(error.to_string().contains("x.safetensors"), "{error}");
        }
    }
}
