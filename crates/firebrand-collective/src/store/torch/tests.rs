#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{TorchStore, test_server};
use crate::store::{Store, test_contract};
use crate::{Error, Health};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn it_does_what_a_store_does() {
    let (address, values) = test_server::start();
    let store: Arc<dyn Store> = Arc::new(TorchStore::connect(address, SOON).unwrap());
    test_contract::check(&store);
    store.set("where", b"here").unwrap();
    assert_eq!(
        values.lock().unwrap().get(&b"/firebrand/where"[..]).unwrap(),
        b"here"
    );
}

#[test]
fn a_server_that_is_gone_or_speaks_another_language_is_named() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let error = TorchStore::connect(free, Duration::from_millis(100))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains(&free.to_string()) && error.contains("MASTER_PORT"),
        "{error}"
    );

    // A server that answers a few bytes of nonsense to all that comes.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            drop(stream.read(&mut [0; 64]));
            drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        }
    });
    let start = Instant::now();
    let error = TorchStore::connect(address, SOON).err().unwrap().to_string();
    assert!(error.contains("does not answer like a TCPStore"), "{error}");
    assert!(start.elapsed() < SOON / 2);
}

/// A server that begins well and then answers nothing, or sizes that nobody can have meant.
fn bad_server(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move |mut stream: TcpStream| -> std::io::Result<()> {
        let mut hello = [0; 10];
        stream.read_exact(&mut hello)?;
        stream.write_all(&hello[6..])?;
        loop {
            if stream.read(&mut [0; 4096])? == 0 {
                return Ok(());
            }
            stream.write_all(answer)?;
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

#[test]
fn nonsense_and_silence_end_in_an_error() {
    let store = TorchStore::connect(bad_server(&[0xff; 9]), SOON).unwrap();
    for error in [
        store.check(&["k"]).map(drop).unwrap_err(),
        store.compare_set("k", b"a", b"b").map(drop).unwrap_err(),
        store.get("k", SOON).map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }
    let store = TorchStore::connect(bad_server(b""), Duration::from_millis(200)).unwrap();
    let start = Instant::now();
    let error = store.add("k", 1).unwrap_err().to_string();
    assert!(error.contains("does not answer"), "{error}");
    let error = store
        .get("k", Duration::from_millis(200))
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not answer"), "{error}");
    assert!(start.elapsed() < SOON / 2);
}

#[test]
fn a_failure_of_a_rank_ends_a_wait() {
    let health = Arc::new(Health::new());
    for address in [test_server::start().0, bad_server(b"")] {
        let store = TorchStore::connect(address, SOON * 6).unwrap();
        let store = store.with_health(Arc::clone(&health));
        let waiting = thread::spawn(move || store.get("never", SOON * 6));
        thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        health.fail(Error::RankFailed {
            rank: 3,
            cause: "out of memory".to_owned(),
        });
        assert!(matches!(
            waiting.join().unwrap(),
            Err(Error::RankFailed { rank: 3, .. })
        ));
        assert!(start.elapsed() < SOON / 5);
    }
}

/// A Python process that serves PyTorch's own store, ended with this value.
struct Python(Child);

impl Drop for Python {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The real thing, with both of its servers, if `FIREBRAND_TEST_PYTHON` names a Python that has PyTorch.
#[test]
fn pytorchs_own_store() {
    const SERVE: &str = "
import sys
from datetime import timedelta
try:
    from torch.distributed import TCPStore
except ImportError as error:
    print('none', error, flush=True)
    sys.exit()
store = TCPStore('127.0.0.1', 0, None, True, timedelta(seconds=60), False, use_libuv=sys.argv[1] == 'libuv')
print(store.port, flush=True)
sys.stdin.readline()
print(store.get('firebrand/from rust').decode(), flush=True)
store.set('firebrand/from python', 'hello')
sys.stdin.readline()
";
    let Ok(python) = std::env::var("FIREBRAND_TEST_PYTHON") else {
        eprintln!("skipped: FIREBRAND_TEST_PYTHON names no Python with PyTorch");
        return;
    };
    for server in ["libuv", "legacy"] {
        let mut child = Command::new(&python)
            .args(["-c", SERVE, server])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut input = child.stdin.take().unwrap();
        let child = Python(child);
        let port = lines.next().unwrap().unwrap();
        let Ok(port) = port.parse::<u16>() else {
            eprintln!("skipped: {python} has no PyTorch: {port}");
            return;
        };
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let torch = TorchStore::connect(address, SOON).unwrap();
        torch.set("from rust", b"good day").unwrap();
        writeln!(input).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "good day");
        assert_eq!(torch.get("from python", SOON).unwrap(), b"hello");
        let store: Arc<dyn Store> = Arc::new(torch);
        test_contract::check(&store);
        // A counter that is none: an error, and the store goes on.
        store.set("text", b"no number").unwrap();
        assert!(store.add("text", 1).is_err());
        assert_eq!(store.get("text", SOON).unwrap(), b"no number");
        drop(child);
        let error = store.get("text", Duration::from_secs(1)).unwrap_err().to_string();
        assert!(
            error.contains(&address.to_string()) && error.contains("may have ended"),
            "{error}"
        );
        eprintln!("{server}: done");
    }
}

/// Not a test of its own: what a rank does that torchrun has started.
#[test]
fn rank_of_torchrun() {
    let variable = |name| std::env::var(name).ok();
    let (Some(rank), Some(_)) = (variable("RANK"), variable("FIREBRAND_TEST_TORCHRUN")) else {
        return;
    };
    assert_eq!(variable("TORCHELASTIC_USE_AGENT_STORE").as_deref(), Some("True"));
    let (host, port) = (variable("MASTER_ADDR").unwrap(), variable("MASTER_PORT").unwrap());
    let addresses = format!("{host}:{port}").to_socket_addrs().unwrap();
    let store = addresses
        .map(|address| TorchStore::connect(address, SOON))
        .find_map(Result::ok)
        .unwrap();
    store.set(&format!("here/{rank}"), rank.as_bytes()).unwrap();
    store.wait(&["here/0", "here/1"], SOON).unwrap();
    let arrived = store.add("arrived", 1).unwrap();
    assert!((1..=2).contains(&arrived));
    println!("rank {rank} met the other");
}

/// Two ranks meet through the store of a real torchrun, if `FIREBRAND_TEST_PYTHON` names a Python that has PyTorch.
#[test]
fn ranks_of_torchrun_meet() {
    let Ok(python) = std::env::var("FIREBRAND_TEST_PYTHON") else {
        eprintln!("skipped: FIREBRAND_TEST_PYTHON names no Python with PyTorch");
        return;
    };
    let has_torch = Command::new(&python)
        .args(["-c", "import torch.distributed.run"])
        .output()
        .unwrap();
    if !has_torch.status.success() {
        eprintln!("skipped: {python} has no PyTorch");
        return;
    }
    let output = Command::new(&python)
        .args([
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--no-python",
            "--nproc-per-node",
            "2",
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["store::torch::tests::rank_of_torchrun", "--exact", "--nocapture"])
        .env("FIREBRAND_TEST_TORCHRUN", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    for rank in 0..2 {
        assert!(
            text.contains(&format!("rank {rank} met the other")),
            "{text}{errors}"
        );
    }
}
