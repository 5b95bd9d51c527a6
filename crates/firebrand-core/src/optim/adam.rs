use std::any::Any;

use burn::optim::{AdamConfig, AdamWConfig};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

/// The update rule of Burn's Adam or AdamW, without its variants: what another implementation has to reproduce.
///
/// An [`IntoOptimizer`](crate::IntoOptimizer) gives one only if the state of its optimizer is Burn's `AdamState` or `AdamWState`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdamRule {
    /// How much of the first moment is kept.
    pub beta_1: f32,
    /// How much of the second moment is kept.
    pub beta_2: f32,
    /// What keeps the denominator from zero.
    pub epsilon: f32,
    /// Where weight decay enters.
    pub weight_decay: AdamWeightDecay,
}

/// Where weight decay enters, which is what tells Adam from AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AdamWeightDecay {
    /// Adam: this times the weight is added to the gradient, if there is any.
    Coupled(Option<f32>),
    /// AdamW: the weight shrinks by this times the learning rate.
    Decoupled(f32),
}

impl AdamRule {
    /// The rule of a configuration, or `None` if it is of another optimizer or asks for a variant.
    pub(crate) fn of(config: &dyn Any) -> Option<Self> {
        if let Some(config) = config.downcast_ref::<AdamConfig>() {
            let fields: AdamFields = read(config)?;
            return (!fields.amsgrad && fields.grad_clipping.is_none()).then_some(Self {
                beta_1: fields.beta_1,
                beta_2: fields.beta_2,
                epsilon: fields.epsilon,
                weight_decay: AdamWeightDecay::Coupled(fields.weight_decay.map(|decay| decay.penalty)),
            });
        }
        let fields: AdamWFields = read(config.downcast_ref::<AdamWConfig>()?)?;
        let plain = !fields.amsgrad && !fields.cautious_weight_decay && fields.grad_clipping.is_none();
        plain.then_some(Self {
            beta_1: fields.beta_1,
            beta_2: fields.beta_2,
            epsilon: fields.epsilon,
            weight_decay: AdamWeightDecay::Decoupled(fields.weight_decay),
        })
    }
}

/// The fields of a configuration, which Burn keeps private, by the names under which it saves them.
fn read<T: DeserializeOwned>(config: &impl Serialize) -> Option<T> {
    serde_json::from_value(serde_json::to_value(config).ok()?).ok()
}

// A field that is not known here is an option that is not honoured here, so that it must not be skipped.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdamFields {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    amsgrad: bool,
    weight_decay: Option<DecayFields>,
    grad_clipping: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdamWFields {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    weight_decay: f32,
    cautious_weight_decay: bool,
    amsgrad: bool,
    grad_clipping: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecayFields {
    penalty: f32,
}

#[cfg(test)]
mod tests {
    use burn::grad_clipping::GradientClippingConfig;
    use burn::optim::SgdConfig;
    use burn::optim::decay::WeightDecayConfig;

    use super::*;

    #[test]
    fn numbers_arrive_bit_by_bit() {
        let (beta_1, beta_2, epsilon, penalty) = (0.87_f32, 0.998_765_4_f32, 1.234e-7_f32, 0.012_345_67_f32);
        let adamw = AdamWConfig::new()
            .with_beta_1(beta_1)
            .with_beta_2(beta_2)
            .with_epsilon(epsilon)
            .with_weight_decay(penalty);
        let rule = |weight_decay| AdamRule {
            beta_1,
            beta_2,
            epsilon,
            weight_decay,
        };
        let decoupled = AdamWeightDecay::Decoupled(penalty);
        assert_eq!(AdamRule::of(&adamw), Some(rule(decoupled)));
        let adam = AdamConfig::new()
            .with_beta_1(beta_1)
            .with_beta_2(beta_2)
            .with_epsilon(epsilon);
        assert_eq!(AdamRule::of(&adam), Some(rule(AdamWeightDecay::Coupled(None))));
        let adam = adam.with_weight_decay(Some(WeightDecayConfig::new(penalty)));
        assert_eq!(
            AdamRule::of(&adam),
            Some(rule(AdamWeightDecay::Coupled(Some(penalty))))
        );
    }

    #[test]
    fn variants_and_other_optimizers_have_none() {
        let clipping = || Some(GradientClippingConfig::Value(1.0));
        let configs: [&dyn Any; 7] = [
            &AdamConfig::new().with_amsgrad(true),
            &AdamConfig::new().with_grad_clipping(clipping()),
            &AdamWConfig::new().with_amsgrad(true),
            &AdamWConfig::new().with_cautious_weight_decay(true),
            &AdamWConfig::new().with_grad_clipping(clipping()),
            // JSON has no such number.
            &AdamWConfig::new().with_epsilon(f32::INFINITY),
            &SgdConfig::new(),
        ];
        for (position, config) in configs.into_iter().enumerate() {
            assert_eq!(AdamRule::of(config), None, "{position}");
        }
    }
}
