use std::sync::Arc;

use half::{bf16, f16};

use crate::shm::{Arena, ShmTransport};
use crate::store::PrefixStore;
use crate::tcp::TcpTransport;
use crate::transport::{Call, Operation, Patience, Transport};
use crate::{Buffer, DType, Element, Error, GroupContext, ReduceOp, Result, scale};

/// Shared memory within each node, and TCP between one rank of each node, the first.
///
/// A node's ranks reduce among themselves, the first ranks of the nodes reduce what came of it, and each gives it to its node: the
/// network carries each element once per node, however many ranks that has.
pub(crate) struct Hierarchical {
    local: ShmTransport,
    /// Between the first ranks of the nodes; `None` on the others.
    leaders: Option<TcpTransport>,
    /// The node of each rank, and its number there.
    places: Vec<(usize, usize)>,
    rank: usize,
}

impl Hierarchical {
    /// Connects the ranks of each node, and the first ranks of the nodes.
    pub fn connect(context: &GroupContext, nodes: &[usize]) -> Result<(Self, Arc<Arena>)> {
        let places = places(nodes);
        let (node, local_rank) = places[context.rank];
        let member = |name: String, rank: usize, ranks: Vec<usize>| GroupContext {
            store: Arc::new(PrefixStore::new(Arc::clone(&context.store), name)),
            rank,
            global_ranks: ranks.iter().map(|rank| context.global_ranks[*rank]).collect(),
            ..context.clone()
        };
        let of = |wanted: &dyn Fn((usize, usize)) -> bool| -> Vec<usize> {
            (0..places.len()).filter(|rank| wanted(places[*rank])).collect()
        };
        let here = of(&|(other, _)| other == node);
        let (local, arena) = crate::shm::connect(&member(format!("node{node}"), local_rank, here))?;
        let leaders = if local_rank == 0 {
            let first = of(&|(_, local)| local == 0);
            Some(TcpTransport::connect(&member("leaders".to_owned(), node, first))?)
        } else {
            None
        };
        let transport = Self {
            local,
            leaders,
            rank: context.rank,
            places,
        };
        Ok((transport, arena))
    }

    fn num_ranks(&self) -> usize {
        self.places.len()
    }

    /// One operation among the ranks of this node.
    fn here(
        &mut self,
        call: &Call,
        operation: Operation,
        buffer: Buffer,
        patience: &Patience,
    ) -> Result<Buffer> {
        let call = part_of(call, operation, &buffer);
        self.local.run(&call, buffer, patience)
    }

    /// One operation among the first ranks of the nodes, if this is one.
    fn between(
        &mut self,
        call: &Call,
        operation: Operation,
        buffer: Buffer,
        patience: &Patience,
    ) -> Result<Buffer> {
        let call = part_of(call, operation, &buffer);
        match &mut self.leaders {
            Some(leaders) => leaders.run(&call, buffer, patience),
            None => Ok(buffer),
        }
    }

    fn all_reduce(
        &mut self,
        call: &Call,
        op: ReduceOp,
        buffer: Buffer,
        patience: &Patience,
    ) -> Result<Buffer> {
        // A 16-bit float would be rounded on every node and again between them.
        match buffer.dtype() {
            DType::F16 => self.all_reduce_wide(call, op, buffer, patience, f16::to_f32, f16::from_f32),
            DType::BF16 => self.all_reduce_wide(call, op, buffer, patience, bf16::to_f32, bf16::from_f32),
            _ => self.all_reduce_exact(call, op, buffer, patience),
        }
    }

    fn all_reduce_wide<E: Element>(
        &mut self,
        call: &Call,
        op: ReduceOp,
        mut buffer: Buffer,
        patience: &Patience,
        widen: fn(E) -> f32,
        narrow: fn(f32) -> E,
    ) -> Result<Buffer> {
        let wide: Vec<f32> = buffer
            .as_slice::<E>()?
            .iter()
            .map(|value| widen(*value))
            .collect();
        let wide = self.all_reduce_exact(call, op, Buffer::from_slice(&wide), patience)?;
        for (element, value) in buffer
            .as_mut_slice::<E>()?
            .iter_mut()
            .zip(wide.as_slice::<f32>()?)
        {
            *element = narrow(*value);
        }
        Ok(buffer)
    }

