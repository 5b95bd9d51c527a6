use burn::optim::momentum::MomentumState;
use burn::optim::{
    AdaGrad, AdaGradState, Adafactor, AdafactorState, Adam, AdamState, AdamW, AdamWState, Adan, AdanState,
    AdaptiveMomentumState, AdaptiveNesterovMomentumState, CenteredState, DynOptimizer, DynState, Lamb,
    LambState, Lion, LionState, LrDecayState, Muon, MuonState, Optimizer, RmsProp, RmsPropMomentumState,
    RmsPropState, Sgd, SgdState, SquareAvgState, StateSink, StateSource, join_path,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, Tensor};

use crate::params::with_rank;

/// One of Burn's optimizers, whose states come back from a checkpoint in the dtype in which they were saved.
///
/// Burn restores every state tensor in the default dtype of the device: the state of a float64 weight is rounded to float32,
/// and the next step fails because the dtypes differ.
pub(crate) struct ExactOptimizer<O>(pub(crate) O);

impl<O: RestoreState> DynOptimizer for ExactOptimizer<O> {
    fn step_dyn(
        &self,
        rank: usize,
        rate: f64,
        tensor: BridgeTensor,
        gradient: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        self.0.step_dyn(rank, rate, tensor, gradient, state)
    }

    fn to_device_dyn(&self, state: DynState, device: &Device) -> DynState {
        self.0.to_device_dyn(state, device)
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        self.0.state_flatten(prefix, state, out);
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<DynState> {
        let mut saved = Saved { source, device };
        with_rank!(
            rank,
            D => O::restore::<D>(&mut saved, prefix).map(|state| DynState::create(state, D)),
            else None
        )
    }
}

/// The leaves of a saved state.
pub(crate) struct Saved<'a> {
    source: &'a mut StateSource,
    device: &'a Device,
}

impl Saved<'_> {
    fn tensor<const D: usize>(&mut self, prefix: &str, leaf: &str) -> Option<Tensor<D>> {
        let data = self.source.take_tensor(prefix, leaf)?;
        let dtype = data.dtype();
        (data.rank() == D).then(|| Tensor::from_data(data, (self.device, dtype)))
    }

    fn count(&mut self, prefix: &str, leaf: &str) -> Option<usize> {
        usize::try_from(self.source.take_scalar(prefix, leaf)?).ok()
    }

    /// A nested state that may be absent: `Some(None)` then, and `None` if it is there but damaged.
    fn optional<T>(
        &mut self,
        path: &str,
        read: impl FnOnce(&mut Self, &str) -> Option<T>,
    ) -> Option<Option<T>> {
        if self.source.has_under(path) {
            read(self, path).map(Some)
        } else {
            Some(None)
        }
    }
}

/// Reads a state under the names that Burn gives its leaves; what Burn's `RecordState` does, but for the dtype.
pub(crate) trait RestoreState: Optimizer {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<Self::State<D>>;
}

fn velocity<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<MomentumState<D>> {
    Some(MomentumState::new(saved.tensor(prefix, "velocity")?))
}

fn adaptive_momentum<const D: usize>(
    saved: &mut Saved<'_>,
    prefix: &str,
) -> Option<AdaptiveMomentumState<D>> {
    Some(AdaptiveMomentumState {
        time: saved.count(prefix, "time")?,
        moment_1: saved.tensor(prefix, "moment_1")?,
        moment_2: saved.tensor(prefix, "moment_2")?,
        max_moment_2: saved.tensor(prefix, "max_moment_2"),
    })
}

impl RestoreState for Sgd {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<SgdState<D>> {
        let momentum = saved.optional(&join_path(prefix, "momentum"), velocity)?;
        Some(SgdState { momentum })
    }
}

impl RestoreState for Muon {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<MuonState<D>> {
        let momentum = velocity(saved, &join_path(prefix, "momentum"))?;
        Some(MuonState { momentum })
    }
}

impl RestoreState for Adam {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<AdamState<D>> {
        let momentum = adaptive_momentum(saved, &join_path(prefix, "momentum"))?;
        Some(AdamState { momentum })
    }
}

impl RestoreState for AdamW {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<AdamWState<D>> {
        let momentum = adaptive_momentum(saved, &join_path(prefix, "momentum"))?;
        Some(AdamWState { momentum })
    }
}

impl RestoreState for Adan {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<AdanState<D>> {
        let path = join_path(prefix, "momentum");
        Some(AdanState {
            momentum: AdaptiveNesterovMomentumState {
                time: saved.count(&path, "time")?,
                exp_avg: saved.tensor(&path, "exp_avg")?,
                exp_avg_sq: saved.tensor(&path, "exp_avg_sq")?,
                exp_avg_diff: saved.tensor(&path, "exp_avg_diff")?,
                neg_pre_grad: saved.tensor(&path, "neg_pre_grad")?,
            },
        })
    }
}

impl RestoreState for Lamb {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<LambState<D>> {
        Some(LambState {
            time: saved.count(prefix, "time")?,
            moment_1: saved.tensor(prefix, "moment_1")?,
            moment_2: saved.tensor(prefix, "moment_2")?,
        })
    }
}

impl RestoreState for Lion {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<LionState<D>> {
        let momentum = saved.tensor(prefix, "momentum")?;
        Some(LionState { momentum })
    }
}

impl RestoreState for Adafactor {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<AdafactorState<D>> {
        Some(AdafactorState {
            time: saved.count(prefix, "time")?,
            second_moment: saved.tensor(prefix, "second_moment")?,
            column_second_moment: saved.tensor(prefix, "column_second_moment"),
        })
    }
}

