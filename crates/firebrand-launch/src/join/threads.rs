use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firebrand_collective::{Error as Collective, Health, MemoryStore, Secret, Store, Topology};

use super::place::Place;
use super::{JoinOptions, Session};
use crate::Result;

/// Ranks that are threads of this process.
///
/// ```
/// use firebrand_collective::{Buffer, ReduceOp};
/// use firebrand_launch::{JoinOptions, ThreadRanks};
///
/// let ranks = ThreadRanks::new(2)?;
/// let threads = ranks.tickets(JoinOptions::default()).into_iter().map(|ticket| {
///     std::thread::spawn(move || -> Result<f32, Box<dyn std::error::Error + Send + Sync>> {
///         let session = ticket.join()?;
///         let mine = Buffer::from_slice(&[session.topology().global_rank as f32 + 1.0]);
///         let sum = session.group().all_reduce(mine, ReduceOp::Sum).wait()?;
///         Ok(sum.as_slice::<f32>()?[0])
///     })
/// });
/// for thread in threads.collect::<Vec<_>>() {
///     assert_eq!(thread.join().unwrap().unwrap(), 3.0);
/// }
/// # Ok::<(), firebrand_launch::Error>(())
/// ```
pub struct ThreadRanks {
    places: Vec<Place>,
    sessions: AtomicU64,
}

impl ThreadRanks {
    /// So many ranks, at least one.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers for their secret.
    pub fn new(num_ranks: usize) -> Result<Self> {
        let world_size = num_ranks.max(1);
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let secret = Secret::random()?.shared();
        let places = (0..world_size).map(|rank| Place {
            topology: Topology {
                global_rank: rank,
                world_size,
                local_rank: rank,
                local_world_size: world_size,
                node_rank: 0,
                num_nodes: 1,
            },
            store: Arc::clone(&store),
            secret: Arc::clone(&secret),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            watched: Arc::default(),
        });
        Ok(Self {
            places: places.collect(),
            sessions: AtomicU64::new(0),
        })
    }

    /// Who each rank is.
    pub fn topologies(&self) -> impl Iterator<Item = &Topology> {
        self.places.iter().map(|place| &place.topology)
    }

    /// The tickets to the next session, one for each rank and in their order. Each is for a thread of its own.
    pub fn tickets(&self, options: JoinOptions) -> Vec<Ticket> {
        let number = self.sessions.fetch_add(1, Ordering::SeqCst);
        let health = Arc::new(Health::new());
        let tickets = self.places.iter().map(|place| Ticket {
            place: place.clone(),
            number,
            health: Arc::clone(&health),
            options,
            used: false,
        });
        tickets.collect()
    }
}

/// The place of one thread in a session of [`ThreadRanks`]. If it is dropped without having been used, the other ranks count this
/// one as failed.
#[must_use = "the other ranks wait for it"]
pub struct Ticket {
    place: Place,
    number: u64,
    health: Arc<Health>,
    options: JoinOptions,
    used: bool,
}

impl Ticket {
    /// Who its rank is.
    pub fn topology(&self) -> &Topology {
        &self.place.topology
    }

    /// Comes together with the other ranks; it blocks until all are there.
    ///
    /// # Errors
    ///
    /// If a rank fails or does not come in time; the others then fail too.
    pub fn join(mut self) -> Result<Session> {
        self.used = true;
        let joined = Session::begin(&self.place, self.number, self.options, Some(&self.health));
        if let Err(error) = &joined {
            self.fail(error.to_string());
        }
        joined
    }

    fn fail(&self, cause: String) {
        self.health.fail(Collective::RankFailed {
            rank: self.place.topology.global_rank,
            cause,
        });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.used {
            self.fail("its thread ended before it came together with the others".to_owned());
        }
    }
}
