use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firebrand_collective::{
    Backend, Error as Collective, GroupContext, Health, Monitor, MonitorContext, PrefixStore, ProcessGroup,
    Secret, Store, StoreLimits, StoreServer, TcpStore, Topology, TorchStore, connect,
};

use crate::environment::bad;
use crate::{
    ChildEnd, Children, Cluster, Error, Launch, MasterAddress, Result, SpawnOptions, SpawnPlan, adopt,
    environment_variable,
};

/// How ranks come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinOptions {
    /// The deadline of every operation between ranks, and of their coming together; default 30 minutes, or `FIREBRAND_TIMEOUT`
    /// seconds.
    pub timeout: Duration,
    /// After how long without a sign of life a rank counts as dead; default 30 seconds.
    pub silence: Duration,
    /// How bytes move between ranks; default `auto`, or `FIREBRAND_COLLECTIVE`.
    pub backend: Backend,
}

impl Default for JoinOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1800),
            silence: Duration::from_secs(30),
            backend: Backend::Auto,
        }
    }
}

impl JoinOptions {
    /// The defaults, and what the environment says instead.
    ///
    /// # Errors
    ///
    /// If a variable has a value that it cannot have.
    pub fn from_environment(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        // An empty value counts as none.
        let lookup = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let mut options = Self::default();
        if let Some(text) = lookup("FIREBRAND_TIMEOUT") {
            let seconds = text
                .parse::<f64>()
                .ok()
                .filter(|seconds| *seconds > 0.0 && *seconds < 1e9);
            let seconds = seconds.ok_or_else(|| {
                bad(
                    "FIREBRAND_TIMEOUT",
                    &text,
                    "is no number of seconds above 0",
                    "set it to one, such as 300",
                )
            })?;
            options.timeout = Duration::from_secs_f64(seconds);
            options.silence = options.silence.min(options.timeout);
        }
        if let Some(text) = lookup("FIREBRAND_COLLECTIVE") {
            options.backend = text.parse().map_err(|_| {
                bad(
                    "FIREBRAND_COLLECTIVE",
                    &text,
                    "is no way to move bytes",
                    "choose auto, shm or tcp",
                )
            })?;
        }
        Ok(options)
    }
}

/// This process as one rank of a run: its group with the others, and whoever watches that they are well.
///
/// Dropping it after success says goodbye to the others; after an error or a panic, it counts as a failure of this rank.
pub struct Session {
    group: Arc<dyn ProcessGroup>,
    topology: Topology,
    monitor: Monitor,
    health: Arc<Health>,
}

/// What the process keeps for all of its sessions: the ranks that it started, and the store that it serves.
struct Family {
    topology: Topology,
    store: Arc<dyn Store>,
    secret: Arc<[u8]>,
    /// The address by which the others reach this process.
    address: IpAddr,
    watched: Arc<Watched>,
    /// Kept for as long as the process lives.
    _server: Option<StoreServer>,
    children: Option<Children>,
}

/// Whom the end of a child concerns: the session that is under way.
#[derive(Default)]
struct Watched(Mutex<WatchedState>);

#[derive(Default)]
struct WatchedState {
    health: Option<Arc<Health>>,
    /// The first child that failed, also before there was a session that it concerned.
    failure: Option<Collective>,
}

static FAMILY: Mutex<Option<Family>> = Mutex::new(None);
/// Counted on every rank, so that all have the same names for their sessions.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

impl Session {
    /// Comes together with the other ranks. The first time, a process that is to start the others does so; it blocks until all
    /// ranks are there.
    ///
    /// # Errors
    ///
    /// If a rank does not come in time, cannot be started or reached, or does not know the secret.
    pub fn join(launch: &Launch, options: JoinOptions) -> Result<Option<Self>> {
        let mut family = FAMILY.lock().unwrap_or_else(PoisonError::into_inner);
        let here = match (&mut *family, launch) {
            (_, Launch::Single) => return Ok(None),
            (Some(family), _) => family,
            (none, Launch::Spawn(plan)) => none.insert(Family::start(plan, options.timeout)?),
            (none, Launch::External(cluster)) => none.insert(Family::meet(cluster, options.timeout)?),
        };
        let number = SESSIONS.fetch_add(1, Ordering::SeqCst);
        here.session(number, options).map(Some)
    }

    /// The group of all ranks.
    pub fn group(&self) -> &Arc<dyn ProcessGroup> {
        &self.group
    }

    /// Who this process is.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Tells the other ranks that this one failed; returns when they know, or after a second.
    pub fn fail(&self, cause: &str) {
        self.monitor.fail(cause);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.monitor.fail("it panicked; its own output says more");
        } else if self.health.check().is_ok() {
            // If it cannot be said, the others notice.
            let _ = self.monitor.leave();
        }
    }
}

