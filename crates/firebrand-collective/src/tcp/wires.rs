use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::ending::{how_it_ended, is_passing, mismatch};
use super::flow::{Ends, Flow, Nothing};
use super::wire::Wire;
use crate::control::poll;
use crate::transport::{Call, Patience};
use crate::{Error, GroupContext, Health, Result};

/// How many turns without a wait go by before the next look at the health.
const TURNS: usize = 16;

/// The connections of a rank, and what their use is in common to all operations.
pub(super) struct Wires {
    /// By rank; none to this rank and to those that no algorithm needs.
    wires: Vec<Option<Wire>>,
    rank: usize,
    global_ranks: Vec<usize>,
    health: Arc<Health>,
    call: Option<Call>,
}

impl Wires {
    pub fn new(wires: Vec<Option<Wire>>, context: &GroupContext) -> Self {
        Self {
            wires,
            rank: context.rank,
            global_ranks: context.global_ranks.clone(),
            health: Arc::clone(&context.health),
            call: None,
        }
    }

    /// Begins an operation. Whatever it is, each rank exchanges its call with both neighbours in the ring: so a difference is
    /// found, at both ends, even between operations that use different wires.
    pub fn begin(&mut self, call: &Call) {
        self.call = Some(*call);
        for wire in self.wires.iter_mut().flatten() {
            wire.reset();
        }
        for neighbour in self.neighbours() {
            if let Some(wire) = &mut self.wires[neighbour] {
                wire.announce(call.encode());
                wire.expect();
            }
        }
    }

    /// Lets a flow go on until it is done.
    pub fn run(&mut self, ends: Ends, flow: &mut dyn Flow, patience: &Patience) -> Result<()> {
        if let Some(call) = self.call.map(|call| call.encode())
            && let Some(wire) = self.wire(ends.to)
        {
            wire.announce(call);
        }
        if let Some(wire) = self.wire(ends.from) {
            wire.expect();
        }
        self.pump(ends, flow, patience, |wires, flow| {
            let under_way = |end: Option<usize>, test: fn(&Wire) -> bool| {
                end.and_then(|end| wires[end].as_ref()).is_some_and(test)
            };
            flow.is_done()
                && !under_way(ends.to, Wire::is_announcing)
                && !under_way(ends.from, Wire::is_expecting)
        })
    }

    /// Ends an operation: the calls of both neighbours have been compared, and all was handed to the system, which delivers it
    /// even if this rank leaves.
    pub fn end(&mut self, patience: &Patience) -> Result<()> {
        let nowhere = Ends { to: None, from: None };
        self.pump(nowhere, &mut Nothing, patience, |wires, _| {
            wires
                .iter()
                .flatten()
                .all(|wire| !wire.is_announcing() && !wire.is_expecting())
        })
    }

    /// Ends everything. What this rank called still goes out, so that who called something else learns of it.
    pub fn close(&mut self) {
        for index in 0..self.wires.len() {
            if let Some(wire) = &mut self.wires[index] {
                while wire.is_announcing() && wire.write(&[]).is_ok() {}
            }
        }
        self.wires.clear();
    }

    fn wire(&mut self, end: Option<usize>) -> Option<&mut Wire> {
        end.and_then(|end| self.wires[end].as_mut())
    }

    fn pump(
        &mut self,
        ends: Ends,
        flow: &mut dyn Flow,
        patience: &Patience,
        is_over: impl Fn(&[Option<Wire>], &dyn Flow) -> bool,
    ) -> Result<()> {
        for turn in 1.. {
            let mut moved = false;
            for index in 0..self.wires.len() {
                moved |= self.write(index, ends, flow)?;
                moved |= self.read(index, ends, flow)?;
            }
            if is_over(&self.wires, flow) {
                break;
            }
            if !moved {
                self.wait(ends, flow, patience);
            }
            if !moved || turn % TURNS == 0 {
                patience.check(|| self.missing())?;
            }
        }
        Ok(())
    }

    fn write(&mut self, index: usize, ends: Ends, flow: &mut dyn Flow) -> Result<bool> {
        let Some(wire) = &mut self.wires[index] else {
            return Ok(false);
        };
        let data = if ends.to == Some(index) {
            flow.outgoing()
        } else {
            &[]
        };
        if data.is_empty() && !wire.is_announcing() {
            return Ok(false);
        }
        match wire.write(data) {
            Ok(bytes) => {
                flow.sent(bytes);
                Ok(true)
            }
            Err(error) if is_passing(&error) => Ok(false),
            Err(error) => Err(self.lost(index, &error)),
        }
    }

