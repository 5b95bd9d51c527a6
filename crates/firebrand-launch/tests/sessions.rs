//! Ranks that come together, wait for each other and part, as real processes. Each test starts this test program again for the
//! helper "test" below, which does something only when the variable `FIREBRAND_TEST_ROLE` says so.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use firebrand_launch::{
    Error, JoinOptions, Requested, Session, detect, environment_variable, finish_children, has_children,
};

const ROLE: &str = "FIREBRAND_TEST_ROLE";

/// What a process that runs here for [`ROLE`] does. With `cargo test` the variable is not set, and it does nothing.
#[test]
fn rank() {
    let Some(role) = environment_variable(ROLE) else {
        return;
    };
    // The test harness has begun a line.
    println!();
    let number = |name: &str| environment_variable(name).and_then(|text| text.parse().ok());
    let options = JoinOptions {
        timeout: Duration::from_secs_f64(number("DEADLINE").unwrap_or(30.0)),
        notice: Duration::from_millis(300),
        ..JoinOptions::default()
    };
    let requested = Requested {
        devices: environment_variable("DEVICES").map(|text| text.parse().unwrap()),
        num_nodes: None,
    };
    let launch = detect(&requested, &environment_variable).unwrap();
    let session = match Session::join(&launch, options) {
        Ok(session) => session.unwrap(),
        Err(error) => return println!("not joined: {error}"),
    };
    let first = session.topology().global_rank == 0;
    let sleep = |name: &str| std::thread::sleep(Duration::from_secs_f64(number(name).unwrap_or(0.0)));
    match (role.as_str(), first) {
        ("meet", _) => {
            if first {
                sleep("PREPARING");
            }
            match session.meet("the preparation of the data") {
                Ok(()) => println!("met"),
                Err(error) => println!("not met: {error}"),
            }
        }
        ("die in a meeting", true) => println!("not met: {}", session.meet("the data").unwrap_err()),
        ("die in a meeting", false) => std::process::abort(),
        ("part", true) => {
            drop(session);
            assert!(has_children());
            println!("pid {}", std::process::id());
            let begun = Instant::now();
            let patience = number("STOP").map_or(Duration::MAX, Duration::from_secs_f64);
            let outcome = finish_children(|| begun.elapsed() > patience);
            assert!(!has_children());
            match outcome {
                Ok(()) => println!("all are over"),
                Err(error @ Error::Child { exit_code, .. }) => println!("code {exit_code}: {error}"),
                Err(error) => println!("error: {error}"),
            }
        }
        ("part", false) => {
            drop(session);
            println!("pid {}", std::process::id());
            sleep("WORK");
            if let Some(code) = number("CODE") {
                std::process::exit(code as i32);
            }
            println!("worked");
        }
        other => panic!("there is no role {other:?}"),
    }
}

fn role(role: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["rank", "--exact", "--nocapture"])
        .env(ROLE, role)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Standard output and standard error of ranks that a role has started.
fn said(name: &str, variables: &[(&str, &str)]) -> (String, String) {
    let Output { stdout, stderr, .. } = role(name, variables).output().unwrap();
    (
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    )
}

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// One rank of two whose other one does not come.
fn alone(rank: &str) -> (String, String, String) {
    let port = free_port();
    let variables = [
        ("RANK", rank),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
        // Each is the first of its node, as in a job with a rank per node.
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("FIREBRAND_SECRET", "abc"),
        ("DEADLINE", "2"),
    ];
    let (stdout, stderr) = said("meet", &variables);
    (stdout, stderr, port)
}

#[test]
fn who_is_missing_at_the_start_is_said_long_before_the_deadline() {
    let (stdout, stderr, _) = alone("0");
    let line = "firebrand: rank 0 has waited 0 s for rank 1 (node 1) at the start of the run; look whether";
    assert!(stderr.contains(line), "{stderr}");
    assert!(
        stdout.contains("not joined: ") && stdout.contains("still waiting for rank 1"),
        "{stdout}"
    );
    let (stdout, stderr, port) = alone("1");
    let line =
        format!("firebrand: rank 1 has waited 0 s for rank 0 to answer at 127.0.0.1:{port}; look whether");
    assert!(stderr.contains(&line), "{stderr}");
    assert!(
        stdout.contains("not joined: ") && stdout.contains("cannot be reached after 2 s"),
        "{stdout}"
    );
}

