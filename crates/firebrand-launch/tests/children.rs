//! Ranks as real processes: started, killed, outlived. Each test starts this test program again for a helper "test" below,
//! which does something only when the variable `FIREBRAND_TEST_ROLE` says so.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firebrand_launch::{
    Children, Cluster, Launch, OutputStream, Requested, SpawnOptions, SpawnPlan, adopt, detect,
    environment_variable,
};

const ROLE: &str = "FIREBRAND_TEST_ROLE";

/// What a process that runs here for [`ROLE`] does. With `cargo test` the variable is not set, and it does nothing.
#[test]
fn rank() {
    let Some(role) = environment_variable(ROLE) else {
        return;
    };
    let watch = adopt();
    let launch = detect(&Requested::default(), &environment_variable).unwrap();
    match role.as_str() {
        "wait" => {
            say("ready");
            std::thread::sleep(Duration::from_secs(60));
        }
        "ignore SIGTERM" => {
            ignore_sigterm_and_wait();
        }
        "report" => {
            watch.unwrap().unwrap();
            let Launch::External(cluster) = launch else {
                panic!("{launch:?}");
            };
            println!("I am {:?} at {}", cluster.topology, cluster.master);
            for name in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OF_ALL", "OF_RANK"] {
                println!("{name}={}", environment_variable(name).unwrap_or_default());
            }
            let mut line = String::new();
            println!(
                "stdin gives {} bytes",
                std::io::stdin().read_line(&mut line).unwrap()
            );
            println!("group of its own: {}", is_leader_of_group());
            // A second call is the same.
            assert!(adopt().unwrap().is_some());
        }
        "exit 3" => {
            eprint!("last words without an end");
            std::process::exit(3);
        }
        "exit 143" => std::process::exit(143),
        "binary" => {
            let mut out = std::io::stdout().lock();
            out.write_all(b"\xff\xfe\x00\n").unwrap();
            out.write_all(&vec![b'x'; 100_000]).unwrap();
            out.write_all(b"\n").unwrap();
        }
        "leave a process behind" => {
            let child = Command::new("sleep").arg("60").spawn().unwrap();
            say(&format!("left {}", child.id()));
            std::process::exit(0);
        }
        // The first rank: it starts others, and is killed by the test.
        "parent" => {
            let children = Children::spawn(
                &plan(3).others(&"127.0.0.1:1".parse().unwrap()),
                &helper("wait"),
                |_| {},
            )
            .unwrap();
            let pids: Vec<String> = children
                .children()
                .iter()
                .map(|child| child.pid.to_string())
                .collect();
            say(&format!("children {}", pids.join(" ")));
            std::thread::sleep(Duration::from_secs(60));
            drop(children);
        }
        "parent that leaves" => {
            let children = Children::spawn(
                &plan(3).others(&"127.0.0.1:1".parse().unwrap()),
                &helper("wait"),
                |_| {},
            )
            .unwrap();
            let pids: Vec<String> = children
                .children()
                .iter()
                .map(|child| child.pid.to_string())
                .collect();
            say(&format!("children {}", pids.join(" ")));
            std::process::exit(0);
        }
        // A program that a rank has started and that is no rank.
        "inherits" => {
            let error = watch.unwrap_err().to_string();
            println!("refused: {error}");
        }
        "start one that inherits" => {
            watch.unwrap().unwrap();
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["rank", "--exact", "--nocapture"])
                .env(ROLE, "inherits")
                .stdin(Stdio::null())
                .output()
                .unwrap();
            std::io::stdout().write_all(&output.stdout).unwrap();
        }
        other => panic!("there is no role {other}"),
    }
}

fn ignore_sigterm_and_wait() {
    // A shell can ignore a signal for itself and for what it becomes.
    let error = std::os::unix::process::CommandExt::exec(
        Command::new("sh").args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]),
    );
    panic!("{error}");
}

fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().unwrap();
}

fn is_leader_of_group() -> bool {
    rustix::process::getpgrp() == rustix::process::getpid()
}

fn plan(devices: usize) -> SpawnPlan {
    let requested = Requested {
        devices: Some(devices),
        num_nodes: None,
    };
    match detect(&requested, &|_| None).unwrap() {
        Launch::Spawn(plan) => plan,
        other => panic!("{other:?}"),
    }
}

fn ranks(devices: usize) -> Vec<Cluster> {
    plan(devices).others(&"127.0.0.1:29400".parse().unwrap())
}

fn helper(role: &str) -> SpawnOptions {
    SpawnOptions::for_test("rank").unwrap().variable(ROLE, role)
}

/// Lines as they come, from both streams.
fn lines(options: SpawnOptions) -> (SpawnOptions, Receiver<(OutputStream, String)>) {
    let (send, received) = channel();
    let send = Mutex::new(send);
    let options = options.output(move |stream, bytes| {
        for line in String::from_utf8_lossy(bytes).lines() {
            let _ = send.lock().unwrap().send((stream, line.to_owned()));
        }
    });
    (options, received)
}

