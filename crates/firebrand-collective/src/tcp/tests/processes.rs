//! Ranks as processes that are really killed: each is this test binary, started again to be a rank.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::*;
use crate::{StoreLimits, StoreServer, TcpStore};

/// What a rank is told, by environment variable: its number, the number of ranks, the store, what to do.
const RANK: &str = "FIREBRAND_TEST_TCP_RANK";

/// The processes of a run.
pub(super) struct Run {
    pub ranks: Vec<Child>,
    pub store: Arc<MemoryStore>,
    _server: StoreServer,
}

impl Run {
    pub fn start(ranks: usize, task: &str) -> Self {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let server = StoreServer::bind(address, SECRET, StoreLimits::default()).unwrap();
        let store = server.store();
        let children = (0..ranks).map(|rank| {
            let orders = format!("{rank} {ranks} {} {task}", server.address());
            Command::new(std::env::current_exe().unwrap())
                .args(["tcp::tests::processes::rank", "--exact", "--nocapture"])
                .env(RANK, orders)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        Self {
            ranks: children.collect(),
            store,
            _server: server,
        }
    }

    pub fn outcome(&self, rank: usize, within: Duration) -> String {
        let outcome = self.store.get(&format!("outcome/{rank}"), within);
        String::from_utf8(outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"))).unwrap()
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

/// Not a test of its own: what each of the processes does. It puts into the store what it has seen.
#[test]
fn rank() {
    let Ok(orders) = std::env::var(RANK) else {
        return;
    };
    let orders: Vec<&str> = orders.split(' ').collect();
    let [number, ranks, address, task] = orders[..] else {
        panic!("{orders:?}");
    };
    let store = TcpStore::connect(address.parse().unwrap(), SECRET, SOON).unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let context = context(&store, number.parse().unwrap(), ranks.parse().unwrap());
    let outcome = match task {
        "reduce" => reduce_for_ever(context),
        "exchange" => exchange_for_ever(&context),
        "measure" => Ok(super::bandwidth::measure(context)),
        other => panic!("{other}"),
    };
    let outcome = outcome.unwrap_or_else(|error| error.to_string());
    store
        .set(&format!("outcome/{number}"), outcome.as_bytes())
        .unwrap();
}

fn reduce_for_ever(context: GroupContext) -> Result<String> {
    let store = Arc::clone(&context.store);
    let ready = format!("ready/{}", context.rank);
    let mut rank = Rank::connect(context)?;
    loop {
        rank.sum(&vec![1.0; 1 << 18])?;
        rank.sum(&[1.0; 10])?;
        if rank.sequence == 4 {
            store.set(&ready, b"")?;
        }
    }
}

fn exchange_for_ever(context: &GroupContext) -> Result<String> {
    let links = Links::connect(context)?;
    let (own, ranks) = (context.rank, context.global_ranks.len());
    for round in 0.. {
        let received = links.recv(Buffer::zeros(DType::F32, 1 << 16), (own + ranks - 1) % ranks);
        let sent = links.send(Buffer::zeros(DType::F32, 1 << 16), (own + 1) % ranks);
        received.wait()?;
        sent.wait()?;
        if round == 3 {
            context.store.set(&format!("ready/{own}"), b"")?;
        }
    }
    Ok(String::new())
}

#[test]
fn a_killed_process_ends_the_others() {
    for task in ["reduce", "exchange"] {
        for ranks in [2, 3] {
            let mut run = Run::start(ranks, task);
            for rank in 0..ranks {
                run.store.get(&format!("ready/{rank}"), SOON).unwrap();
            }
            let killed = ranks - 1;
            run.ranks[killed].kill().unwrap();
            let start = Instant::now();
            let outcomes: Vec<String> = (0..killed).map(|rank| run.outcome(rank, SOON)).collect();
            assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
            let name = format!("rank {} failed: the connection to it was closed", FIRST + killed);
            assert!(
                outcomes.iter().any(|outcome| outcome.contains(&name)),
                "{outcomes:?}"
            );
        }
    }
}
