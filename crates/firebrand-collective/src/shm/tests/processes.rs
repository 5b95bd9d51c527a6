//! Ranks that are processes, and die.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::*;
use crate::Error;

/// A store in a folder, which processes share.
pub(super) struct FolderStore(pub(super) PathBuf);

impl FolderStore {
    fn path(&self, key: &str) -> PathBuf {
        self.0.join(key.replace('/', "_"))
    }
}

impl Store for FolderStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let path = self.path(key);
        let temporary = path.with_extension(format!("{}", std::process::id()));
        std::fs::write(&temporary, value).unwrap();
        std::fs::rename(temporary, path).unwrap();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let start = Instant::now();
        loop {
            match std::fs::read(self.path(key)) {
                Ok(value) => return Ok(value),
                Err(_) if start.elapsed() < timeout => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => {
                    return Err(Error::Missing {
                        key: key.to_owned(),
                        after: timeout,
                    });
                }
            }
        }
    }

    fn add(&self, _key: &str, _amount: i64) -> Result<i64> {
        Err(Error::argument("a folder cannot add"))
    }

    fn compare_set(&self, _key: &str, _expected: &[u8], _desired: &[u8]) -> Result<Vec<u8>> {
        Err(Error::argument("a folder cannot compare"))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        keys.iter().try_for_each(|key| self.get(key, timeout).map(drop))
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        Ok(keys.iter().all(|key| self.path(key).exists()))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        Ok(std::fs::remove_file(self.path(key)).is_ok())
    }
}

/// A process that is killed when it is not needed any more.
pub(super) struct Process(Child);

impl Process {
    /// One rank: runs an ignored test of this program, which finds out with [`rank_of_process`] who it is.
    pub(super) fn start(test: &str, folder: &Path, rank: usize, ranks: usize) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env("SHM_TEST", format!("{rank} {ranks} {}", folder.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub(super) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// What it said, after it has succeeded.
    pub(super) fn succeed(mut self) -> String {
        use std::io::Read;
        let mut said = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The context of the process, if it was started as a rank, and its folder.
pub(super) fn rank_of_process(timeout: Duration) -> Option<(GroupContext, PathBuf)> {
    let text = std::env::var("SHM_TEST").ok()?;
    let mut words = text.splitn(3, ' ');
    let mut number = || words.next().unwrap().parse::<usize>().unwrap();
    let (rank, ranks) = (number(), number());
    let folder = PathBuf::from(words.next().unwrap());
    let store: Arc<dyn Store> = Arc::new(FolderStore(folder.clone()));
    Some((context(&store, rank, ranks, timeout), folder))
}

#[test]
fn processes_whose_peer_is_killed_end_soon_after_they_learn_of_it() {
    for ranks in [2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let store = FolderStore(folder.path().to_owned());
        let mut processes: Vec<Process> = (0..ranks)
            .map(|rank| {
                Process::start(
                    "shm::tests::processes::reduces_until_a_rank_fails",
                    folder.path(),
                    rank,
                    ranks,
                )
            })
            .collect();
        store.get("reducing", Duration::from_secs(10)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        processes.pop().unwrap().kill();
        store.set("killed", b"").unwrap();
        for process in processes {
            process.succeed();
        }
    }
}

#[test]
#[ignore = "a rank in a process of its own"]
fn reduces_until_a_rank_fails() {
    let Some((context, folder)) = rank_of_process(PATIENT) else {
        return;
    };
    let store = FolderStore(folder);
    let mut rank = Rank::new(&context).unwrap();
    let health = Arc::clone(&context.health);
    let told = std::thread::spawn(move || {
        store.get("killed", PATIENT).unwrap();
        health.fail(Error::RankFailed {
            rank: 99,
            cause: "it was killed".to_owned(),
        });
        Instant::now()
    });
    let error = (0..).find_map(|round: u64| {
        if round == 20 {
            context.store.set("reducing", b"").unwrap();
        }
        let len = [10, 5000, 1 << 20][round as usize % 3];
        let buffer = rank.buffer(&vec![1.0f32; len], round.is_multiple_of(2));
        match rank.run(Operation::AllReduce(ReduceOp::Sum), buffer) {
            Ok(found) => {
                assert!(
                    found
                        .as_slice::<f32>()
                        .unwrap()
                        .iter()
                        .all(|found| *found == rank.ranks as f32)
                );
                None
            }
            Err(error) => Some(error),
        }
    });
    let after = told.join().unwrap().elapsed();
    assert!(
        matches!(error, Some(Error::RankFailed { rank: 99, .. })),
        "{error:?}"
    );
    assert!(after < Duration::from_millis(500), "{after:?}");
}

#[test]
fn nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    Process::start("shm::tests::processes::comes_and_goes", folder.path(), 0, 1).succeed();
}

#[test]
#[ignore = "is alone in a process of its own, to count what it has open"]
fn comes_and_goes() {
    if rank_of_process(PATIENT).is_none() {
        return;
    }
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let named = |folder: &str| {
        std::fs::read_dir(folder)
            .unwrap()
            .filter(|entry| {
                entry
                    .as_ref()
                    .unwrap()
                    .file_name()
                    .to_string_lossy()
                    .contains("firebrand")
            })
            .count()
    };
    let before = (open(), named("/dev/shm"), named("/tmp"));
    with_ranks(3, PATIENT, |mut rank| {
        for len in [10, 1 << 20] {
            let buffer = rank.buffer(&vec![1.0f32; len], len == 10);
            rank.run(Operation::AllReduce(ReduceOp::Sum), buffer).unwrap();
        }
        // Nor while they run: the mappings are all that is kept. One rank looks, since looking opens a file.
        rank.barrier().unwrap();
        if rank.rank == 0 {
            assert_eq!((open(), named("/dev/shm"), named("/tmp")), before);
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(maps.contains("memfd:firebrand"));
        }
        rank.barrier().unwrap();
    });
    assert_eq!((open(), named("/dev/shm"), named("/tmp")), before);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("memfd:firebrand"), "{maps}");
}
