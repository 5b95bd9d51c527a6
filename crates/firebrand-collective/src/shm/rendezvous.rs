//! How the ranks of a node come to share memory: each makes an arena, rank 0 the control memory too; every rank hands its file
//! to rank 0, which hands all of them to every rank.
//!
//! Files travel over Unix sockets in the abstract namespace, of which nothing is left. Rank 0 listens under a random name,
//! which it tells through the store. A file is handed over only to a process of the same user that has proved that it knows
//! the secret.

use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::control::Control;
use super::link::Link;
use super::memfd;
use super::memory::Mapping;
use crate::auth::Side;
use crate::transport::Patience;
use crate::{Error, GroupContext, Health, Result};

/// Where rank 0 tells its address.
const KEY: &str = "shm";

/// How long a stranger who connects may take to prove that it is none.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The memory of a group, mapped.
pub(super) struct Shared {
    pub(super) control: Mapping,
    /// This rank's own.
    pub(super) arena: Mapping,
    /// Those of the others; none for this rank.
    pub(super) peers: Vec<Option<Mapping>>,
}

/// Meets the other ranks of the group.
pub(super) fn meet(context: &GroupContext) -> Result<Shared> {
    let what = format!("sharing memory as rank {}", context.global_ranks[context.rank]);
    let patience = Patience::new(Arc::clone(&context.health), what, context.timeout);
    let (arena_file, arena) = memfd::arena(context.global_ranks.len())?;
    let (control, files) = if context.rank == 0 {
        serve(context, arena_file, &patience)?
    } else {
        join(context, &arena_file, &patience)?
    };
    let name = |rank: usize| format!("rank {}", context.global_ranks[rank]);
    let control = memfd::control(&control, Control::size(files.len()), &name(0))?;
    let peers = files.iter().enumerate().map(|(rank, file)| {
        if rank == context.rank {
            return Ok(None);
        }
        memfd::peer(file, &name(rank)).map(Some)
    });
    Ok(Shared {
        control,
        arena,
        peers: peers.collect::<Result<_>>()?,
    })
}

/// As rank 0: collects the files of all ranks and hands them out. Returns the control memory and the arenas.
fn serve(context: &GroupContext, arena: OwnedFd, patience: &Patience) -> Result<(OwnedFd, Vec<OwnedFd>)> {
    let ranks = context.global_ranks.len();
    let control = memfd::create("firebrand-control", Control::size(ranks))?;
    if ranks == 1 {
        return Ok((control, vec![arena]));
    }
    let (listener, name) = listen()?;
    context.store.set(KEY, &name)?;
    let mut arenas: Vec<Option<OwnedFd>> = (0..ranks).map(|_| None).collect();
    arenas[0] = Some(arena);
    let mut links = Vec::with_capacity(ranks - 1);
    while links.len() < ranks - 1 {
        let missing = || {
            let absent = (0..ranks).filter(|rank| arenas[*rank].is_none());
            absent.map(|rank| context.global_ranks[rank]).collect()
        };
        let Some(stream) = accept(&listener, patience, missing)? else {
            continue;
        };
        let Some((link, rank, file)) = welcome(stream, context, patience)? else {
            continue;
        };
        if arenas.get(rank).is_none_or(Option::is_some) {
            return Err(link.nonsense(format!(
                "it says that it is rank {rank} of {ranks} in the group, which cannot be or has come before; give each process its own rank"
            )));
        }
        arenas[rank] = Some(file);
        links.push(link);
    }
    // The name is of no use to anyone any more. If it stays, nobody is harmed.
    let _ = context.store.delete(KEY);
    let arenas: Vec<OwnedFd> = arenas.into_iter().flatten().collect();
    for link in &links {
        for (number, file) in std::iter::once(&control).chain(&arenas).enumerate() {
            link.send(number as u32, file.as_fd(), patience)?;
        }
    }
    Ok((control, arenas))
}

