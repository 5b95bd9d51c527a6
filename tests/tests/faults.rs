//! Every rank may go wrong in every way at every phase of a run: all others end in time, say who and why, leave nothing behind, and
//! the last checkpoint is whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use firebrand_tests::runs::processes;

const RANKS: usize = 3;
/// The deadline of the ranks, in seconds: how long one that is stopped is waited for.
const TIMEOUT: u64 = 4;
/// How long the others may take to end after that, on a machine that does other things too.
const SLACK: Duration = Duration::from_secs(20);

const FAULTS: [&str; 4] = ["error", "panic", "kill", "stop"];
const PHASES: [&str; 7] = [
    "rendezvous",
    "start",
    "first-step",
    "step",
    "backward",
    "validation",
    "checkpoint",
];

#[derive(Clone, Copy, Debug)]
struct Case {
    fault: &'static str,
    phase: &'static str,
    rank: usize,
}

fn start(root: &Path, arguments: &str) -> Child {
    let said = |name: &str| std::fs::File::create(root.with_extension(name)).unwrap();
    Command::new(env!("CARGO_BIN_EXE_faulty_ranks"))
        .args(["--default-root-dir", root.to_str().unwrap(), "--progress", "off"])
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .stdout(said("out"))
        .stderr(said("err"))
        .env("RAYON_NUM_THREADS", "1")
        .env("FIREBRAND_TIMEOUT", TIMEOUT.to_string())
        .env("RUST_BACKTRACE", "0")
        .env_remove("FIREBRAND_LOG")
        .spawn()
        .unwrap()
}

/// Waits until something holds; whether it came to that.
fn wait_until(until: Instant, mut holds: impl FnMut() -> bool) -> bool {
    while !holds() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

fn last_checkpoint(root: &Path) -> Option<PathBuf> {
    let checkpoints = root.join("faulty/version_0/checkpoints");
    let name = std::fs::read_to_string(checkpoints.join("last")).ok()?;
    Some(checkpoints.join(name.trim()))
}

/// Runs one case; what was wrong with how it ended.
fn run(case: Case) -> Result<(), String> {
    let Case { fault, phase, rank } = case;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("run");
    let begun = Instant::now();
    let arguments = format!("--devices {RANKS} --fault {fault} --phase {phase} --fault-rank {rank}");
    let mut child = start(&root, &arguments);
    let until = begun + Duration::from_secs(TIMEOUT) + SLACK;

    // A first rank that is stopped cannot end; the others do, and it is whoever started it that ends it.
    let first_is_stopped = fault == "stop" && rank == 0;
    let ended = if first_is_stopped {
        let id = child.id();
        wait_until(begun + SLACK, || is_stopped(id))
            && wait_until(until, || processes(&root, Some(id)).is_empty())
    } else {
        wait_until(until, || child.try_wait().unwrap().is_some())
    };
    if first_is_stopped || !ended {
        let _ = child.kill();
    }
    let status = child.wait().unwrap();
    let said = std::fs::read_to_string(root.with_extension("err")).unwrap();
    let wrong = |what: &str| {
        Err(format!(
            "{case:?}: {what} ({status}, {:?})\n{said}",
            begun.elapsed()
        ))
    };
    if !ended {
        return wrong("it did not end in time");
    }
    if status.success() {
        return wrong("it ended as if nothing were wrong");
    }
    // Those that the end of their parent ends have no parent that waits for them.
    if !wait_until(Instant::now() + Duration::from_secs(10), || {
        processes(&root, None).is_empty()
    }) {
        return wrong("processes are left behind");
    }

    // What the first rank says, or the others of it: it cannot speak when it is dead, and nobody reads what they say then.
    let errors: Vec<&str> = said.lines().filter(|line| line.contains("error: ")).collect();
    if !(rank == 0 && matches!(fault, "kill" | "stop")) {
        let cause = match fault {
            "error" => "the disk of the dataset is gone",
            "panic" => "panicked",
            "kill" => "killed",
            _ if phase == "rendezvous" => "still waiting for",
            _ => "did not come",
        };
        if !said.contains(cause) {
            return wrong("the cause is not said");
        }
        // Before the first rank has met the others nobody else is there to speak of it.
        let speak_of_it = rank != 0 || phase != "rendezvous";
        if speak_of_it && !errors.iter().any(|line| line.contains(&format!("rank {rank}"))) && rank != 0 {
            return wrong("the rank is not named");
        }
        let phase_words = match phase {
            "validation" => "validat",
            "step" | "backward" => "epoch",
            _ => "",
        };
        if rank != 0
            && matches!(fault, "kill" | "stop")
            && !errors.iter().any(|line| line.contains(phase_words))
        {
            return wrong("the phase is not said");
        }
    }

    // The run goes on from its last checkpoint, if it has come so far.
    let later = matches!(phase, "step" | "backward" | "checkpoint" | "validation");
    match last_checkpoint(&root) {
        None if later => return wrong("there is no checkpoint"),
        None => {}
        Some(_) => {
            let status = start(&root, "--devices 1 --resume last").wait().unwrap();
            if !status.success() {
                let said = std::fs::read_to_string(root.with_extension("err")).unwrap();
                return Err(format!("{case:?}: it does not go on: {said}"));
            }
        }
    }
    Ok(())
}

/// Whether a process is stopped.
fn is_stopped(id: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    state
        .rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with('T'))
}