    fn all_reduce_exact(
        &mut self,
        call: &Call,
        op: ReduceOp,
        buffer: Buffer,
        patience: &Patience,
    ) -> Result<Buffer> {
        // The nodes may have different numbers of ranks: a mean is a sum that is divided once.
        let partial = match op {
            ReduceOp::Mean => ReduceOp::Sum,
            other => other,
        };
        let sum = Operation::AllReduce(partial);
        let buffer = self.here(call, sum, buffer, patience)?;
        let mut buffer = self.between(call, sum, buffer, patience)?;
        if op == ReduceOp::Mean && self.leaders.is_some() {
            let dtype = buffer.dtype();
            scale(buffer.bytes_mut(), dtype, self.num_ranks())?;
        }
        self.here(call, Operation::Broadcast { root: 0 }, buffer, patience)
    }

    fn broadcast(&mut self, call: &Call, root: usize, buffer: Buffer, patience: &Patience) -> Result<Buffer> {
        let (root_node, root_here) = self.places[root];
        let (node, _) = self.places[self.rank];
        let buffer = if node == root_node {
            self.here(call, Operation::Broadcast { root: root_here }, buffer, patience)?
        } else {
            buffer
        };
        let buffer = self.between(call, Operation::Broadcast { root: root_node }, buffer, patience)?;
        if node == root_node {
            return Ok(buffer);
        }
        self.here(call, Operation::Broadcast { root: 0 }, buffer, patience)
    }

    /// A sum of bytes of which all ranks but one have zeros: exact for every type.
    fn all_gather(&mut self, call: &Call, buffer: &Buffer, patience: &Patience) -> Result<Buffer> {
        let size = buffer.size();
        let mut all = Buffer::zeros(DType::U8, size * self.num_ranks());
        all.bytes_mut()[self.rank * size..][..size].copy_from_slice(buffer.bytes());
        let all = self.all_reduce_exact(call, ReduceOp::Sum, all, patience)?;
        copied(all.bytes(), buffer.dtype())
    }
}

impl Transport for Hierarchical {
    fn run(&mut self, call: &Call, buffer: Buffer, patience: &Patience) -> Result<Buffer> {
        match call.operation {
            Operation::AllReduce(op) => self.all_reduce(call, op, buffer, patience),
            Operation::ReduceScatter(op) => {
                let part = buffer.size() / self.num_ranks();
                let all = self.all_reduce(call, op, buffer, patience)?;
                copied(&all.bytes()[self.rank * part..][..part], call.dtype)
            }
            Operation::AllGather => self.all_gather(call, &buffer, patience),
            Operation::Broadcast { root } => self.broadcast(call, root, buffer, patience),
            Operation::Barrier => {
                let buffer = self.here(call, Operation::Barrier, buffer, patience)?;
                let buffer = self.between(call, Operation::Barrier, buffer, patience)?;
                self.here(call, Operation::Barrier, buffer, patience)
            }
        }
    }
}

/// An operation that is a part of a call of the whole group.
fn part_of(call: &Call, operation: Operation, buffer: &Buffer) -> Call {
    Call {
        operation,
        dtype: buffer.dtype(),
        len: buffer.len(),
        ..*call
    }
}

/// A new buffer with the bytes of elements of a type.
fn copied(bytes: &[u8], dtype: DType) -> Result<Buffer> {
    if !bytes.len().is_multiple_of(dtype.size()) {
        return Err(Error::argument(format!(
            "{} bytes are no whole {dtype}",
            bytes.len()
        )));
    }
    let mut buffer = Buffer::zeros(dtype, bytes.len() / dtype.size());
    buffer.bytes_mut().copy_from_slice(bytes);
    Ok(buffer)
}

/// The node of each rank and its number there.
fn places(nodes: &[usize]) -> Vec<(usize, usize)> {
    let before = |rank: usize| nodes[..rank].iter().filter(|node| **node == nodes[rank]).count();
    (0..nodes.len()).map(|rank| (nodes[rank], before(rank))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_places_on_their_nodes() {
        assert_eq!(places(&[0, 1, 0, 1, 1]), [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]);
    }
}
