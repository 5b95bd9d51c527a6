//! `firebrand run` with real programs, most of them shell scripts: variables, exit codes, restarts, signals, orphans.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

fn firebrand(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firebrand"));
    command
        .args(arguments)
        .env_remove("FIREBRAND_SECRET")
        .env_remove("FIREBRAND_SECRET_FILE")
        .env_remove("FIREBRAND_RESUME")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// `firebrand run` of a script on two ranks.
fn run(arguments: &[&str], script: &str) -> Command {
    let mut all = vec!["run", "--nproc-per-node", "2"];
    all.extend(arguments);
    all.extend(["--", "sh", "-c", script]);
    firebrand(&all)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn output(mut command: Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    (status.code().unwrap(), text(&stdout), text(&stderr))
}

/// Reads lines of standard output until `count` contain a text.
fn wait_for(child: &mut Child, count: usize, wanted: &str) -> Vec<String> {
    let mut found = Vec::new();
    let stdout = child.stdout.as_mut().unwrap();
    for line in BufReader::new(stdout).lines() {
        let line = line.unwrap();
        if line.contains(wanted) {
            found.push(line);
        }
        if found.len() == count {
            return found;
        }
    }
    panic!("only {found:?}");
}

fn send(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// The exit code, unless it takes too long.
fn ends_within(child: &mut Child, timeout: Duration) -> i32 {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap();
        }
        if start.elapsed() > timeout {
            child.kill().unwrap();
            panic!("it did not end within {timeout:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process is there and does anything: an orphan's zombie is for init, which some containers do not have.
fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn dead_within(pids: &[u32], timeout: Duration) {
    let start = Instant::now();
    while pids.iter().any(|pid| lives(*pid)) {
        assert!(
            start.elapsed() < timeout,
            "still there after {timeout:?}: {pids:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The number at the end of each line.
fn numbers(lines: &[String]) -> Vec<u32> {
    lines
        .iter()
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect()
}

#[test]
fn ranks_get_their_variables_and_their_lines_a_prefix() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $GROUP_WORLD_SIZE $MASTER_ADDR $FIREBRAND_RANK \
                  $FIREBRAND_RESTART_COUNT [$FIREBRAND_RESUME] ${#FIREBRAND_SECRET}; echo same $MASTER_PORT $FIREBRAND_MASTER \
                  $FIREBRAND_SECRET; echo warning >&2; cat";
    let (code, stdout, stderr) = output(run(&[], script));
    assert_eq!(code, 0, "{stderr}");
    let same: Vec<&str> = stdout
        .lines()
        .filter_map(|line| Some(line.split_once("] same ")?.1))
        .collect();
    assert_eq!((same.len(), same[0]), (2, same[1]));
    let [port, master, secret] = same[0].split(' ').collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(format!("127.0.0.1:{port}"), master);
    assert_eq!(secret.len(), 64);
    for rank in 0..2 {
        let line = format!("[rank {rank}] {rank}/2 {rank}/2 0 1 127.0.0.1 {rank} 0 [] 64");
        assert!(stdout.lines().any(|found| found == line), "{line}\n{stdout}");
        assert!(
            stderr
                .lines()
                .any(|found| found == format!("[rank {rank}] warning")),
            "{stderr}"
        );
    }
    // Another run has another secret.
    let (_, other, _) = output(run(&[], script));
    assert!(!other.contains(secret));
    let (_, given, _) = {
        let mut command = run(&[], script);
        command.env("FIREBRAND_SECRET", "abc");
        output(command)
    };
    assert!(given.lines().any(|line| line.ends_with(" abc")), "{given}");
}

#[test]
fn the_secret_is_in_no_command_line() {
    let mut child = run(&[], "echo secret $FIREBRAND_SECRET; sleep 60")
        .spawn()
        .unwrap();
    let lines = wait_for(&mut child, 2, "secret ");
    let secret = lines[0].rsplit_once(' ').unwrap().1.as_bytes().to_vec();
    assert_eq!(secret.len(), 64);
    let mut seen = 0;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        // It may have ended, or be no process.
        let Ok(line) = std::fs::read(process.path().join("cmdline")) else {
            continue;
        };
        assert!(
            !line.windows(64).any(|window| window == secret),
            "{}",
            text(&line)
        );
        seen += usize::from(text(&line).contains("FIREBRAND_SECRET; sleep 60"));
    }
    assert!(seen >= 2, "the ranks are among them");
    send(child.id(), Signal::TERM);
    assert_eq!(ends_within(&mut child, Duration::from_secs(8)), 143);
}

#[test]
fn a_program_of_firebrand_finds_itself_to_be_a_rank() {
    let this = env!("CARGO_BIN_EXE_firebrand");
    let (_, stdout, stderr) = output(firebrand(&["run", "--nproc-per-node", "2", "--", this, "doctor"]));
    for rank in 0..2 {
        let line = format!("rank {rank} of 2, started by firebrand run");
        assert!(stdout.contains(&line), "{stdout}{stderr}");
    }
}

#[test]
fn the_exit_code_is_that_of_the_rank_that_failed_first() {
    for (script, code, reason) in [
        ("exit 0", 0, ""),
        (
            "exit $((RANK * 7))",
            7,
            "rank 1 failed: it ended with exit code 7",
        ),
        (
            "[ $RANK = 0 ] && kill -9 $$; sleep 60",
            137,
            "rank 0 failed: it was killed by signal 9 (SIGKILL",
        ),
        ("exit 143", 143, ""),
    ] {
        let start = Instant::now();
        let (found, stdout, stderr) = output(run(&[], script));
        assert_eq!(found, code, "{script}: {stdout}{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

#[test]
fn the_others_are_killed_when_they_do_not_end() {
    let script =
        "[ $RANK = 1 ] && { sleep 0.3; exit 5; }; trap '' TERM; echo deaf $$; while :; do sleep 1; done";
    let mut child = run(&["--failure-grace", "1"], script).spawn().unwrap();
    let deaf = numbers(&wait_for(&mut child, 1, "deaf"));
    assert_eq!(ends_within(&mut child, Duration::from_secs(8)), 5);
    dead_within(&deaf, Duration::ZERO + Duration::from_millis(100));
}

#[test]
fn usage_errors_have_exit_code_2_and_say_what_to_do() {
    let cases: [(&[&str], &str); 9] = [
        (&["run"], "PROGRAM"),
        (
            &["run", "--", "no-such-program"],
            "no program 'no-such-program' in PATH",
        ),
        (&["run", "--", "/etc"], "a directory"),
        (&["run", "--nproc-per-node", "0", "--", "true"], "from 1"),
        (&["run", "--nnodes", "2", "--", "true"], "--rdzv-endpoint"),
        (
            &[
                "run",
                "--nnodes",
                "2",
                "--node-rank",
                "2",
                "--rdzv-endpoint",
                "a:1",
                "--",
                "true",
            ],
            "--node-rank 2",
        ),
        (
            &["run", "--nnodes", "2", "--rdzv-endpoint", "a:1", "--", "true"],
            "FIREBRAND_SECRET",
        ),
        (&["run", "--rdzv-endpoint", "a", "--", "true"], "HOST:PORT"),
        (&["run", "--unknown", "--", "true"], "--unknown"),
    ];
    for (arguments, expected) in cases {
        let (code, _, stderr) = output(firebrand(arguments));
        assert_eq!(code, 2, "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn torchruns_spelling_and_several_nodes() {
    let mut command = firebrand(&[
        "run",
        "--nproc_per_node=2",
        "--nnodes=2",
        "--node_rank=1",
        "--rdzv_endpoint=node0:29400",
        "--rdzv_id=job7",
        "--",
        "sh",
        "-c",
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK $NODE_RANK $MASTER_ADDR:$MASTER_PORT $FIREBRAND_RUN_ID",
    ]);
    command.env("FIREBRAND_SECRET", "abc");
    let (code, stdout, stderr) = output(command);
    assert_eq!(code, 0, "{stderr}");
    for (rank, local_rank) in [(2, 0), (3, 1)] {
        let line = format!("[rank {rank}] {rank}/4 {local_rank} 1 node0:29400 job7");
        assert!(stdout.lines().any(|found| found == line), "{stdout}");
    }
}

#[test]
fn all_are_started_again_until_no_restart_is_left() {
    let script = "echo start $FIREBRAND_RESTART_COUNT resume=$FIREBRAND_RESUME; \
                  [ $RANK = 1 ] && [ $FIREBRAND_RESTART_COUNT -lt 2 ] && exit 9; \
                  [ $FIREBRAND_RESTART_COUNT = 2 ] || sleep 60";
    let (code, stdout, stderr) = output(run(&["--max-restarts", "3"], script));
    assert_eq!(code, 0, "{stdout}{stderr}");
    for (count, resume) in [(0, ""), (1, "auto"), (2, "auto")] {
        for rank in 0..2 {
            let line = format!("[rank {rank}] start {count} resume={resume}");
            assert!(stdout.lines().any(|found| found == line), "{line}\n{stdout}");
        }
    }
    assert!(!stdout.contains("start 3"));
    assert!(stderr.contains("starting all again (2 of 3)"), "{stderr}");
    let (code, stdout, stderr) = output(run(&["--max-restarts", "1"], script));
    assert_eq!(code, 9, "{stdout}{stderr}");
    assert!(stdout.contains("start 1") && !stdout.contains("start 2"));
}

#[test]
fn a_port_that_somebody_takes_first_costs_no_restart() {
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let script = format!(
        "echo port $MASTER_PORT; [ -e {0} ] && exit 0; while [ ! -e {0} ]; do sleep 0.05; done; exit 1",
        go.display()
    );
    let mut child = run(&[], &script).spawn().unwrap();
    let port = numbers(&wait_for(&mut child, 2, "port "));
    let listener = std::net::TcpListener::bind(("127.0.0.1", u16::try_from(port[0]).unwrap())).unwrap();
    std::fs::write(&go, "").unwrap();
    assert_eq!(ends_within(&mut child, Duration::from_secs(15)), 0);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(
        stderr.contains(&format!("another process took port {}", port[0])),
        "{stderr}"
    );
    drop(listener);
}

/// Ranks that save when they are told to stop.
const SAVING: &str = "stop() { sleep 0.5; touch $DIRECTORY/saved-$RANK-$1; exit $1; }; trap 'stop 143' TERM; trap 'stop 130' INT; \
                      echo ready $$; while :; do sleep 0.05; done";

#[test]
fn ranks_are_told_to_stop_and_have_saved_before_it_ends() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = run(&["--max-restarts", "5"], SAVING);
        let mut child = command
            .env("DIRECTORY", directory.path())
            .process_group(0)
            .spawn()
            .unwrap();
        let ranks = numbers(&wait_for(&mut child, 2, "ready"));
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        // As a terminal does: to the process group, in which the ranks are not, or else each would get it twice.
        rustix::process::kill_process_group(pid, signal).unwrap();
        assert_eq!(ends_within(&mut child, Duration::from_secs(10)), code);
        for rank in 0..2 {
            let saved = directory.path().join(format!("saved-{rank}-{code}"));
            assert!(Path::new(&saved).exists(), "{saved:?}");
        }
        dead_within(&ranks, Duration::from_millis(100));
    }
}

#[test]
fn sigusr1_is_for_the_ranks_alone_and_they_go_on() {
    // As a program of Firebrand does in a job of Slurm: it saves, requeues the job and leaves in peace.
    let script = "trap 'echo told; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
    let mut child = run(&["--max-restarts", "5"], script).spawn().unwrap();
    wait_for(&mut child, 2, "ready");
    send(child.id(), Signal::USR1);
    wait_for(&mut child, 2, "told");
    assert_eq!(ends_within(&mut child, Duration::from_secs(8)), 0);
    // A program that takes it as something else goes on.
    let script = "trap 'echo told' USR1; trap 'exit 143' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = run(&[], script).spawn().unwrap();
    wait_for(&mut child, 2, "ready");
    send(child.id(), Signal::USR1);
    wait_for(&mut child, 2, "told");
    assert!(child.try_wait().unwrap().is_none());
    send(child.id(), Signal::TERM);
    assert_eq!(ends_within(&mut child, Duration::from_secs(8)), 143);
}

const HANG_UP_SCRIPTS: [&str; 2] = [
    "echo ready; while :; do sleep 0.05; done",
    "trap 'sleep 0.3; exit 0' HUP; echo ready; while :; do sleep 0.05; done",
];

/// Whether this process ignores a signal, as Linux tells it.
fn ignores(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.unwrap_or_default() >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn a_hang_up_ends_the_ranks_as_it_ends_any_program_and_costs_no_restart() {
    // What knows no hang-up ends by it; what does may save first. Where this process ignores it, so do those that it starts.
    let scripts = if ignores(Signal::HUP) {
        println!("skipped: SIGHUP is ignored here, as under nohup");
        &[][..]
    } else {
        &HANG_UP_SCRIPTS[..]
    };
    for script in scripts {
        let mut child = run(&["--max-restarts", "5"], script).spawn().unwrap();
        wait_for(&mut child, 2, "ready");
        send(child.id(), Signal::HUP);
        assert_eq!(ends_within(&mut child, Duration::from_secs(8)), 129, "{script}");
    }
    // Under nohup it is ignored.
    let mut command = Command::new("sh");
    let command = command
        .args([
            "-c",
            "trap '' HUP; exec \"$0\" run -- sh -c 'echo ready; sleep 1; echo done'",
        ])
        .arg(env!("CARGO_BIN_EXE_firebrand"))
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    wait_for(&mut child, 1, "ready");
    send(child.id(), Signal::HUP);
    assert_eq!(ends_within(&mut child, Duration::from_secs(8)), 0);
}

#[test]
fn ranks_that_do_not_stop_are_killed_in_the_end_and_sooner_when_asked_twice() {
    let deaf = "trap '' TERM INT; echo ready $$; while :; do sleep 0.05; done";
    let mut child = run(&["--stop-grace", "0.5"], deaf).spawn().unwrap();
    let ranks = numbers(&wait_for(&mut child, 2, "ready"));
    send(child.id(), Signal::TERM);
    assert_eq!(ends_within(&mut child, Duration::from_secs(8)), 143);
    dead_within(&ranks, Duration::from_millis(100));

    let mut child = run(&["--failure-grace", "0.3"], deaf).spawn().unwrap();
    wait_for(&mut child, 2, "ready");
    send(child.id(), Signal::INT);
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "the grace is five minutes");
    send(child.id(), Signal::INT);
    assert_eq!(ends_within(&mut child, Duration::from_secs(8)), 130);
}

#[test]
fn nothing_is_left_when_it_is_killed_be_the_program_behind_a_shell_or_not() {
    // The shell waits for a process that knows nothing of anything.
    let script = "sleep 1000 & echo pid $!; echo pid $$; wait";
    let mut child = run(&[], script).spawn().unwrap();
    let pids = numbers(&wait_for(&mut child, 4, "pid "));
    // The guard is told right after the start.
    std::thread::sleep(Duration::from_millis(300));
    assert!(pids.iter().all(|pid| lives(*pid)));
    child.kill().unwrap();
    child.wait().unwrap();
    dead_within(&pids, Duration::from_secs(3));
}

#[test]
fn a_rank_that_is_over_is_no_zombie_while_others_go_on() {
    let script = "echo pid $$; [ $RANK = 0 ] || sleep 60";
    let mut child = run(&[], script).spawn().unwrap();
    let lines = wait_for(&mut child, 2, "pid ");
    let first: u32 = lines
        .iter()
        .find(|line| line.starts_with("[rank 0]"))
        .unwrap()
        .rsplit_once(' ')
        .unwrap()
        .1
        .parse()
        .unwrap();
    let start = Instant::now();
    while Path::new(&format!("/proc/{first}")).exists() {
        assert!(start.elapsed() < Duration::from_secs(3), "rank 0 is a zombie");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(child.try_wait().unwrap().is_none());
    send(child.id(), Signal::TERM);
    assert_eq!(ends_within(&mut child, Duration::from_secs(8)), 143);
}