/// As another rank: hands its arena to rank 0 and receives the files of all.
fn join(context: &GroupContext, arena: &OwnedFd, patience: &Patience) -> Result<(OwnedFd, Vec<OwnedFd>)> {
    let server = context.global_ranks[0];
    let name = loop {
        match context.store.get(KEY, patience.period()) {
            Ok(name) => break name,
            Err(Error::Missing { .. }) => patience.check(|| vec![server])?,
            Err(error) => return Err(error),
        }
    };
    let refused = |error: std::io::Error| Error::Connect {
        what: format!("rank {server} cannot be reached to share memory with it"),
        reason: format!(
            "{error}; ranks that count as one node must run in the same network namespace, such as one container: say which ranks \
             are on which node, or set FIREBRAND_COLLECTIVE=tcp"
        ),
    };
    let address = SocketAddr::from_abstract_name(&name).map_err(refused)?;
    let stream = UnixStream::connect_addr(&address).map_err(refused)?;
    let mut link = Link::new(stream, format!("rank {server}"), vec![server])?;
    if !link.is_same_user()? {
        return Err(Error::Connect {
            what: format!("rank {server} is a process of another user"),
            reason: "run all ranks of a node as the same user, or set FIREBRAND_COLLECTIVE=tcp".to_owned(),
        });
    }
    link.authenticate(&context.secret, Side::Client, patience)?;
    link.send(context.rank as u32, arena.as_fd(), patience)?;
    let mut receive = |expected: usize| {
        let (number, file) = link.receive(patience)?;
        if number as usize != expected {
            return Err(link.nonsense(format!("it handed over file {number} where {expected} is due")));
        }
        Ok(file)
    };
    let control = receive(0)?;
    let arenas = (1..=context.global_ranks.len()).map(&mut receive);
    Ok((control, arenas.collect::<Result<_>>()?))
}

/// Listens under a name that nobody can guess.
fn listen() -> Result<(UnixListener, Vec<u8>)> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Error::system("there are no random numbers for the name of a socket", error))?;
    let name = format!("firebrand-{:032x}", u128::from_le_bytes(random)).into_bytes();
    let bound = SocketAddr::from_abstract_name(&name)
        .and_then(|address| UnixListener::bind_addr(&address))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    let listener = bound.map_err(|error| Error::system("a Unix socket for the ranks of this node", error))?;
    Ok((listener, name))
}

/// The next one to connect; none if it is gone again.
fn accept(
    listener: &UnixListener,
    patience: &Patience,
    missing: impl Fn() -> Vec<usize>,
) -> Result<Option<UnixStream>> {
    loop {
        patience.check(&missing)?;
        let period = Timespec {
            tv_sec: 0,
            tv_nsec: patience.period().min(Health::PERIOD).as_nanos() as _,
        };
        // Interrupted or not: what counts is whether somebody is there.
        let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&period));
        match listener.accept() {
            Ok((stream, _)) => return Ok(Some(stream)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::Interrupted | std::io::ErrorKind::ConnectionAborted
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(Error::system("a connection from a rank of this node", error)),
        }
    }
}

/// Lets one who connected prove itself and tell its rank. None if it is no rank; an error if it is one without the secret.
fn welcome(
    stream: UnixStream,
    context: &GroupContext,
    patience: &Patience,
) -> Result<Option<(Link, usize, OwnedFd)>> {
    let mut link = Link::new(stream, "a rank of this node".to_owned(), Vec::new())?;
    if !link.is_same_user()? {
        return Ok(None);
    }
    let brief = Patience::new(
        Arc::clone(&context.health),
        "a handshake",
        context.timeout.min(HANDSHAKE),
    );
    let met = link
        .authenticate(&context.secret, Side::Server, &brief)
        .and_then(|()| link.receive(&brief));
    match met {
        Ok((rank, file)) => {
            let rank = rank as usize;
            if let Some(global_rank) = context.global_ranks.get(rank) {
                link.name(*global_rank);
            }
            Ok(Some((link, rank, file)))
        }
        Err(error @ Error::Secret { .. }) => Err(error),
        // One that does not speak the protocol, or left in the middle: it is not waited for, ranks are.
        Err(_) => patience.check(Vec::new).map(|()| None),
    }
}
