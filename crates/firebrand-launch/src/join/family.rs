use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use firebrand_collective::{
    Error as Collective, PrefixStore, Secret, Store, StoreLimits, StoreServer, TcpStore, Topology, TorchStore,
};

use super::JoinOptions;
use super::address::{reached_from, resolve};
use super::knock::{Door, knock};
use super::notice::Notice;
use super::place::{Place, Watched};
use super::program::same_again;
use crate::{Children, Cluster, Error, MasterAddress, Result, SpawnPlan, adopt, environment_variable};

/// What the process keeps for all of its sessions: the ranks that it started, and the store that it serves.
pub(super) struct Family {
    pub place: Place,
    pub children: Option<Children>,
    /// How its ranks came together, which is how they part.
    pub options: JoinOptions,
    /// Kept for as long as the process lives.
    server: Option<Server>,
}

/// What rank 0 serves: the store, and where it hears of those who were refused.
struct Server {
    store: StoreServer,
    door: Option<Door>,
}

static FAMILY: Mutex<Option<Family>> = Mutex::new(None);

/// The family of this process, once it has one.
pub(super) fn family() -> MutexGuard<'static, Option<Family>> {
    FAMILY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Family {
    /// Starts the other ranks of this node, and serves the store if this is the first node.
    pub fn start(plan: &SpawnPlan, options: JoinOptions) -> Result<Self> {
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
        let server = match first.node_rank {
            0 => Some(serve(address, secret.as_bytes())?),
            _ => None,
        };
        let address = server.as_ref().map_or(address, |server| server.store.address());
        let master = MasterAddress {
            host: address.ip().to_string(),
            port: address.port(),
        };
        let watched = Arc::<Watched>::default();
        let concerns = Arc::clone(&watched);
        let spawn = same_again()?.secret(&secret);
        let children = Children::spawn(&plan.others(&master), &spawn, move |end| concerns.failed(end))?;
        let store: Arc<dyn Store> = match &server {
            Some(server) => server.store.store(),
            None => {
                let _notice = unreached(first, address, options.notice);
                reach(first, address, secret.as_bytes(), options.timeout)?
            }
        };
        Ok(Self {
            place: Place {
                topology: first.clone(),
                store,
                secret: secret.shared(),
                address: reached_from(address)?,
                watched,
            },
            children: Some(children),
            options,
            server,
        })
    }

    /// Meets the ranks that a launcher has started.
    pub fn meet(cluster: &Cluster, options: JoinOptions) -> Result<Self> {
        adopt()?;
        let address = resolve(&cluster.master)?;
        let _notice = unreached(&cluster.topology, address, options.notice);
        let given = Secret::from_environment(environment_variable)?.map(|secret| secret.shared());
        let secret = match (given, cluster.agent_store) {
            (Some(secret), _) => secret,
            (None, true) => agreed_secret(address, cluster, options.timeout)?,
            (None, false) => known_secret(cluster),
        };
        let mut server = None;
        let store: Arc<dyn Store> = if cluster.agent_store {
            Arc::new(TorchStore::connect(address, options.timeout)?)
        } else if cluster.topology.global_rank == 0 {
            let served = serve(address, &secret)?;
            let store = served.store.store();
            server = Some(served);
            store
        } else {
            reach(&cluster.topology, address, &secret, options.timeout)?
        };
        Ok(Self {
            place: Place {
                topology: cluster.topology.clone(),
                store: of_this_start(store, cluster),
                secret,
                address: reached_from(address)?,
                watched: Arc::default(),
            },
            children: None,
            options,
            server,
        })
    }

    /// Why ranks did not come together, with what is known here of those who were refused.
    pub fn explained(&self, error: Error) -> Error {
        let door = self.server.as_ref().and_then(|server| server.door.as_ref());
        match (error, door.and_then(Door::reason)) {
            (Error::Ranks(text), Some(reason)) => Error::Ranks(format!("{text}; {reason}")),
            (error, _) => error,
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // Before the store that they use.
        self.children = None;
    }
}

fn serve(address: SocketAddr, secret: &[u8]) -> Result<Server> {
    let listener = TcpListener::bind(address).map_err(|error| Error::port(address, &error))?;
    let store = StoreServer::serve(listener, secret, StoreLimits::default())?;
    Ok(Server {
        door: Door::open(store.address()),
        store,
    })
}

/// Connects to the store of rank 0, which is told if this rank has another secret.
fn reach(
    topology: &Topology,
    address: SocketAddr,
    secret: &[u8],
    timeout: Duration,
) -> Result<Arc<dyn Store>> {
    match TcpStore::connect(address, secret, timeout) {
        Ok(store) => Ok(Arc::new(store)),
        Err(error) => {
            if matches!(error, Collective::Secret { .. }) {
                knock(address, topology.global_rank);
            }
            Err(error.into())
        }
    }
}

/// Says on each node that nobody listens where rank 0 should, for as long as it takes.
fn unreached(topology: &Topology, address: SocketAddr, interval: Duration) -> Option<Notice> {
    let (rank, speaks) = (
        topology.global_rank,
        topology.local_rank == 0 && topology.global_rank != 0,
    );
    speaks.then(|| {
        Notice::every(interval, move |waited| {
            Some(format!(
                "rank {rank} has waited {} s for rank 0 to answer at {address}; look whether the program runs there, \
                 MASTER_ADDR and MASTER_PORT are right on this node, and no firewall is between",
                waited.as_secs()
            ))
        })
    })
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