    fn read(&mut self, index: usize, ends: Ends, flow: &mut dyn Flow) -> Result<bool> {
        let Some(wire) = &mut self.wires[index] else {
            return Ok(false);
        };
        let data = if ends.from == Some(index) {
            flow.incoming()
        } else {
            &mut []
        };
        if data.is_empty() && !wire.is_expecting() {
            return Ok(false);
        }
        match wire.read(data) {
            Ok(received) => {
                if let Some(call) = received.call {
                    self.compare(index, &call)?;
                }
                flow.received(received.bytes)?;
                Ok(true)
            }
            Err(error) if is_passing(&error) => Ok(false),
            Err(error) => Err(self.lost(index, &error)),
        }
    }

    fn wait(&mut self, ends: Ends, flow: &mut dyn Flow, patience: &Patience) {
        let sends = !flow.outgoing().is_empty();
        let receives = !flow.incoming().is_empty();
        let mut fds = Vec::with_capacity(self.wires.len());
        for (index, wire) in self.wires.iter().enumerate() {
            let Some(wire) = wire else { continue };
            let mut events = PollFlags::empty();
            let writes = wire.is_announcing() || (sends && ends.to == Some(index));
            events.set(PollFlags::OUT, writes);
            let reads = wire.is_expecting() || (receives && ends.from == Some(index));
            events.set(PollFlags::IN, reads);
            if !events.is_empty() {
                fds.push(PollFd::new(wire.stream(), events));
            }
        }
        poll(&mut fds, Some(Instant::now() + patience.period()));
    }

    /// Who has not called the operation, among all ranks. Of those that are not neighbours it is not known.
    fn missing(&self) -> Vec<usize> {
        let mut missing = self.neighbours().to_vec();
        missing.retain(|rank| self.wires[*rank].as_ref().is_some_and(Wire::is_expecting));
        missing.dedup();
        missing.iter().map(|rank| self.global_ranks[*rank]).collect()
    }

    /// The ranks after and before this one in the ring.
    fn neighbours(&self) -> [usize; 2] {
        let size = self.global_ranks.len();
        [(self.rank + 1) % size, (self.rank + size - 1) % size]
    }

    /// Compares the call of another rank with this one's.
    fn compare(&self, index: usize, theirs: &[u8; Call::ENCODED]) -> Result<()> {
        let Some(own) = self.call.filter(|own| own.encode() != *theirs) else {
            return Ok(());
        };
        let peer = self.global_ranks[index];
        let Some(theirs) = Call::decode(theirs) else {
            return Err(Error::Protocol {
                peer: format!("rank {peer}"),
                reason: format!("what it sent during {own} is no call"),
            });
        };
        let mut calls = [(self.global_ranks[self.rank], own), (peer, theirs)];
        if index < self.rank {
            calls.reverse();
        }
        Err(mismatch(calls[0], calls[1]))
    }

    /// Why a connection ended. The other end may have called something else, or leave because of a failure elsewhere.
    fn lost(&mut self, index: usize, error: &io::Error) -> Error {
        let start = Instant::now();
        while start.elapsed() < Health::HEARSAY {
            if let Err(failure) = self.health.check() {
                return failure;
            }
            if let Some(error) = (0..self.wires.len()).find_map(|index| self.last_word(index)) {
                return error;
            }
            std::thread::sleep(Health::PERIOD / 2);
        }
        let during = self
            .call
            .map_or_else(|| "an operation".to_owned(), |call| call.to_string());
        let how = how_it_ended(error);
        Error::RankFailed {
            rank: self.global_ranks[index],
            cause: format!("the connection to it was {how} during {during}; its own output says why"),
        }
    }

    /// The difference that a rank's call makes, if it has come, be it just before the connection ended.
    fn last_word(&mut self, index: usize) -> Option<Error> {
        loop {
            let wire = self.wires[index].as_mut().filter(|wire| wire.is_expecting())?;
            if let Some(call) = wire.read(&mut []).ok()?.call {
                return self.compare(index, &call).err();
            }
        }
    }
}
