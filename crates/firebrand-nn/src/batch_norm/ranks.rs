use std::sync::Arc;

use burn::tensor::Tensor;
use firebrand_collective::{Buffer, Error, ProcessGroup, ReduceOp, Result};
use firebrand_core::StepContext;

use super::statistics::{Moments, Statistics, to_device_of, to_host};

/// The ranks whose batches are normalised together.
pub(super) struct Ranks(Arc<dyn ProcessGroup>);

impl Ranks {
    /// Those of a step; `None` if there is one rank.
    pub(super) fn of(step: &StepContext) -> Result<Option<Self>> {
        let Some(group) = step.group().filter(|group| group.size() > 1) else {
            return Ok(None);
        };
        Ok(Some(Self(group.layer_group()?)))
    }

    /// The statistics of all ranks together: one exchange of counts, means and squares, merged in the order of the ranks, so that
    /// all have the same bit for bit.
    pub(super) fn unite(self, own: &Statistics) -> Result<(Statistics, Exchange)> {
        let moments = Moments::read(own);
        let channels = moments.mean.len();
        let mut message = Vec::with_capacity(1 + 2 * channels);
        message.push(moments.count);
        message.extend(moments.mean);
        message.extend(moments.squares);
        let gathered = self.0.all_gather(Buffer::from_slice(&message)).wait()?;
        let mut ranks = gathered
            .as_slice::<f64>()?
            .chunks_exact(message.len())
            .map(|message| {
                let (mean, squares) = message[1..].split_at(channels);
                Moments {
                    count: message[0],
                    mean: mean.to_vec(),
                    squares: squares.to_vec(),
                }
            });
        let mut all = ranks
            .next()
            .ok_or_else(|| Error::argument("a group without ranks has no statistics"))?;
        ranks.for_each(|rank| all.merge(&rank));
        let exchange = Exchange {
            group: self.0,
            mark: mark(gathered.bytes()),
        };
        Ok((all.write_like(own), exchange))
    }
}

/// What one use of a layer needs in its backward pass to add up gradients over the ranks.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    group: Arc<dyn ProcessGroup>,
    /// By which the ranks see whether they are in the backward pass of the same use.
    mark: u32,
}

impl Exchange {
    /// The sums over all ranks, if that could be done.
    ///
    /// A backward pass returns no errors, so that the group's health keeps it.
    pub(super) fn sum(&self, own: &Tensor<1>) -> Option<Tensor<1>> {
        match self.try_sum(own) {
            Ok(sums) => Some(sums),
            Err(error) => {
                self.group.health().fail(error);
                None
            }
        }
    }

    fn try_sum(&self, own: &Tensor<1>) -> Result<Tensor<1>> {
        let mark = f64::from(self.mark);
        let mut message = to_host(own.clone());
        message.extend([mark, mark * mark]);
        let sums = self
            .group
            .all_reduce(Buffer::from_slice(&message), ReduceOp::Sum)
            .wait()?;
        let mut sums = sums.as_slice::<f64>()?.to_vec();
        // n · Σ m² = (Σ m)² if and only if all marks are the same; whole numbers below 2⁵³, so that nothing is rounded.
        let ranks = self.group.size() as f64;
        let marks = sums.split_off(sums.len() - 2);
        if marks != [ranks * mark, ranks * mark * mark] {
            return Err(Error::Mismatch(format!(
                "rank {} went back through a batch norm with {} channels while another rank went back through a different one; all \
                 ranks must compute their loss in the same way",
                self.group
                    .global_ranks()
                    .get(self.group.rank())
                    .copied()
                    .unwrap_or_default(),
                sums.len() / 2,
            )));
        }
        Ok(to_device_of(sums, own))
    }
}

/// A number of 20 bits made of what the ranks have exchanged (FNV-1a).
fn mark(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ((hash ^ (hash >> 20) ^ (hash >> 40)) & 0xf_ffff) as u32
}