#[test]
fn a_rank_with_another_secret_is_named_where_it_is_missed_and_ends_at_once() {
    let port = free_port();
    let start = |rank: &str, secret: &str, deadline: &str| {
        let variables = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
            ("FIREBRAND_SECRET", secret),
            ("DEADLINE", deadline),
        ];
        role("meet", &variables).spawn().unwrap()
    };
    let begun = Instant::now();
    let first = start("0", "abc", "6");
    let second = start("1", "xyz", "60").wait_with_output().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let text = String::from_utf8(second.stdout).unwrap();
    assert!(
        text.contains("not joined: ") && text.contains("the secret of the job is missing or differs"),
        "{text}"
    );
    let first = first.wait_with_output().unwrap();
    let (stdout, stderr) = (
        String::from_utf8(first.stdout).unwrap(),
        String::from_utf8(first.stderr).unwrap(),
    );
    let line = "firebrand: a process at 127.0.0.1 that says to be rank 1 was refused, since its secret is another one";
    assert_eq!(stderr.matches(line).count(), 1, "{stderr}");
    assert!(
        stdout.contains(
            "still waiting for rank 1; refused since their secret is another one: rank 1 at 127.0.0.1"
        ),
        "{stdout}"
    );
}

#[test]
fn a_meeting_lasts_longer_than_the_deadline_while_all_are_alive() {
    let variables = [("DEVICES", "3"), ("DEADLINE", "3"), ("PREPARING", "4")];
    let (stdout, stderr) = said("meet", &variables);
    assert_eq!(
        stdout.lines().filter(|line| line.ends_with("met")).count(),
        3,
        "{stdout}"
    );
    // Rank 0 knows that it is still at it, and the other ranks are on its node.
    assert!(!stderr.contains("has waited"), "{stderr}");
}

#[test]
fn a_meeting_ends_when_a_rank_dies() {
    let begun = Instant::now();
    let (stdout, _) = said("die in a meeting", &[("DEVICES", "2")]);
    assert!(stdout.contains("not met: rank 1 failed: "), "{stdout}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn ranks_that_have_something_left_to_do_are_waited_for() {
    let (stdout, stderr) = said("part", &[("DEVICES", "3"), ("WORK", "1.5")]);
    assert_eq!(stdout.matches("worked").count(), 2, "{stdout}");
    assert!(stdout.contains("all are over"), "{stdout}");
    assert!(
        stderr
            .contains("firebrand: this rank is done and waits for the ranks [1, 2] to end, for at most 30 s"),
        "{stderr}"
    );
}

#[test]
fn a_rank_that_fails_after_the_others_are_done_is_named() {
    for (code, expected) in [
        (
            "3",
            "code 3: rank 1 did not end well after this one was done: it ended with exit code 3",
        ),
        // It was stopped and has saved, which is no success either.
        ("143", "code 143: rank 1 did not end well"),
    ] {
        let variables = [("DEVICES", "2"), ("WORK", "0.3"), ("CODE", code)];
        let (stdout, _) = said("part", &variables);
        assert!(stdout.contains(expected), "{stdout}");
    }
}

#[test]
fn ranks_that_do_not_end_are_ended_at_the_deadline_or_when_asked() {
    for (variable, value, expected) in [
        (
            "DEADLINE",
            "3",
            "error: the ranks [1] have not ended 3 s after rank 0 was done",
        ),
        ("STOP", "0.5", "all are over"),
    ] {
        let begun = Instant::now();
        let (stdout, _) = said("part", &[("DEVICES", "2"), ("WORK", "60"), (variable, value)]);
        assert!(stdout.contains(expected), "{stdout}");
        assert!(!stdout.contains("worked"), "{stdout}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

/// Whether a process is there and does anything: an orphan's zombie is for init, which some containers do not have.
fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn pids(child: &mut Child, count: usize) -> Vec<u32> {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let numbers = lines.filter_map(|line| line.unwrap().rsplit_once("pid ")?.1.parse().ok());
    numbers.take(count).collect()
}

#[test]
fn no_rank_outlives_one_that_is_killed_while_it_waits_for_them() {
    let mut child = role("part", &[("DEVICES", "3"), ("WORK", "60")]).spawn().unwrap();
    let pids = pids(&mut child, 3);
    assert!(pids.iter().all(|pid| lives(*pid)), "{pids:?}");
    std::thread::sleep(Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    while pids.iter().any(|pid| lives(*pid)) {
        assert!(begun.elapsed() < Duration::from_secs(3), "{pids:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