impl RestoreState for AdaGrad {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<AdaGradState<D>> {
        let path = join_path(prefix, "lr_decay");
        let time = saved.count(&path, "time")?;
        Some(AdaGradState::new(LrDecayState::new(
            time,
            saved.tensor(&path, "sum")?,
        )))
    }
}

impl RestoreState for RmsProp {
    fn restore<const D: usize>(saved: &mut Saved<'_>, prefix: &str) -> Option<RmsPropState<D>> {
        let square_avg = saved.tensor(&join_path(prefix, "square_avg"), "square_avg")?;
        let centered = join_path(prefix, "centered");
        let momentum = saved.optional(&join_path(prefix, "momentum"), |saved, path| {
            Some(RmsPropMomentumState::new(saved.tensor(path, "buf")?))
        })?;
        Some(RmsPropState {
            square_avg: SquareAvgState { square_avg },
            centered: CenteredState {
                grad_avg: saved.tensor(&centered, "grad_avg"),
                avg: saved.tensor(&centered, "avg")?,
            },
            momentum,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::optim::decay::WeightDecayConfig;
    use burn::optim::momentum::MomentumConfig;
    use burn::optim::{
        AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LionConfig,
        MuonConfig, RmsPropConfig, SgdConfig,
    };
    use burn::tensor::{DType, TensorData};

    use super::*;
    use crate::IntoOptimizer;

    fn matrix(values: [f64; 6], dtype: DType) -> Tensor<2> {
        Tensor::from_data(TensorData::new(values.to_vec(), [2, 3]), (&Device::flex(), dtype))
    }

    fn optimizers() -> Vec<(&'static str, Arc<dyn DynOptimizer>)> {
        let momentum = || MomentumConfig::new().with_momentum(0.9);
        let rmsprop = RmsPropConfig::new().with_momentum(0.9).with_centered(true);
        vec![
            ("SGD", SgdConfig::new().into_optimizer()),
            (
                "SGD with momentum",
                SgdConfig::new()
                    .with_momentum(Some(momentum()))
                    .with_weight_decay(Some(WeightDecayConfig::new(0.1)))
                    .into_optimizer(),
            ),
            ("Adam", AdamConfig::new().into_optimizer()),
            ("AdamW", AdamWConfig::new().into_optimizer()),
            (
                "AdamW amsgrad",
                AdamWConfig::new().with_amsgrad(true).into_optimizer(),
            ),
            ("Adan", AdanConfig::new().into_optimizer()),
            ("Lamb", LambConfig::new().into_optimizer()),
            ("Lion", LionConfig::new().into_optimizer()),
            ("Muon", MuonConfig::new().into_optimizer()),
            ("Adafactor", AdafactorConfig::new().into_optimizer()),
            ("AdaGrad", AdaGradConfig::new().into_optimizer()),
            ("RMSprop", RmsPropConfig::new().into_optimizer()),
            ("RMSprop centered", rmsprop.into_optimizer()),
        ]
    }

    #[test]
    fn a_restored_state_goes_on_bit_by_bit_in_every_dtype() {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            for (name, optimizer) in optimizers() {
                let run = |mut weight: Tensor<2>, mut state, steps: [f64; 3]| {
                    for number in steps {
                        let gradient =
                            [0.3, -0.2, 0.1, 0.7, -0.5, 0.9].map(|value| (value * 3.0 * number).sin());
                        let gradient = matrix(gradient, dtype);
                        let (next, kept) =
                            optimizer.step_dyn(2, 0.01, weight.into_bridge(), gradient.into_bridge(), state);
                        (weight, state) = (Tensor::from_bridge(next), kept);
                    }
                    (weight, state)
                };
                let (weight, state) = run(
                    matrix([1.0, -1.0, 0.5, 0.25, -0.75, 2.0], dtype),
                    None,
                    [1.0, 2.0, 3.0],
                );
                let flatten = |state: &Option<DynState>| {
                    let mut sink = StateSink::default();
                    optimizer.state_flatten("net.w", state.as_ref().unwrap(), &mut sink);
                    sink
                };
                let sink = flatten(&state);
                let mut source = StateSource::new(sink.scalars.into_iter().collect());
                for (leaf, data) in sink.tensors {
                    source.insert_tensor(leaf, data);
                }
                let restored = optimizer.state_unflatten(2, "net.w", &mut source, &Device::flex());
                assert!(restored.is_some(), "{name} {dtype:?}");
                let outcome = |state| {
                    let (weight, state) = run(weight.clone(), state, [4.0, 5.0, 6.0]);
                    (weight.into_data(), flatten(&state).tensors)
                };
                let expected = outcome(state);
                assert_eq!(outcome(restored), expected, "{name} {dtype:?}");
                let stateless = name == "SGD";
                assert_eq!(
                    outcome(None) == expected,
                    stateless,
                    "{name} {dtype:?} without its state"
                );
            }
        }
    }

    #[test]
    fn an_incomplete_state_is_none() {
        for (name, optimizer) in optimizers().into_iter().filter(|(name, _)| *name != "SGD") {
            let (weight, gradient) = (matrix([1.0; 6], DType::F32), matrix([0.5; 6], DType::F32));
            let (_, state) = optimizer.step_dyn(2, 0.01, weight.into_bridge(), gradient.into_bridge(), None);
            let mut sink = StateSink::default();
            optimizer.state_flatten("w", &state.unwrap(), &mut sink);
            let mut source = StateSource::new(sink.scalars.into_iter().collect());
            // Tensors of another rank, as from another layer.
            for (leaf, _) in sink.tensors {
                source.insert_tensor(leaf, TensorData::new(vec![1.0f32; 6], [6]));
            }
            assert!(
                optimizer
                    .state_unflatten(2, "w", &mut source, &Device::flex())
                    .is_none(),
                "{name}"
            );
        }
    }
}
