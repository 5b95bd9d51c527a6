use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use rustix::event::PollFd;

use super::dial::{Cancel, Dial};
use super::reception::Reception;
use crate::control::{alarm, poll};
use crate::transport::Patience;
use crate::{GroupContext, Result};

/// What the connections of the transport are for.
pub(super) const PURPOSE: &str = "tcp";

/// The ranks at distances of powers of two, in both directions: of them are the ring, and trees from any rank.
pub(super) fn neighbours(rank: usize, size: usize) -> Vec<usize> {
    let mut neighbours: Vec<usize> = std::iter::successors(Some(1), |distance| Some(distance * 2))
        .take_while(|distance| *distance < size)
        .flat_map(|distance| [(rank + distance) % size, (rank + size - distance) % size])
        .collect();
    neighbours.sort_unstable();
    neighbours.dedup();
    neighbours
}

/// Connects a rank to its [`neighbours`]: by rank, with none for the others. The higher rank of two dials.
pub(super) fn connect(context: &GroupContext) -> Result<Vec<Option<TcpStream>>> {
    let (rank, size) = (context.rank, context.global_ranks.len());
    let mut streams: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
    if size == 1 {
        return Ok(streams);
    }
    let what = format!(
        "connecting rank {} to its group over TCP",
        context.global_ranks[rank]
    );
    let patience = Patience::new(Arc::clone(&context.health), what, context.timeout);
    let wanted = neighbours(rank, size);
    let (waker, alarm) = alarm()?;
    let mut reception = Reception::open(context, PURPOSE, waker.clone())?;
    let (sender, dialled) = channel();
    let cancel = Cancel::default();
    for peer in wanted.iter().copied().filter(|peer| *peer < rank) {
        let (sender, waker) = (sender.clone(), waker.clone());
        Dial::new(context, PURPOSE, peer, Arc::clone(&cancel.0)).start(move |outcome| {
            // Who does not wait any more has given up already.
            drop(sender.send((peer, outcome)));
            waker.wake();
        })?;
    }
    loop {
        let missing = || wanted.iter().copied().filter(|peer| streams[*peer].is_none());
        if missing().next().is_none() {
            return Ok(streams);
        }
        patience.check(|| missing().map(|peer| context.global_ranks[peer]).collect())?;
        let mut fds: Vec<PollFd<'_>> = vec![alarm.poll_fd()];
        reception.poll_fds(&mut fds);
        let soon = Instant::now() + patience.period();
        poll(
            &mut fds,
            Some(reception.next_look().map_or(soon, |look| look.min(soon))),
        );
        alarm.reset();
        for (peer, stream) in reception.admit() {
            // Of two from the same rank, the first is one that it gave up.
            if peer > rank && wanted.contains(&peer) {
                streams[peer] = Some(stream);
            }
        }
        while let Ok((peer, outcome)) = dialled.try_recv() {
            streams[peer] = Some(outcome?);
        }
    }
}
