//! Adam and AdamW in one pass over host memory, as PyTorch's `AdamW(fused=True)`: the bits and the state of Burn's own update,
//! which takes about ten passes, most of them into new memory.

mod kernel;
#[cfg(test)]
mod tests;

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::optim::{AdamState, AdamWState, AdaptiveMomentumState, DynState};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{DType, Tensor, TensorData};
use firebrand_core::{AdamRule, AdamWeightDecay};

use kernel::{Pass, Scalars};

type HostTensor = FloatTensor<Flex>;

/// An update whose tensors are all float32 on the CPU backend, of one shape, and each in one piece.
pub(super) struct FusedAdam {
    rule: AdamRule,
    weight: HostTensor,
    gradient: HostTensor,
    moments: Option<Moments>,
    pack: fn(&AdamRule, Moments) -> DynState,
}

/// What Burn's state holds.
struct Moments {
    time: usize,
    first: HostTensor,
    second: HostTensor,
}

impl FusedAdam {
    /// The update, or `None` if only Burn can do it. The state must be of the rule's optimizer.
    pub(super) fn new(
        rule: &AdamRule,
        rank: usize,
        weight: &BridgeTensor,
        gradient: &BridgeTensor,
        state: Option<&DynState>,
    ) -> Option<Self> {
        let (unpack, pack) = of_rank(rank)?;
        let (weight, gradient) = (from_bridge(weight)?, from_bridge(gradient)?);
        let moments = match state {
            Some(state) => Some(unpack(rule, state)?),
            None => None,
        };
        let covered = weight.dtype() == DType::F32
            && weight.layout().num_elements() > 0
            && alike(&weight, &weight)
            && alike(&weight, &gradient)
            && (moments.iter()).all(|kept| alike(&weight, &kept.first) && alike(&weight, &kept.second));
        covered.then_some(Self {
            rule: *rule,
            weight,
            gradient,
            moments,
            pack,
        })
    }

    /// The updated weight and state. They are written in place where this holds the only handle to the memory.
    pub(super) fn step(self, rate: f64) -> (BridgeTensor, DynState) {
        let is_first = self.moments.is_none();
        let mut weight = writable(self.weight);
        let mut moments = match self.moments {
            Some(Moments { time, first, second }) => Moments {
                time: time + 1,
                first: writable(first),
                second: writable(second),
            },
            None => Moments {
                time: 1,
                first: zeros(&weight),
                second: zeros(&weight),
            },
        };
        let length = weight.layout().num_elements();
        let start = self.gradient.layout().start_offset();
        Pass {
            weight: &mut weight.storage_mut()[..length],
            first: &mut moments.first.storage_mut()[..length],
            second: &mut moments.second.storage_mut()[..length],
            gradient: &self.gradient.storage()[start..start + length],
            scalars: &Scalars::new(&self.rule, is_first, moments.time, rate),
        }
        .run();
        let weight = Tensor::<1>::from_primitive::<Flex>(weight).into_bridge();
        (weight, (self.pack)(&self.rule, moments))
    }
}

/// A handle to a float tensor of the CPU backend.
fn from_bridge(tensor: &BridgeTensor) -> Option<HostTensor> {
    // The rank in the type is a placeholder: the bridge tensor carries the real one.
    let float = tensor
        .is_float()
        .then(|| Tensor::<1>::from_bridge(tensor.clone()))?;
    float.try_into_primitive::<Flex>().ok()
}

/// Whether another tensor lies in one piece and has the shape and dtype of the weight.
fn alike(weight: &HostTensor, other: &HostTensor) -> bool {
    other.dtype() == weight.dtype()
        && other.layout().shape() == weight.layout().shape()
        && other.is_contiguous()
}

/// The tensor itself if nothing else refers to its memory, otherwise a copy; its elements begin at the start of the memory.
fn writable(tensor: HostTensor) -> HostTensor {
    let start = tensor.layout().start_offset();
    if start == 0 && tensor.is_unique() {
        return tensor;
    }
    let shape = tensor.layout().shape().clone();
    let elements = &tensor.storage::<f32>()[start..start + shape.num_elements()];
    HostTensor::from_data(TensorData::new(elements.to_vec(), shape))
}

fn zeros(like: &HostTensor) -> HostTensor {
    let shape = like.layout().shape().clone();
    HostTensor::from_data(TensorData::new(vec![0f32; shape.num_elements()], shape))
}

type Unpack = fn(&AdamRule, &DynState) -> Option<Moments>;
type Pack = fn(&AdamRule, Moments) -> DynState;

/// How to get at a state of this rank, which is part of its type.
fn of_rank(rank: usize) -> Option<(Unpack, Pack)> {
    let ranks: [(Unpack, Pack); 8] = [
        (unpack::<1>, pack::<1>),
        (unpack::<2>, pack::<2>),
        (unpack::<3>, pack::<3>),
        (unpack::<4>, pack::<4>),
        (unpack::<5>, pack::<5>),
        (unpack::<6>, pack::<6>),
        (unpack::<7>, pack::<7>),
        (unpack::<8>, pack::<8>),
    ];
    ranks.get(rank.checked_sub(1)?).copied()
}

fn unpack<const D: usize>(rule: &AdamRule, state: &DynState) -> Option<Moments> {
    let momentum = match rule.weight_decay {
        AdamWeightDecay::Coupled(_) => &state.downcast_ref::<AdamState<D>>().momentum,
        AdamWeightDecay::Decoupled(_) => &state.downcast_ref::<AdamWState<D>>().momentum,
    };
    // A maximum from a checkpoint of AMSGrad stays in the state unused, and Burn knows how.
    if momentum.max_moment_2.is_some() {
        return None;
    }
    let host = |moment: &Tensor<D>| moment.clone().try_into_primitive::<Flex>().ok();
    Some(Moments {
        time: momentum.time,
        first: host(&momentum.moment_1)?,
        second: host(&momentum.moment_2)?,
    })
}

fn pack<const D: usize>(rule: &AdamRule, moments: Moments) -> DynState {
    let momentum = AdaptiveMomentumState::new(
        moments.time,
        Tensor::<D>::from_primitive::<Flex>(moments.first),
        Tensor::<D>::from_primitive::<Flex>(moments.second),
    );
    match rule.weight_decay {
        AdamWeightDecay::Coupled(_) => DynState::create(AdamState::new(momentum), D),
        AdamWeightDecay::Decoupled(_) => DynState::create(AdamWState::new(momentum), D),
    }
}