/// Ends the ranks that this process started, as a program does at its end. They have a few seconds, then they are killed.
pub fn end_children() {
    let family = FAMILY.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(family);
}

impl Family {
    /// Starts the other ranks of this node, and serves the store if this is the first node.
    fn start(plan: &SpawnPlan, timeout: Duration) -> Result<Self> {
        let first = &plan.topology_of_first;
        let secret = match Secret::from_environment(environment_variable)? {
            Some(secret) => secret,
            // The other ranks of this node get it in their environment.
            None if plan.master.is_none() => Secret::random()?,
            None => {
                return Err(Error::Missing {
                    name: "FIREBRAND_SECRET".to_owned(),
                    because: "machines that are started one by one must know each other from strangers".to_owned(),
                    fix: "set it to the same long random text on each, or FIREBRAND_SECRET_FILE to a file with it that only you can read".to_owned(),
                });
            }
        };
        let address = match &plan.master {
            Some(master) => resolve(master)?,
            None => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
        };
        // Bound before it is announced.
        let server = if first.node_rank == 0 {
            let listener = TcpListener::bind(address).map_err(|error| Error::port(address, &error))?;
            Some(StoreServer::serve(
                listener,
                secret.as_bytes(),
                StoreLimits::default(),
            )?)
        } else {
            None
        };
        let address = server.as_ref().map_or(address, StoreServer::address);
        let master = MasterAddress {
            host: address.ip().to_string(),
            port: address.port(),
        };
        let watched = Arc::<Watched>::default();
        let concerns = Arc::clone(&watched);
        let options = same_again()?.secret(&secret);
        let children = Children::spawn(&plan.others(&master), &options, move |end| concerns.failed(end))?;
        let store: Arc<dyn Store> = match &server {
            Some(server) => server.store(),
            None => Arc::new(TcpStore::connect(address, secret.as_bytes(), timeout)?),
        };
        Ok(Self {
            topology: first.clone(),
            store,
            secret: secret.shared(),
            address: reached_from(address)?,
            watched,
            _server: server,
            children: Some(children),
        })
    }

    /// Meets the ranks that a launcher has started.
    fn meet(cluster: &Cluster, timeout: Duration) -> Result<Self> {
        adopt()?;
        let address = resolve(&cluster.master)?;
        let given = Secret::from_environment(environment_variable)?.map(|secret| secret.shared());
        let secret = match (given, cluster.agent_store) {
            (Some(secret), _) => secret,
            (None, true) => agreed_secret(address, cluster, timeout)?,
            (None, false) => known_secret(cluster),
        };
        let mut server = None;
        let store: Arc<dyn Store> = if cluster.agent_store {
            Arc::new(TorchStore::connect(address, timeout)?)
        } else if cluster.topology.global_rank == 0 {
            let listener = TcpListener::bind(address).map_err(|error| Error::port(address, &error))?;
            let served = StoreServer::serve(listener, &secret, StoreLimits::default())?;
            let store = served.store();
            server = Some(served);
            store
        } else {
            Arc::new(TcpStore::connect(address, &secret, timeout)?)
        };
        Ok(Self {
            topology: cluster.topology.clone(),
            store: of_this_start(store, cluster),
            secret,
            address: reached_from(address)?,
            watched: Arc::default(),
            _server: server,
            children: None,
        })
    }

    fn session(&self, number: u64, options: JoinOptions) -> Result<Session> {
        let health = Arc::new(Health::new());
        self.watched.concerns(&health);
        health.check()?;
        let store: Arc<dyn Store> = Arc::new(PrefixStore::new(
            Arc::clone(&self.store),
            format!("session{number}"),
        ));
        let monitor = Monitor::start(MonitorContext {
            store: Arc::clone(&store),
            global_rank: self.topology.global_rank,
            world_size: self.topology.world_size,
            address: self.address,
            secret: Arc::clone(&self.secret),
            health: Arc::clone(&health),
            heartbeat: MonitorContext::DEFAULT_HEARTBEAT.min(options.silence / 3),
            silence: options.silence,
            timeout: options.timeout,
        })?;
        let context = GroupContext {
            store: Arc::new(PrefixStore::new(store, "world")),
            rank: self.topology.global_rank,
            global_ranks: (0..self.topology.world_size).collect(),
            health: Arc::clone(&health),
            address: self.address,
            secret: Arc::clone(&self.secret),
            timeout: options.timeout,
        };
        Ok(Session {
            group: connect(context, options.backend)?,
            topology: self.topology.clone(),
            monitor,
            health,
        })
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // Before the store that they use.
        self.children = None;
    }
}

