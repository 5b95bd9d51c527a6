//! Ranks as processes that are really killed and stopped: each is this test binary, started again to be a rank.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::monitor::{Monitor, MonitorContext};
use crate::{Error, Health, MemoryStore, Store, StoreLimits, StoreServer, TcpStore};

const SECRET: &[u8] = b"the secret of a test";
const SOON: Duration = Duration::from_secs(15);
/// What a rank is told, by environment variable: its number, the number of ranks, the store, what to do, the silence in ms.
const RANK: &str = "FIREBRAND_TEST_RANK";

/// Not a test of its own: what each of the processes does. It puts into the store what it has seen.
#[test]
fn rank() {
    let Ok(orders) = std::env::var(RANK) else {
        return;
    };
    let orders: Vec<&str> = orders.split(' ').collect();
    let [rank, world_size, address, task, silence] = orders[..] else {
        panic!("{orders:?}");
    };
    let store = TcpStore::connect(address.parse().unwrap(), SECRET, SOON).unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let health = Arc::new(Health::new());
    let monitor = Monitor::start(MonitorContext {
        store: Arc::clone(&store),
        global_rank: rank.parse().unwrap(),
        world_size: world_size.parse().unwrap(),
        address: Ipv4Addr::LOCALHOST.into(),
        secret: SECRET.into(),
        health: Arc::clone(&health),
        heartbeat: Duration::from_millis(200),
        silence: Duration::from_millis(silence.parse().unwrap()),
        timeout: SOON,
    })
    .unwrap();
    store.set(&format!("ready/{rank}"), b"").unwrap();
    let begin = Instant::now();
    let lasts = |time: Duration| begin.elapsed() < time;
    match task {
        "wait" => {
            while health.check().is_ok() && lasts(2 * SOON) && !store.check(&["leave"]).unwrap() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // Computes for long and looks at nothing.
        "compute" => {
            let mut sum = 0u64;
            while lasts(Duration::from_secs(3)) {
                sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
            }
        }
        "fail" => {
            store.get("go", SOON).unwrap();
            monitor.fail("the disk is full");
            std::process::exit(1);
        }
        "exit" => {
            store.get("go", SOON).unwrap();
            std::process::exit(1);
        }
        other => panic!("{other}"),
    }
    let outcome = match monitor.leave() {
        Ok(()) => "left".to_owned(),
        Err(error) => error.to_string(),
    };
    store.set(&format!("outcome/{rank}"), outcome.as_bytes()).unwrap();
}

/// The processes of a run.
struct Run {
    ranks: Vec<Child>,
    store: Arc<MemoryStore>,
    _server: StoreServer,
}

impl Run {
    /// One rank per task.
    fn start(tasks: &[&str], silence: Duration) -> Self {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let server = StoreServer::bind(address, SECRET, StoreLimits::default()).unwrap();
        let store = server.store();
        let ranks = tasks.iter().enumerate().map(|(rank, task)| {
            let orders = [
                rank.to_string(),
                tasks.len().to_string(),
                server.address().to_string(),
                (*task).to_owned(),
                silence.as_millis().to_string(),
            ];
            Command::new(std::env::current_exe().unwrap())
                .args(["monitor::tests::processes::rank", "--exact", "--nocapture"])
                .env(RANK, orders.join(" "))
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        let run = Self {
            ranks: ranks.collect(),
            store,
            _server: server,
        };
        for rank in 0..tasks.len() {
            run.store.get(&format!("ready/{rank}"), SOON).unwrap();
        }
        run
    }

    fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_child(&self.ranks[rank]);
        kill_process(pid, signal).unwrap();
    }

    fn outcome(&self, rank: usize, within: Duration) -> String {
        let outcome = self.store.get(&format!("outcome/{rank}"), within);
        String::from_utf8(outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"))).unwrap()
    }

    /// What all but one rank see, within two seconds of now.
    fn outcomes_besides(&self, besides: usize) -> Vec<String> {
        let until = Instant::now() + Duration::from_secs(2);
        let others = (0..self.ranks.len()).filter(|rank| *rank != besides);
        let left = || until.saturating_duration_since(Instant::now());
        others.map(|rank| self.outcome(rank, left())).collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            drop(rank.kill());
            drop(rank.wait());
        }
    }
}

const KILLED: &str = "its process ended without a word (killed?)";

#[test]
fn a_killed_rank_is_named_by_all_others() {
    for killed in [2, 0] {
        let run = Run::start(&["wait"; 4], SOON);
        run.signal(killed, Signal::KILL);
        for outcome in run.outcomes_besides(killed) {
            assert_eq!(outcome, format!("rank {killed} failed: {KILLED}"));
        }
    }
}

#[test]
fn a_rank_that_fails_and_ends_at_once_is_heard() {
    for failing in [2, 0] {
        let mut tasks = ["wait"; 4];
        tasks[failing] = "fail";
        let run = Run::start(&tasks, SOON);
        run.store.set("go", b"").unwrap();
        for outcome in run.outcomes_besides(failing) {
            assert_eq!(outcome, format!("rank {failing} failed: the disk is full"));
        }
    }
}

#[test]
fn a_rank_that_exits_without_a_word_is_named() {
    let run = Run::start(&["wait", "exit", "wait"], SOON);
    run.store.set("go", b"").unwrap();
    for outcome in run.outcomes_besides(1) {
        assert_eq!(outcome, format!("rank 1 failed: {KILLED}"));
    }
}

#[test]
fn a_stopped_rank_is_found_after_the_silence_and_hears_of_it_when_it_goes_on() {
    for stopped in [3, 0] {
        let silence = Duration::from_millis(1500);
        let run = Run::start(&["wait"; 4], silence);
        let begin = Instant::now();
        run.signal(stopped, Signal::STOP);
        let others = (0..4).filter(|rank| *rank != stopped);
        for rank in others {
            let outcome = run.outcome(rank, 4 * silence);
            let expected = format!("rank {stopped} failed: it gave no sign of life for 1.5 s");
            assert!(outcome.starts_with(&expected), "{outcome}");
        }
        assert!(begin.elapsed() > silence / 2, "{:?}", begin.elapsed());
        run.signal(stopped, Signal::CONT);
        let outcome = run.outcome(stopped, SOON);
        assert!(outcome.starts_with("rank "), "{outcome}");
        assert!(
            stopped == 0 || outcome.starts_with("rank 3 failed: it gave no sign"),
            "{outcome}"
        );
    }
}

#[test]
fn a_rank_that_is_killed_while_rank_0_is_stopped_is_named_when_it_goes_on() {
    let run = Run::start(&["wait"; 4], SOON);
    run.signal(0, Signal::STOP);
    run.signal(2, Signal::KILL);
    std::thread::sleep(Duration::from_millis(600));
    assert!(!run.store.check(&["outcome/1"]).unwrap());
    run.signal(0, Signal::CONT);
    for outcome in run.outcomes_besides(2) {
        assert_eq!(outcome, format!("rank 2 failed: {KILLED}"));
    }
}

#[test]
fn a_run_that_is_stopped_as_a_whole_goes_on() {
    let silence = Duration::from_secs(1);
    let run = Run::start(&["wait"; 3], silence);
    for rank in 0..3 {
        run.signal(rank, Signal::STOP);
    }
    std::thread::sleep(2 * silence);
    for rank in 0..3 {
        run.signal(rank, Signal::CONT);
    }
    std::thread::sleep(2 * silence);
    run.store.set("leave", b"").unwrap();
    for rank in 0..3 {
        assert_eq!(run.outcome(rank, SOON), "left");
    }
}

#[test]
fn a_rank_that_computes_for_long_is_alive() {
    // Longer than the silence, and more ranks than there may be cores.
    let run = Run::start(&["compute"; 3], Duration::from_millis(1500));
    for rank in 0..3 {
        assert_eq!(run.outcome(rank, SOON), "left");
    }
}

/// The parent is no rank: it only has the store, whose errors it does not hide.
#[test]
fn a_rank_without_its_hub_says_so() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    store.set("monitor/address", b"127.0.0.1:1").unwrap();
    let context = MonitorContext {
        store,
        global_rank: 1,
        world_size: 2,
        address: Ipv4Addr::LOCALHOST.into(),
        secret: SECRET.into(),
        health: Arc::new(Health::new()),
        heartbeat: MonitorContext::DEFAULT_HEARTBEAT,
        silence: MonitorContext::DEFAULT_SILENCE,
        timeout: Duration::from_millis(200),
    };
    let error = Monitor::start(context).err().unwrap();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}
