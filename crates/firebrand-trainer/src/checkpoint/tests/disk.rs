use std::{fs, path::Path, process::Command};

use burn::tensor::TensorData;

use super::{name, snapshot};
use crate::checkpoint::{
    BackgroundWriter, Checkpoint, CheckpointDir, CheckpointError, Pointer, Resume, SaveRequest, Snapshot,
};

/// A file system of its own, unmounted when dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    /// Some kilobytes of memory as a disk, or `None` where this process may not mount.
    fn new(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path())
            .output();
        if mount.is_ok_and(|output| output.status.success()) {
            return Some(Self(dir));
        }
        println!("skipped: this process may not mount a file system");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn read_only(&self) -> bool {
        let status = Command::new("mount")
            .args(["-o", "remount,ro"])
            .arg(self.path())
            .status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

fn hidden(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.starts_with('.') && name != ".lock")
        .collect()
}

/// A snapshot with so many bytes of weights on top of the usual ones.
fn large(step: u64, num_bytes: usize) -> Snapshot {
    let mut snapshot = snapshot(step);
    snapshot
        .weights
        .insert("large".into(), TensorData::new(vec![1u8; num_bytes], [num_bytes]));
    snapshot
}

#[test]
fn a_full_disk_leaves_the_earlier_checkpoints() {
    let Some(mount) = Mount::new("512k") else { return };
    let dir = CheckpointDir::new(mount.path().join("checkpoints"));
    dir.write(&name(1), &snapshot(1)).unwrap();
    dir.point(Pointer::Last, &name(1)).unwrap();
    // Too large at once, and too large only in one of the later files.
    let mut late = snapshot(2);
    late.extra.insert("ema".into(), large(2, 1 << 20).weights);
    for too_large in [large(2, 1 << 20), late] {
        for name in [name(2), name(1)] {
            let error = dir.write(&name, &too_large).unwrap_err();
            assert!(
                matches!(&error, CheckpointError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull)
            );
            let text = error.to_string();
            assert!(text.contains(&name) && text.contains(".safetensors"), "{text}");
            assert!(
                text.contains("free some space") && !text.contains(".tmp-"),
                "{text}"
            );
            assert_eq!(hidden(dir.root()), Vec::<String>::new());
        }
    }
    let last = dir.resolve(&Resume::Last).unwrap().unwrap();
    assert_eq!(last.snapshot().unwrap(), snapshot(1));
    dir.write(&name(3), &snapshot(3)).unwrap();
}

#[test]
fn a_background_writer_goes_on_after_a_full_disk() {
    let Some(mount) = Mount::new("512k") else { return };
    let dir = CheckpointDir::new(mount.path());
    let mut writer = BackgroundWriter::new(dir.clone()).unwrap();
    let request = |step, snapshot| SaveRequest::new(name(step), snapshot).point(Pointer::Last);
    let mut outcomes = writer.submit(request(1, snapshot(1)));
    outcomes.extend(writer.submit(request(2, large(2, 1 << 20)).remove(name(1))));
    outcomes.extend(writer.submit(request(3, snapshot(3))));
    outcomes.extend(writer.flush());
    assert_eq!(
        outcomes
            .iter()
            .map(|outcome| outcome.result.is_ok())
            .collect::<Vec<_>>(),
        [true, false, true]
    );
    // The first one was to go once the second was there, which never came.
    assert_eq!(
        dir.list()
            .unwrap()
            .into_iter()
            .map(|c| c.name)
            .collect::<Vec<_>>(),
        [name(3), name(1)]
    );
    assert_eq!(dir.pointer(Pointer::Last).unwrap(), Some(name(3)));
}

#[test]
fn a_read_only_disk_is_named_and_can_be_read() {
    let Some(mount) = Mount::new("512k") else { return };
    let dir = CheckpointDir::new(mount.path());
    dir.write(&name(1), &snapshot(1)).unwrap();
    dir.point(Pointer::Last, &name(1)).unwrap();
    if !mount.read_only() {
        println!("skipped: this process may not remount");
        return;
    }
    let error = dir.write(&name(2), &snapshot(2)).unwrap_err().to_string();
    assert!(
        error.contains("mounted read-only: choose another directory"),
        "{error}"
    );
    assert!(dir.point(Pointer::Best, &name(1)).is_err());
    assert!(dir.remove(&name(1), crate::checkpoint::Protection::None).is_err());
    for resume in [Resume::Auto, Resume::Last] {
        assert_eq!(
            dir.resolve(&resume).unwrap().unwrap().snapshot().unwrap(),
            snapshot(1)
        );
    }
}

#[test]
fn places_where_nothing_can_be_written() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "mine").unwrap();
    let error = CheckpointDir::new(file.join("checkpoints"))
        .write(&name(1), &snapshot(1))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("file/checkpoints") && error.contains("a part of the path is a file"),
        "{error}"
    );
    let error = CheckpointDir::new(&file)
        .write(&name(1), &snapshot(1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot create the directory"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[cfg(unix)]
#[test]
fn a_directory_without_permission() {
    use std::os::unix::fs::PermissionsExt as _;
    let temp = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::new(temp.path().join("checkpoints"));
    let path = dir.write(&name(1), &snapshot(1)).unwrap().path;
    let set = |mode| fs::set_permissions(dir.root(), fs::Permissions::from_mode(mode)).unwrap();
    set(0o555);
    let forbidden = fs::write(dir.root().join("probe"), "").is_err();
    if forbidden {
        let error = dir.write(&name(2), &snapshot(2)).unwrap_err().to_string();
        assert!(error.contains("permissions of the directory"), "{error}");
        assert_eq!(Checkpoint::open(path).unwrap().snapshot().unwrap(), snapshot(1));
    } else {
        println!("skipped: permissions do not bind this user");
    }
    set(0o755);
}