#[test]
fn every_rank_may_fail_at_every_phase() {
    let mut cases: Vec<Case> = Vec::new();
    for rank in 0..RANKS {
        for phase in PHASES {
            for fault in FAULTS {
                cases.push(Case { fault, phase, rank });
            }
        }
    }
    let (cases, problems) = (Mutex::new(cases), Mutex::new(Vec::new()));
    // Most of the time they wait.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = { cases.lock().unwrap().pop() } {
                    if let Err(problem) = run(case) {
                        problems.lock().unwrap().push(problem);
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap();
    assert!(
        problems.is_empty(),
        "{} cases\n{}",
        problems.len(),
        problems.join("\n\n")
    );
}

#[test]
fn a_run_in_which_nothing_fails_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("run");
    let status = start(&root, &format!("--devices {RANKS}")).wait().unwrap();
    assert!(
        status.success(),
        "{}",
        std::fs::read_to_string(root.with_extension("err")).unwrap()
    );
    assert!(last_checkpoint(&root).is_some());
}

/// Shared memory of ranks has no name, and takes nothing of /dev/shm.
#[test]
fn a_full_dev_shm_does_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("run");
    // In a mount namespace of its own, where /dev/shm is small and full.
    let script = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full \
                  && ! touch /dev/shm/more/ 2>/dev/null && exec \"$0\" \"$@\"";
    let tried = Command::new("unshare")
        .args(["-m", "sh", "-c", "mount -t tmpfs -o size=4k none /dev/shm"])
        .stderr(Stdio::null())
        .status();
    if !tried.is_ok_and(|status| status.success()) {
        println!("skipped: a mount namespace needs root and `unshare`");
        return;
    }
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_faulty_ranks")])
        .args(["--default-root-dir", root.to_str().unwrap(), "--progress", "off"])
        .args(["--devices", "2", "--max-steps", "6"])
        .env("RAYON_NUM_THREADS", "1")
        .env("FIREBRAND_COLLECTIVE", "shm")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Where the first rank is to listen somebody else listens already.
#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_faulty_ranks"))
        .args(["--default-root-dir", folder.path().to_str().unwrap()])
        .envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")])
        .envs([("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")])
        .env("MASTER_PORT", &port)
        .env("FIREBRAND_TIMEOUT", TIMEOUT.to_string())
        .env_remove("FIREBRAND_LOG")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains(&port) && said.contains("in use"), "{said}");
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
}
