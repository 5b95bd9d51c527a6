//! Under the launchers that are installed, and on two nodes that are network namespaces: the same run as with ranks that the program
//! starts itself. What is not there, or needs root, is skipped and says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Stdio};

use firebrand_tests::runs::succeeded;

const PROGRAM: &str = env!("CARGO_BIN_EXE_train_ranks");

/// What every run of these tests is given.
fn arguments(root: &Path) -> Vec<String> {
    with_steps(root, "20")
}

fn with_steps(root: &Path, steps: &str) -> Vec<String> {
    let root = root.to_str().unwrap();
    let arguments = [
        "--default-root-dir",
        root,
        "--progress",
        "off",
        "--max-steps",
        steps,
    ];
    arguments.map(str::to_owned).to_vec()
}

/// A command with the environment of these tests, and without one of a launcher that runs them.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .stdin(Stdio::null())
        .env("RAYON_NUM_THREADS", "1")
        .env("FIREBRAND_TIMEOUT", "60")
        .env_remove("FIREBRAND_LOG");
    command
}

fn curve(root: &Path) -> String {
    std::fs::read_to_string(root.join("ranks/version_0/metrics.csv")).unwrap()
}

/// Whether a program is there and does what it is asked for.
fn works(program: &str, arguments: &[&str]) -> bool {
    let status = command(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// A launcher that starts two ranks gives the curve of two ranks that the program starts itself.
fn as_by_itself(launcher: &mut Command) {
    let folder = tempfile::tempdir().unwrap();
    let (own, launched) = (folder.path().join("own"), folder.path().join("launched"));
    succeeded(
        &command(PROGRAM)
            .args(arguments(&own))
            .args(["--devices", "2"])
            .output()
            .unwrap(),
    );
    succeeded(&launcher.arg(PROGRAM).args(arguments(&launched)).output().unwrap());
    assert_eq!(curve(&own), curve(&launched));
}

#[test]
fn torchrun() {
    let python = std::env::var("FIREBRAND_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !works(&python, &["-c", "import torch.distributed.run"]) {
        println!("skipped: {python} has no torch; set FIREBRAND_TEST_PYTHON to an interpreter that has");
        return;
    }
    let mut torchrun = command(&python);
    torchrun.args([
        "-m",
        "torch.distributed.run",
        "--no-python",
        "--nproc-per-node",
        "2",
    ]);
    as_by_itself(&mut torchrun);
}

#[test]
fn mpi() {
    if !works("mpirun", &["--version"]) {
        println!("skipped: there is no mpirun");
        return;
    }
    let mut mpirun = command("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-np", "2"]);
    as_by_itself(&mut mpirun);
}

#[test]
fn slurm() {
    if !works("srun", &["-n", "1", "--immediate=5", "true"]) {
        println!("skipped: there is no Slurm that takes jobs");
        return;
    }
    let mut srun = command("srun");
    srun.args(["-n", "2"]);
    as_by_itself(&mut srun);
}

#[test]
fn devices_that_the_launcher_does_not_give_are_an_error_that_names_both() {
    let folder = tempfile::tempdir().unwrap();
    let output = command(PROGRAM)
        .args(arguments(folder.path()))
        .args(["--devices", "4"])
        .envs([
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "2"),
        ])
        .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29533")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("devices(4)") && said.contains("LOCAL_WORLD_SIZE=2"),
        "{said}"
    );
}

#[test]
fn ranks_with_different_options_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let start = |rank: &str, options: &[&str]| {
        let mut rank_command = command(PROGRAM);
        rank_command
            .args(arguments(folder.path()))
            .args(options)
            .envs([
                ("RANK", rank),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", rank),
                ("LOCAL_WORLD_SIZE", "2"),
            ])
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29566")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        rank_command.spawn().unwrap()
    };
    let children = [start("0", &[]), start("1", &["--gradient-clip-val", "0.001"])];
    let [zero, one] = children.map(|child| child.wait_with_output().unwrap());
    assert!(!zero.status.success() && !one.status.success());
    let said = String::from_utf8_lossy(&one.stderr);
    assert!(said.contains("gradient_clip") && said.contains("0.001"), "{said}");
}

