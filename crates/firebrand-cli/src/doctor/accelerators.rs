use std::path::{Path, PathBuf};

use super::report::Report;

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where libraries lie when no variable says so.
const DIRECTORIES: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];

/// Looks for files only: loading a driver takes time and may fail in its own ways.
pub fn examine(report: &mut Report, lookup: Lookup<'_>) {
    report.section("Accelerators");
    let gpus = gpus(Path::new("/dev"));
    report.fact("NVIDIA GPUs", gpus.to_string());
    let driver = find("libcuda.so.1", lookup);
    report.fact("CUDA driver (libcuda.so.1)", shown(driver.as_deref()));
    let nccl = match lookup("FIREBRAND_NCCL_LIBRARY").filter(|path| !path.is_empty()) {
        Some(path) if Path::new(&path).is_file() => Some(PathBuf::from(path)),
        Some(path) => {
            report.problem(
                format!("FIREBRAND_NCCL_LIBRARY={path} names no file"),
                "set it to the path of libnccl.so.2, or unset it",
            );
            None
        }
        None => find("libnccl.so.2", lookup),
    };
    report.fact("NCCL (libnccl.so.2)", shown(nccl.as_deref()));
    let others = [
        ("Vulkan loader", "libvulkan.so.1"),
        ("LibTorch", "libtorch_cpu.so"),
    ];
    for (name, library) in others {
        report.fact(
            format!("{name} ({library})"),
            shown(find(library, lookup).as_deref()),
        );
    }
    if gpus > 0 && driver.is_none() {
        report.problem(
            "there are NVIDIA GPUs but no CUDA driver library",
            "install the driver's libraries, or start the container with `--gpus all`",
        );
    }
    if gpus > 1 && nccl.is_none() {
        report.problem(
            "there are several GPUs but no NCCL",
            "install libnccl2, or `pip install nvidia-nccl-cu12` and set FIREBRAND_NCCL_LIBRARY to its libnccl.so.2",
        );
    }
}

fn shown(path: Option<&Path>) -> String {
    path.map_or("not found".to_owned(), |path| path.display().to_string())
}

/// `/dev/nvidia0`, `/dev/nvidia1`, …; not `/dev/nvidiactl`.
fn gpus(devices: &Path) -> usize {
    let Ok(entries) = devices.read_dir() else {
        return 0;
    };
    entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
            number
                .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .count()
}

fn find(library: &str, lookup: Lookup<'_>) -> Option<PathBuf> {
    let set = lookup("LD_LIBRARY_PATH").unwrap_or_default();
    let named = std::env::split_paths(&set)
        .filter(|path| path.is_absolute())
        .collect::<Vec<_>>();
    let known = DIRECTORIES.iter().map(PathBuf::from);
    named
        .into_iter()
        .chain(known)
        .map(|directory| directory.join(library))
        .find(|path| path.is_file())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_devices_are_found_by_their_names() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "nvidia0",
            "nvidia12",
            "nvidiactl",
            "nvidia",
            "nvidia-uvm",
            "libnccl.so.2",
        ] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        assert_eq!(gpus(directory.path()), 2);
        assert_eq!(gpus(Path::new("/no/such/directory")), 0);
        let path = directory.path().display().to_string();
        let lookup = |name: &str| (name == "LD_LIBRARY_PATH").then(|| path.clone());
        assert_eq!(
            find("libnccl.so.2", &lookup).unwrap(),
            directory.path().join("libnccl.so.2")
        );
        assert!(find("libno.so.7", &lookup).is_none());
    }

    #[test]
    fn a_library_that_is_named_but_not_there_is_a_problem() {
        let mut report = Report::default();
        examine(&mut report, &|name| {
            (name == "FIREBRAND_NCCL_LIBRARY").then(|| "/no/libnccl.so.2".to_owned())
        });
        assert!(
            report
                .to_string()
                .contains("FIREBRAND_NCCL_LIBRARY=/no/libnccl.so.2 names no file")
        );
    }
}
