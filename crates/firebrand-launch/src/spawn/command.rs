use std::path::Path;
use std::process::{Command, Stdio};

use firebrand_collective::{Secret, Topology};

use crate::{Error, MasterAddress, Result};

/// The variable by which a process knows that another rank of its node has started it.
pub(super) const PARENT: &str = "FIREBRAND_PARENT";

/// The command that runs this program again as another rank.
pub(super) fn again(topology: &Topology, master: &MasterAddress, secret: &Secret) -> Result<Command> {
    let program = std::env::current_exe()
        .map_err(|error| Error::spawn("this program's own file is not known", error))?;
    let mut command = Command::new(&program);
    match test_of(&program, std::thread::current().name()) {
        // A test binary runs all of its tests; the other rank is to run the one that is running here.
        Some(test) => command.args([test.as_str(), "--exact", "--include-ignored", "--nocapture"]),
        None => command.args(std::env::args_os().skip(1)),
    };
    for (name, value) in [
        ("FIREBRAND_RANK", topology.global_rank),
        ("FIREBRAND_WORLD_SIZE", topology.world_size),
        ("FIREBRAND_LOCAL_RANK", topology.local_rank),
        ("FIREBRAND_LOCAL_WORLD_SIZE", topology.local_world_size),
        ("FIREBRAND_NODE_RANK", topology.node_rank),
        ("FIREBRAND_NUM_NODES", topology.num_nodes),
    ] {
        command.env(name, value.to_string());
    }
    let threads = threads_per_rank(topology.local_world_size);
    for name in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"] {
        if std::env::var_os(name).is_none() {
            command.env(name, threads.to_string());
        }
    }
    command
        .env("FIREBRAND_MASTER", format!("{}:{}", master.host, master.port))
        .env(
            "FIREBRAND_SECRET",
            String::from_utf8_lossy(secret.as_bytes()).as_ref(),
        )
        .env_remove("FIREBRAND_SECRET_FILE")
        .env(PARENT, std::process::id().to_string())
        // Its end says that this process is gone.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        // A terminal sends Ctrl+C to its whole process group; the other ranks take it from this one.
        command.process_group(0);
    }
    Ok(command)
}

/// How many threads each of the ranks of a node uses for its arithmetic: the cores divided among them, at least one.
pub fn threads_per_rank(local_world_size: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / local_world_size.max(1)).max(1)
}

/// The name of the test that runs on a thread, if the program is a test binary as `cargo test` builds it: a file in `deps` whose
/// name ends in a hash. Its harness names threads after tests.
fn test_of(program: &Path, thread: Option<&str>) -> Option<String> {
    let stem = program.file_stem()?.to_str()?;
    let hash = stem.rsplit_once('-')?.1;
    let in_deps = program.parent()?.file_name()? == "deps";
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let thread = thread.filter(|name| *name != "main")?;
    (in_deps && is_hash).then(|| thread.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_test_binary_is_run_for_one_test() {
        let test = Path::new("/target/debug/deps/ddp-0123456789abcdef");
        assert_eq!(test_of(test, Some("two::ranks")), Some("two::ranks".to_owned()));
        assert_eq!(test_of(test, Some("main")), None);
        assert_eq!(test_of(Path::new("/target/release/digits"), Some("worker")), None);
    }

    #[test]
    fn every_rank_has_a_thread() {
        assert!(threads_per_rank(1) >= 1);
        assert_eq!(threads_per_rank(10_000), 1);
    }
}
