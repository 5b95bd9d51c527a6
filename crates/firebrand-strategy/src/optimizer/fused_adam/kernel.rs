use firebrand_core::{AdamRule, AdamWeightDecay};
use macerator::{AutoArch, Simd, WithSimd};
use rayon::prelude::*;

/// More elements than this are worth several threads; each then takes this many at a time.
const CHUNK: usize = 1 << 16;

/// What is the same for all elements of an update, computed and rounded where Burn computes and rounds it.
pub(super) struct Scalars {
    /// Moments are set, and not averaged with what was there.
    is_first: bool,
    beta_1: f32,
    beta_2: f32,
    form: Form,
    epsilon: f32,
    rate: f32,
}

/// The two ways in which Burn writes the same mathematics, which round differently.
enum Form {
    Adam {
        penalty: Option<f32>,
        correction: f32,
    },
    AdamW {
        correction_1: f32,
        correction_2: f32,
        /// What weight decay leaves of a weight.
        kept: f32,
    },
}

impl Scalars {
    /// Of the update with this number, counted from one.
    pub(super) fn new(rule: &AdamRule, is_first: bool, time: usize, rate: f64) -> Self {
        let time = time as i32;
        let correction_1 = 1.0 - rule.beta_1.powi(time);
        let correction_2 = 1.0 - rule.beta_2.powi(time);
        let (form, epsilon) = match rule.weight_decay {
            AdamWeightDecay::Coupled(penalty) => {
                let root = correction_2.sqrt();
                let correction = root / correction_1;
                (Form::Adam { penalty, correction }, rule.epsilon * root)
            }
            AdamWeightDecay::Decoupled(decay) => {
                let form = Form::AdamW {
                    correction_1,
                    correction_2,
                    kept: (1.0 - rate * f64::from(decay)) as f32,
                };
                (form, rule.epsilon)
            }
        };
        Self {
            is_first,
            beta_1: rule.beta_1,
            beta_2: rule.beta_2,
            form,
            epsilon,
            rate: rate as f32,
        }
    }
}

/// An update of a weight and its moments, with equally many elements of each.
pub(super) struct Pass<'a> {
    pub(super) weight: &'a mut [f32],
    pub(super) first: &'a mut [f32],
    pub(super) second: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) scalars: &'a Scalars,
}

impl Pass<'_> {
    /// Elements are independent of one another, so that neither threads nor vectors change a bit.
    pub(super) fn run(self) {
        if self.weight.len() <= CHUNK || rayon::current_num_threads() == 1 {
            return AutoArch::new().dispatch(self);
        }
        let scalars = self.scalars;
        self.weight
            .par_chunks_mut(CHUNK)
            .zip(self.first.par_chunks_mut(CHUNK))
            .zip(self.second.par_chunks_mut(CHUNK))
            .zip(self.gradient.par_chunks(CHUNK))
            .for_each(|(((weight, first), second), gradient)| {
                AutoArch::new().dispatch(Pass {
                    weight,
                    first,
                    second,
                    gradient,
                    scalars,
                });
            });
    }

    /// Every operation and its order are Burn's; none may be contracted or reordered.
    #[inline(always)]
    fn each(self, gradient_of: impl Fn(f32, f32) -> f32, updated: impl Fn(f32, f32, f32) -> f32) {
        let &Scalars {
            is_first,
            beta_1,
            beta_2,
            ..
        } = self.scalars;
        let (rest_1, rest_2) = (1.0 - beta_1, 1.0 - beta_2);
        let moments = self.first.iter_mut().zip(self.second);
        for ((weight, gradient), (first, second)) in self.weight.iter_mut().zip(self.gradient).zip(moments) {
            let gradient = gradient_of(*weight, *gradient);
            let (new_first, new_second) = (gradient * rest_1, gradient * gradient * rest_2);
            // An average with zero would turn -0 into 0.
            (*first, *second) = match is_first {
                true => (new_first, new_second),
                false => (*first * beta_1 + new_first, *second * beta_2 + new_second),
            };
            *weight = updated(*weight, *first, *second);
        }
    }
}

/// Compiled for every vector instruction set that the processor may have.
impl WithSimd for Pass<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let &Scalars { epsilon, rate, .. } = self.scalars;
        match self.scalars.form {
            Form::AdamW {
                correction_1,
                correction_2,
                kept,
            } => {
                let updated = |weight, first, second: f32| {
                    let step = first / correction_1 / ((second / correction_2).sqrt() + epsilon);
                    weight * kept - step * rate
                };
                self.each(|_, gradient| gradient, updated);
            }
            Form::Adam { penalty, correction } => {
                let updated = |weight, first, second: f32| {
                    let step = first * correction / (second.sqrt() + epsilon);
                    weight - step * rate
                };
                match penalty {
                    Some(penalty) => self.each(|weight, gradient| weight * penalty + gradient, updated),
                    None => self.each(|_, gradient| gradient, updated),
                }
            }
        }
    }
}