/// Two network namespaces that a pair of interfaces joins; taken down at the end.
struct TwoNodes {
    names: [String; 2],
}

impl TwoNodes {
    fn new() -> Option<Self> {
        let id = std::process::id();
        let names = ["a", "b"].map(|node| format!("fb{id}{node}"));
        let nodes = Self { names };
        let [a, b] = &nodes.names;
        let ip = |line: &str| works("ip", &line.split(' ').collect::<Vec<_>>());
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!(
                "-n {a} link add veth0 type veth peer name veth0 netns {b}"
            ));
        let up = |node: &str, address: &str| {
            ip(&format!("-n {node} addr add {address}/24 dev veth0"))
                && ip(&format!("-n {node} link set veth0 up"))
                && ip(&format!("-n {node} link set lo up"))
        };
        (made && up(a, "10.99.0.1") && up(b, "10.99.0.2")).then_some(nodes)
    }

    fn start(&self, node: usize, root: &Path, devices: usize) -> std::process::Child {
        command("ip")
            .args(["netns", "exec", &self.names[node], PROGRAM])
            .args(arguments(root))
            .args(["--num-nodes", "2", "--devices", &devices.to_string()])
            .envs([("MASTER_ADDR", "10.99.0.1"), ("MASTER_PORT", "29544")])
            .env("NODE_RANK", node.to_string())
            .env("FIREBRAND_SECRET", "known to both nodes")
            .env("FIREBRAND_TIMEOUT", "20")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for TwoNodes {
    fn drop(&mut self) {
        for name in &self.names {
            works("ip", &["netns", "del", name]);
        }
    }
}

#[test]
fn two_nodes() {
    let Some(nodes) = TwoNodes::new() else {
        println!("skipped: network namespaces need root and the command `ip`");
        return;
    };
    for devices in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        let ranks = (2 * devices).to_string();
        succeeded(
            &command(PROGRAM)
                .args(arguments(&own))
                .args(["--devices", &ranks])
                .output()
                .unwrap(),
        );
        let root = folder.path().join("nodes");
        let children = [0, 1].map(|node| nodes.start(node, &root, devices));
        for child in children {
            succeeded(&child.wait_with_output().unwrap());
        }
        let numbers = |text: String| -> Vec<f64> {
            let words = text.split([',', '\n']).map(str::to_owned).collect::<Vec<_>>();
            words.iter().filter_map(|word| word.parse().ok()).collect()
        };
        let (own, found) = (numbers(curve(&own)), numbers(curve(&root)));
        assert_eq!(own.len(), found.len());
        for (a, b) in own.iter().zip(&found) {
            assert!(
                (a - b).abs() <= 1e-4 * a.abs().max(1e-3),
                "{devices} ranks per node: {a} and {b}"
            );
        }
    }

    // The network between them is cut: both end, and name the other.
    let folder = tempfile::tempdir().unwrap();
    let long = |node: usize| {
        let mut command = command("ip");
        command
            .args(["netns", "exec", &nodes.names[node], PROGRAM])
            .args(with_steps(folder.path(), "100000000"))
            .args(["--num-nodes", "2", "--devices", "1"])
            .envs([("MASTER_ADDR", "10.99.0.1"), ("MASTER_PORT", "29545")])
            .env("NODE_RANK", node.to_string())
            .env("FIREBRAND_SECRET", "known to both nodes")
            .env("FIREBRAND_TIMEOUT", "5")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let children = [0, 1].map(long);
    let metrics = folder.path().join("ranks/version_0/metrics.csv");
    let start = std::time::Instant::now();
    while !metrics.exists() {
        assert!(start.elapsed().as_secs() < 30, "the run begins");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(works(
        "ip",
        &["-n", &nodes.names[0], "link", "set", "veth0", "down"]
    ));
    let cut = std::time::Instant::now();
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(
            said.contains(&format!("rank {}", 1 - rank)),
            "rank {rank}: {said}"
        );
    }
    assert!(cut.elapsed().as_secs() < 20, "{:?}", cut.elapsed());
}