impl Watched {
    /// A child that fails while a session is under way is a rank that failed.
    fn failed(&self, end: ChildEnd) {
        let failure = Collective::RankFailed {
            rank: end.rank,
            cause: end.to_string(),
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(health) = &state.health {
            health.fail(failure.clone());
        }
        state.failure.get_or_insert(failure);
    }

    /// From now on what happens to children concerns a session; one that failed before it began does too.
    fn concerns(&self, health: &Arc<Health>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = &state.failure {
            health.fail(failure.clone());
        }
        state.health = Some(Arc::clone(health));
    }
}

/// This program once more. A test binary runs all of its tests: there, the other rank is to run the one that is running here.
fn same_again() -> Result<SpawnOptions> {
    let program = std::env::current_exe().ok();
    let test = program.and_then(|program| test_of(&program, std::thread::current().name()));
    match test {
        Some(test) => SpawnOptions::for_test(&test),
        None => SpawnOptions::this_program(),
    }
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

/// The address of a host, an IPv4 one if it has both.
fn resolve(master: &MasterAddress) -> Result<SocketAddr> {
    let found = (master.host.as_str(), master.port).to_socket_addrs();
    let mut found: Vec<SocketAddr> = found.map_err(|error| Error::host(master, &error))?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found
        .first()
        .copied()
        .ok_or_else(|| Error::host(master, &"it has no address"))
}

/// The own address that the way to another one begins at: by it, the others reach this process.
fn reached_from(other: SocketAddr) -> Result<IpAddr> {
    let any: SocketAddr = match other {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Nothing is sent: the system only looks up the way.
    UdpSocket::bind(any)
        .and_then(|socket| {
            socket.connect(other)?;
            socket.local_addr()
        })
        .map(|address| address.ip())
        .map_err(|error| Error::no_way(other, &error))
}

/// A restarted run must not find what the one before it left in a store that outlives it. One that serves its own store starts
/// with an empty one.
fn of_this_start(store: Arc<dyn Store>, cluster: &Cluster) -> Arc<dyn Store> {
    if cluster.agent_store {
        let prefix = format!("{}/{}", cluster.job_id, cluster.restart_count);
        return Arc::new(PrefixStore::new(store, prefix));
    }
    store
}

/// A secret that rank 0 draws and gives to the others through the launcher's store: it is as safe as that.
fn agreed_secret(address: SocketAddr, cluster: &Cluster, timeout: Duration) -> Result<Arc<[u8]>> {
    let store = of_this_start(Arc::new(TorchStore::connect(address, timeout)?), cluster);
    if cluster.topology.global_rank == 0 {
        let secret = Secret::random()?;
        store.set("secret", secret.as_bytes())?;
        return Ok(secret.shared());
    }
    Ok(store.get("secret", timeout)?.into())
}

/// What every rank of a job knows without being told. It keeps jobs apart, and nobody out.
fn known_secret(cluster: &Cluster) -> Arc<[u8]> {
    let MasterAddress { host, port } = &cluster.master;
    format!("firebrand job {} at {host}:{port}", cluster.job_id)
        .into_bytes()
        .into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_deadline_and_backend() {
        let options = JoinOptions::from_environment(&|name| match name {
            "FIREBRAND_TIMEOUT" => Some("2.5".to_owned()),
            "FIREBRAND_COLLECTIVE" => Some("tcp".to_owned()),
            _ => None,
        })
        .unwrap();
        assert_eq!(options.timeout, Duration::from_millis(2500));
        assert_eq!(
            (options.silence, options.backend),
            (Duration::from_millis(2500), Backend::Tcp)
        );
        for (variable, value) in [("FIREBRAND_TIMEOUT", "-1"), ("FIREBRAND_COLLECTIVE", "udp")] {
            let found = JoinOptions::from_environment(&|name| (name == variable).then(|| value.to_owned()));
            let text = found.unwrap_err().to_string();
            assert!(text.contains(variable) && text.contains(value), "{text}");
        }
    }

    #[test]
    fn only_a_test_binary_is_run_for_one_test() {
        let test = Path::new("/target/debug/deps/ddp-0123456789abcdef");
        assert_eq!(test_of(test, Some("two::ranks")), Some("two::ranks".to_owned()));
        assert_eq!(test_of(test, Some("main")), None);
        assert_eq!(test_of(Path::new("/target/release/digits"), Some("worker")), None);
    }

    #[test]
    fn the_way_to_this_machine_begins_at_it() {
        let here = reached_from(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9)).unwrap();
        assert_eq!(here, IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}