fn wait_for(lines: &Receiver<(OutputStream, String)>, text: &str) -> String {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        if let Ok((_, line)) = lines.recv_timeout(Duration::from_millis(100))
            && line.contains(text)
        {
            return line;
        }
    }
    panic!("no line with '{text}'");
}

/// Whether there is such a process, be it a zombie.
fn exists(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

fn gone_within(pids: &[u32], timeout: Duration) -> Duration {
    let start = Instant::now();
    while pids.iter().any(|pid| exists(*pid)) {
        assert!(
            start.elapsed() < timeout,
            "still there after {timeout:?}: {pids:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn pids(children: &Children) -> Vec<u32> {
    children.children().iter().map(|child| child.pid).collect()
}

#[test]
fn ranks_are_told_who_they_are_and_their_lines_bear_their_number() {
    let options = helper("report")
        .variable("OF_ALL", "1")
        .variables_of_rank(|cluster| {
            vec![("OF_RANK".into(), cluster.topology.global_rank.to_string().into())]
        });
    let (options, lines) = lines(options);
    let children = Children::spawn(&ranks(3), &options, |_| {}).unwrap();
    let ends = children.wait(Duration::from_secs(20)).unwrap();
    assert!(ends.iter().all(|end| !end.is_failure()), "{ends:?}");
    assert!(pids(&children).iter().all(|pid| !exists(*pid)), "zombies");
    drop(children);
    let all: Vec<String> = lines.try_iter().map(|(_, line)| line).collect();
    for rank in 1..3 {
        let threads = firebrand_launch::threads_per_rank(3);
        for expected in [
            format!(
                "[rank {rank}] I am Topology {{ global_rank: {rank}, world_size: 3, local_rank: {rank}, local_world_size: 3, node_rank: 0, num_nodes: 1 }} at 127.0.0.1:29400"
            ),
            format!(
                "[rank {rank}] RAYON_NUM_THREADS={}",
                inherited("RAYON_NUM_THREADS", threads)
            ),
            format!(
                "[rank {rank}] OMP_NUM_THREADS={}",
                inherited("OMP_NUM_THREADS", threads)
            ),
            format!("[rank {rank}] OF_ALL=1"),
            format!("[rank {rank}] OF_RANK={rank}"),
            format!("[rank {rank}] stdin gives 0 bytes"),
            format!("[rank {rank}] group of its own: true"),
        ] {
            assert!(
                all.contains(&expected),
                "{expected}\nis not in\n{}",
                all.join("\n")
            );
        }
    }
    assert!(all.iter().all(|line| line.starts_with("[rank ")), "{all:?}");
}

fn inherited(name: &str, threads: usize) -> String {
    environment_variable(name).unwrap_or_else(|| threads.to_string())
}

#[test]
fn bytes_that_are_no_text_and_huge_lines_come_through() {
    let collected = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&collected);
    let options = helper("binary").output(move |_, bytes| sink.lock().unwrap().extend_from_slice(bytes));
    let children = Children::spawn(&ranks(2), &options, |_| {}).unwrap();
    children.wait(Duration::from_secs(20)).unwrap();
    drop(children);
    let bytes = collected.lock().unwrap();
    let line = b"[rank 1] \xff\xfe\x00\n";
    assert!(bytes.windows(line.len()).any(|window| window == line));
    assert_eq!(bytes.iter().filter(|byte| **byte == b'x').count() / 1000, 100);
    let longest = bytes.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap();
    assert!(longest < 20_000, "{longest}");
}

#[test]
fn the_first_failure_is_told_with_its_last_words_and_the_others_can_be_ended() {
    let (tell, told) = channel();
    let (options, lines) = lines(
        SpawnOptions::for_test("rank")
            .unwrap()
            .variables_of_rank(|cluster| {
                let role = if cluster.topology.global_rank == 2 {
                    "exit 3"
                } else {
                    "wait"
                };
                vec![(ROLE.into(), role.into())]
            }),
    );
    let children = Children::spawn(&ranks(4), &options, move |end| tell.send(end).unwrap()).unwrap();
    let end = told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!((end.rank, end.exit_code()), (2, 3));
    assert_eq!(end.to_string(), "it ended with exit code 3");
    // What it said before is there already, though it had no end.
    let (stream, line) = lines
        .try_iter()
        .find(|(_, line)| line.contains("last words"))
        .unwrap();
    assert_eq!(
        (stream, line.as_str()),
        (OutputStream::Stderr, "[rank 2] last words without an end")
    );
    assert_eq!(children.first_failure(), Some(end));
    assert_eq!(children.running(), [1, 3]);
    let pids = pids(&children);
    let start = Instant::now();
    let ends = children.shutdown(Duration::from_secs(5));
    assert_eq!(ends.len(), 3);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "SIGTERM was enough: {:?}",
        start.elapsed()
    );
    assert!(pids.iter().all(|pid| !exists(*pid)), "zombies");
    assert!(told.try_recv().is_err(), "only the first is told");
}

#[test]
fn a_killed_rank_is_told_by_its_signal() {
    let (tell, told) = channel();
    let children = Children::spawn(&ranks(3), &helper("wait"), move |end| tell.send(end).unwrap()).unwrap();
    let victim = children.children()[1];
    kill(victim.pid);
    let start = Instant::now();
    let end = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!((end.rank, end.exit_code()), (2, 137));
    assert!(end.to_string().contains("signal 9 (SIGKILL"), "{end}");
    let pids = pids(&children);
    drop(children);
    assert!(pids.iter().all(|pid| !exists(*pid)), "zombies");
}

#[test]
fn ranks_that_ignore_sigterm_are_killed_after_the_grace() {
    let (options, lines) = lines(helper("ignore SIGTERM"));
    let children = Children::spawn(&ranks(2), &options, |_| {}).unwrap();
    wait_for(&lines, "ready");
    let pids = pids(&children);
    let start = Instant::now();
    let ends = children.shutdown(Duration::from_millis(500));
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(500) && took < Duration::from_secs(4),
        "{took:?}"
    );
    assert_eq!(ends[0].exit_code(), 137);
    assert!(!exists(pids[0]));
}

