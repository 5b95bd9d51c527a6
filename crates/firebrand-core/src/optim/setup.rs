use std::fmt;
use std::sync::Arc;

use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, DynOptimizer, LambConfig,
    LionConfig, MuonConfig, RmsPropConfig, SgdConfig,
};

use super::{AdamRule, ExactOptimizer, Schedule};
use crate::PathPattern;

/// What a module may know of the fit when it configures its optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitInfo {
    estimated_stepping_batches: Option<u64>,
    max_epochs: Option<u64>,
    world_size: usize,
}

impl FitInfo {
    /// What the trainer knows: the number of updates and epochs, if they are limited, and the number of ranks.
    pub fn new(estimated_stepping_batches: Option<u64>, max_epochs: Option<u64>, world_size: usize) -> Self {
        Self {
            estimated_stepping_batches,
            max_epochs,
            world_size,
        }
    }

    /// The number of optimizer updates that the fit will do, if the loader's length and a limit say it.
    pub fn estimated_stepping_batches(&self) -> Option<u64> {
        self.estimated_stepping_batches
    }

    /// The limit of epochs.
    pub fn max_epochs(&self) -> Option<u64> {
        self.max_epochs
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }
}

/// One optimizer over its parameters.
#[derive(Clone)]
#[non_exhaustive]
pub struct SingleSetup {
    /// Its name in logs and checkpoints.
    pub name: String,
    /// Burn's per-parameter optimizer.
    pub optimizer: Arc<dyn DynOptimizer>,
    /// Its update rule, if that is known to be Adam's or AdamW's.
    pub adam: Option<AdamRule>,
    /// The learning rate, before any schedule.
    pub learning_rate: f64,
    /// Which parameters it trains; empty: all that no other optimizer names.
    pub parameters: Vec<PathPattern>,
    /// Parameters that differ in rate or optimizer; the last that matches wins.
    pub groups: Vec<GroupSetup>,
    /// How the learning rate changes.
    pub schedule: Option<Schedule>,
    /// What is wrong with the configuration, to be reported where an error can be.
    pub problem: Option<String>,
}

/// Parameters of one optimizer that differ in rate or optimizer.
#[derive(Clone)]
#[non_exhaustive]
pub struct GroupSetup {
    /// Which parameters.
    pub parameters: PathPattern,
    /// Their learning rate; it follows the schedule in proportion.
    pub learning_rate: Option<f64>,
    /// Their optimizer, such as one without weight decay.
    pub optimizer: Option<Arc<dyn DynOptimizer>>,
    /// The update rule of that optimizer, if it is known to be Adam's or AdamW's.
    pub adam: Option<AdamRule>,
}

/// Which optimizers train a module, with what rates and schedules.
///
/// ```
/// use burn::optim::AdamWConfig;
/// use firebrand_core::{OptimizerSetup, Schedule};
///
/// let setup = OptimizerSetup::new(AdamWConfig::new().with_weight_decay(0.1), 3e-4)
///     .group("*.bias", AdamWConfig::new().with_weight_decay(0.0))
///     .group_rate("head", 3e-3)
///     .schedule(Schedule::warmup_cosine(100, 10_000));
/// ```
///
/// A module with several optimizers joins them with [`and`](Self::and); each names its parameters:
///
/// ```
/// use burn::optim::AdamConfig;
/// use firebrand_core::OptimizerSetup;
///
/// let setup = OptimizerSetup::new(AdamConfig::new(), 2e-4).named("generator").parameters("generator").and(
///     OptimizerSetup::new(AdamConfig::new(), 2e-4).named("discriminator").parameters("discriminator"),
/// );
/// assert_eq!(setup.optimizers().len(), 2);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct OptimizerSetup {
    optimizers: Vec<SingleSetup>,
}

impl OptimizerSetup {
    /// An optimizer for all parameters, from one of Burn's configurations.
    pub fn new(config: impl IntoOptimizer, learning_rate: f64) -> Self {
        let (problem, adam) = (config.problem(), config.adam());
        let mut setup = Self::custom(config.into_optimizer(), learning_rate);
        setup.last().problem = problem;
        setup.last().adam = adam;
        setup
    }

    /// An optimizer of your own: anything that implements Burn's `Optimizer`, in an `Arc`.
    pub fn custom(optimizer: Arc<dyn DynOptimizer>, learning_rate: f64) -> Self {
        Self {
            optimizers: vec![SingleSetup {
                name: "optimizer".to_owned(),
                optimizer,
                adam: None,
                learning_rate,
                parameters: Vec::new(),
                groups: Vec::new(),
                schedule: None,
                problem: None,
            }],
        }
    }

    fn last(&mut self) -> &mut SingleSetup {
        let last = self.optimizers.len() - 1; // Never empty: every constructor puts one in.
        &mut self.optimizers[last]
    }

