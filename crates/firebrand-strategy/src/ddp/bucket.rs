use firebrand_collective::{Buffer, DType, ProcessGroup, ReduceOp, Result, Work};
use firebrand_core::AnyTensor;
use half::{bf16, f16};

use super::layout::BucketPlan;
use crate::host::{add_into, collective_dtype, from_buffer, into_buffer, with_elements, with_values};
use crate::{Gradient, GradientSpecs};

/// Gradients that are reduced together.
///
/// The micro-batches of an update add up in it. Its memory is the group's own, or that of the first gradient if it is reduced
/// in place.
pub(super) struct Bucket {
    pub plan: BucketPlan,
    dtype: DType,
    /// The type on the wire, if that is a smaller one, and memory for it.
    wire: Option<(DType, Option<Buffer>)>,
    /// The sums of this rank, or after the reduction those of all; `None` while they are under way, and in place before the
    /// first gradient.
    sums: Option<Buffer>,
    work: Option<Work>,
    /// Which members hold something.
    filled: Vec<bool>,
    /// How many gradients the last backward pass has yet to deliver.
    pub pending: usize,
}

impl Bucket {
    pub(super) fn new(
        group: &dyn ProcessGroup,
        plan: BucketPlan,
        dtype: DType,
        wire: Option<DType>,
    ) -> Result<Self> {
        let wire = match wire {
            Some(wire) => Some((wire, Some(group.allocate(wire, plan.len)?))),
            None => None,
        };
        // What goes over the wire lies in the group's memory, what does not need not.
        let sums = match (plan.in_place, &wire) {
            (true, _) => None,
            (false, Some(_)) => Some(Buffer::zeros(dtype, plan.len)),
            (false, None) => Some(group.allocate(dtype, plan.len)?),
        };
        Ok(Self {
            filled: vec![false; plan.members.len()],
            plan,
            dtype,
            wire,
            sums,
            work: None,
            pending: 0,
        })
    }

    /// Adds a gradient to what the micro-batches before gave. `false` if the bucket is under way or the gradient does not fit.
    pub(super) fn add(&mut self, number: usize, gradient: AnyTensor) -> bool {
        let (Some(member), Some(filled)) = (self.plan.members.get(number), self.filled.get_mut(number))
        else {
            return false;
        };
        if self.work.is_some() || collective_dtype(gradient.dtype()) != Some(self.dtype) {
            return false;
        }
        let is_first = !std::mem::replace(filled, true);
        if is_first && self.plan.in_place {
            self.sums = into_buffer(gradient).filter(|sums| sums.len() == member.len);
            return self.sums.is_some();
        }
        let range = member.bytes(self.dtype.size());
        let Some(place) = self
            .sums
            .as_mut()
            .and_then(|sums| sums.bytes_mut().get_mut(range))
        else {
            return false;
        };
        with_elements(&gradient, |_, elements| {
            if place.len() != elements.len() {
                return false;
            }
            if is_first {
                place.copy_from_slice(elements);
                return true;
            }
            add_into(place, elements, self.dtype)
        })
    }

    /// Whether a member holds something.
    pub(super) fn is_filled(&self, number: usize) -> bool {
        self.filled.get(number).copied().unwrap_or_default()
    }

    /// Whether its reduction has begun.
    pub(super) fn is_launched(&self) -> bool {
        self.work.is_some()
    }

    /// Starts the sum over all ranks. What this rank has no gradient for counts as zero.
    pub(super) fn launch(&mut self, group: &dyn ProcessGroup) {
        let mut sums = match self.sums.take() {
            Some(sums) => sums,
            // No gradient came whose memory it could be.
            None if self.plan.in_place => Buffer::zeros(self.dtype, self.plan.len),
            None => return,
        };
        for (member, filled) in self.plan.members.iter().zip(&self.filled) {
            if !filled {
                let range = member.bytes(self.dtype.size());
                sums.bytes_mut()[range].fill(0);
            }
        }
        let buffer = match &mut self.wire {
            None => sums,
            Some((wire, memory)) => {
                let mut packed = memory
                    .take()
                    .unwrap_or_else(|| Buffer::zeros(*wire, self.plan.len));
                pack(&sums, &mut packed);
                self.sums = Some(sums);
                packed
            }
        };
        self.work = Some(group.all_reduce(buffer, ReduceOp::Sum));
    }

    /// Waits for the sum over all ranks.
    pub(super) fn wait(&mut self) -> Result<()> {
        let Some(work) = self.work.take() else {
            return Ok(());
        };
        let reduced = work.wait()?;
        match (&mut self.wire, &mut self.sums) {
            (Some((_, memory)), Some(sums)) => {
                unpack(&reduced, sums);
                *memory = Some(reduced);
            }
            _ => self.sums = Some(reduced),
        }
        Ok(())
    }

    /// The sums of its gradients as tensors on a device, by their positions; those of which `wanted` holds.
    pub(super) fn take_sums(
        &mut self,
        specs: &GradientSpecs,
        wanted: impl Fn(usize) -> bool,
    ) -> Vec<Gradient> {
        let (dtype, device) = (specs.dtype.into(), &specs.device);
        let members = self.plan.members.iter().filter(|member| wanted(member.gradient));
        let known = members.filter_map(|member| Some((*member, specs.parameters.get(member.gradient)?)));
        let mut owned = if self.plan.in_place {
            self.sums.take()
        } else {
            None
        };
        let (sums, size) = (&self.sums, self.dtype.size());
        known
            .filter_map(|(member, spec)| {
                let value = match owned.take() {
                    Some(sums) => from_buffer(sums, &spec.shape, dtype, device),
                    None => {
                        let bytes = sums.as_ref()?.bytes().get(member.bytes(size))?;
                        with_values(&spec.shape, dtype, bytes, device)
                    }
                };
                Some(Gradient {
                    parameter: spec.parameter,
                    value: value?,
                })
            })
            .collect()
    }

    /// Forgets what it holds.
    pub(super) fn clear(&mut self) {
        self.filled.fill(false);
        self.pending = 0;
        if self.plan.in_place {
            self.sums = None;
        }
    }
}

/// Rounds sums to the smaller type of the wire.
fn pack(sums: &Buffer, packed: &mut Buffer) {
    let Ok(sums) = sums.as_slice::<f32>() else { return };
    if let Ok(packed) = packed.as_mut_slice::<bf16>() {
        packed
            .iter_mut()
            .zip(sums)
            .for_each(|(to, from)| *to = bf16::from_f32(*from));
    } else if let Ok(packed) = packed.as_mut_slice::<f16>() {
        packed
            .iter_mut()
            .zip(sums)
            .for_each(|(to, from)| *to = f16::from_f32(*from));
    }
}

/// Widens what came over the wire.
fn unpack(packed: &Buffer, sums: &mut Buffer) {
    let Ok(sums) = sums.as_mut_slice::<f32>() else {
        return;
    };
    if let Ok(packed) = packed.as_slice::<bf16>() {
        sums.iter_mut()
            .zip(packed)
            .for_each(|(to, from)| *to = from.to_f32());
    } else if let Ok(packed) = packed.as_slice::<f16>() {
        sums.iter_mut()
            .zip(packed)
            .for_each(|(to, from)| *to = from.to_f32());
    }
}