#[test]
fn a_run_that_was_stopped_and_has_saved_is_no_failure() {
    let (tell, told) = channel();
    let children =
        Children::spawn(&ranks(2), &helper("exit 143"), move |end| tell.send(end).unwrap()).unwrap();
    let ends = children.wait(Duration::from_secs(20)).unwrap();
    assert_eq!(ends[0].exit_code(), 143);
    assert!(ends[0].was_interrupted() && children.first_failure().is_none());
    drop(children);
    assert!(told.try_recv().is_err());
}

#[test]
fn what_a_rank_leaves_behind_in_its_group_is_killed() {
    let (options, lines) = lines(helper("leave a process behind"));
    let children = Children::spawn(&ranks(2), &options, |_| {}).unwrap();
    let line = wait_for(&lines, "left ");
    let left: u32 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
    children.wait(Duration::from_secs(20)).unwrap();
    drop(children);
    // Its zombie is for init to reap, which some containers do not have.
    let start = Instant::now();
    while std::fs::read_to_string(format!("/proc/{left}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "process {left} lives on"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a process that starts two ranks, and returns it with their numbers once they are ready.
fn parent(role: &str) -> (std::process::Child, Vec<u32>) {
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["rank", "--exact", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pids = Vec::new();
    let mut ready = 0;
    for line in BufReader::new(parent.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, list)) = line.split_once("children ") {
            pids = list.split(' ').map(|pid| pid.parse().unwrap()).collect();
        }
        ready += usize::from(line.contains("] ready"));
        if pids.len() == 2 && (ready == 2 || role == "parent that leaves") {
            break;
        }
    }
    assert_eq!(pids.len(), 2);
    (parent, pids)
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

#[test]
fn ranks_end_when_their_parent_is_killed() {
    let (mut parent, pids) = parent("parent");
    assert!(pids.iter().all(|pid| lives(*pid)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    dead_within(&pids, Duration::from_secs(3));
}

#[test]
fn ranks_end_when_their_parent_is_killed_even_if_they_are_stopped() {
    let (mut parent, pids) = parent("parent");
    for pid in &pids {
        let pid = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    }
    parent.kill().unwrap();
    parent.wait().unwrap();
    dead_within(&pids, Duration::from_secs(3));
}

#[test]
fn ranks_end_when_their_parent_leaves_without_a_word() {
    let (mut parent, pids) = parent("parent that leaves");
    parent.wait().unwrap();
    dead_within(&pids, Duration::from_secs(3));
}

#[test]
fn a_program_that_a_rank_starts_is_told_that_it_is_none() {
    let (options, lines) = lines(helper("start one that inherits"));
    let children = Children::spawn(&ranks(2), &options, |_| {}).unwrap();
    let line = wait_for(&lines, "refused: ");
    assert!(
        line.contains("FIREBRAND_LIFELINE") && line.contains("start it without those"),
        "{line}"
    );
    assert!(!children.wait(Duration::from_secs(20)).unwrap()[0].is_failure());
}

#[test]
fn a_program_that_is_not_there_is_named_and_nothing_is_left() {
    let options = SpawnOptions::program("/no/such/program".into(), Vec::new());
    let error = Children::spawn(&ranks(3), &options, |_| {})
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("rank 1") && error.contains("/no/such/program"),
        "{error}"
    );
}

#[test]
fn waiting_for_ranks_that_go_on_ends_at_the_deadline_and_names_them() {
    let children = Children::spawn(&ranks(3), &helper("wait"), |_| {}).unwrap();
    let error = children.wait(Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.contains("[1, 2]") && error.contains("0.05 s"), "{error}");
    let pids = pids(&children);
    drop(children);
    gone_within(&pids, Duration::from_millis(1));
}