    /// The optimizer's name in logs (`lr-name`) and checkpoints.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.last().name = name.into();
        self
    }

    /// Train only the parameters that match; may be called several times.
    pub fn parameters(mut self, pattern: impl Into<PathPattern>) -> Self {
        self.last().parameters.push(pattern.into());
        self
    }

    /// Use another optimizer for the parameters that match. Of several groups the last that matches wins.
    pub fn group(mut self, pattern: impl Into<PathPattern>, config: impl IntoOptimizer) -> Self {
        if let Some(problem) = config.problem() {
            self.last().problem = Some(problem);
        }
        let adam = config.adam();
        let optimizer = Some(config.into_optimizer());
        self.last().groups.push(GroupSetup {
            parameters: pattern.into(),
            learning_rate: None,
            optimizer,
            adam,
        });
        self
    }

    /// Use another learning rate for the parameters that match.
    pub fn group_rate(mut self, pattern: impl Into<PathPattern>, learning_rate: f64) -> Self {
        let parameters = pattern.into();
        self.last().groups.push(GroupSetup {
            parameters,
            learning_rate: Some(learning_rate),
            optimizer: None,
            adam: None,
        });
        self
    }

    /// How the learning rate changes.
    pub fn schedule(mut self, schedule: impl Into<Schedule>) -> Self {
        self.last().schedule = Some(schedule.into());
        self
    }

    /// Adds further optimizers; what follows applies to the last of them.
    pub fn and(mut self, others: Self) -> Self {
        self.optimizers.extend(others.optimizers);
        self
    }

    /// The optimizers, in order.
    pub fn optimizers(&self) -> &[SingleSetup] {
        &self.optimizers
    }
}

impl fmt::Debug for SingleSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (learning rate {}, {} groups)",
            self.name,
            self.learning_rate,
            self.groups.len()
        )
    }
}

/// A configuration of one of Burn's optimizers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the configuration of an optimizer",
    note = "pass one of Burn's, such as `AdamWConfig::new()` (not `AdamWConfig::new().init()`), or use `OptimizerSetup::custom`"
)]
pub trait IntoOptimizer {
    /// The per-parameter optimizer.
    fn into_optimizer(self) -> Arc<dyn DynOptimizer>;

    /// What cannot be honoured in the configuration.
    fn problem(&self) -> Option<String> {
        None
    }

    /// The update rule, if it is exactly Burn's Adam or AdamW, whose state the optimizer has; an engine may then do the update
    /// itself.
    fn adam(&self) -> Option<AdamRule> {
        None
    }
}

macro_rules! into_optimizer {
    ($($config:ty),+ $(,)?) => {
        $(impl IntoOptimizer for $config {
            fn into_optimizer(self) -> Arc<dyn DynOptimizer> {
                Arc::new(ExactOptimizer(self.build()))
            }

            fn problem(&self) -> Option<String> {
                let config = serde_json::to_value(self).ok()?;
                // Burn's name for it is not the same in every configuration.
                ["grad_clipping", "gradient_clipping"]
                    .into_iter()
                    .find(|name| config.get(name).is_some_and(|clipping| !clipping.is_null()))
                    .map(|name| {
                        format!(
                            "{} has `{name}` set, which clips each parameter by itself; use \
                             `Trainer::builder().gradient_clip(..)`, which clips by the norm of all",
                            stringify!($config)
                        )
                    })
            }

            fn adam(&self) -> Option<AdamRule> {
                AdamRule::of(self)
            }
        })+
    };
}

into_optimizer!(
    AdaGradConfig,
    AdafactorConfig,
    AdamConfig,
    AdamWConfig,
    AdanConfig,
    LambConfig,
    LionConfig,
    MuonConfig,
    RmsPropConfig,
    SgdConfig,
);

impl IntoOptimizer for Arc<dyn DynOptimizer> {
    fn into_optimizer(self) -> Arc<dyn DynOptimizer> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::grad_clipping::GradientClippingConfig;

    #[test]
    fn clipping_of_single_parameters_is_reported() {
        let clipping = || Some(GradientClippingConfig::Norm(1.0));
        let adamw = AdamWConfig::new().with_grad_clipping(clipping());
        let sgd = SgdConfig::new().with_gradient_clipping(clipping());
        for setup in [OptimizerSetup::new(adamw, 1e-3), OptimizerSetup::new(sgd, 1e-3)] {
            let problem = setup.optimizers()[0].problem.clone().unwrap();
            assert!(problem.contains("builder().gradient_clip"), "{problem}");
        }
        assert!(
            OptimizerSetup::new(SgdConfig::new(), 1e-3).optimizers()[0]
                .problem
                .is_none()
        );
    }
}
