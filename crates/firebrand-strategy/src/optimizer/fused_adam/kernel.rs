use std::ops::{Add, Div, Mul, Sub};

use burn::tensor::Element;
use bytemuck::Pod;
use firebrand_core::{AdamRule, AdamWeightDecay};
use macerator::{AutoArch, Simd, WithSimd};
use rayon::prelude::*;

/// More elements than this are worth several threads; each then takes this many at a time.
const CHUNK: usize = 1 << 16;

/// A float type in which the CPU backend computes as the processor does.
pub(super) trait Real:
    Element + Pod + Default + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// A scalar operand in this type, as Burn passes one.
    fn scalar(value: f64) -> Self;
    fn square_root(self) -> Self;
}

impl Real for f32 {
    fn scalar(value: f64) -> Self {
        value as Self
    }

    #[inline(always)]
    fn square_root(self) -> Self {
        self.sqrt()
    }
}

impl Real for f64 {
    fn scalar(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn square_root(self) -> Self {
        self.sqrt()
    }
}

/// What is the same for all elements of an update, rounded where Burn rounds it.
#[derive(Clone, Copy)]
pub(super) struct Scalars<E> {
    /// Moments are set, and not averaged with what was there.
    is_first: bool,
    beta_1: E,
    beta_2: E,
    /// One minus the betas.
    rest_1: E,
    rest_2: E,
    form: Form<E>,
    epsilon: E,
    rate: E,
}

/// The two ways in which Burn writes the same mathematics, which round differently.
#[derive(Clone, Copy)]
enum Form<E> {
    Adam {
        penalty: Option<E>,
        correction: E,
    },
    AdamW {
        correction_1: E,
        correction_2: E,
        /// What weight decay leaves of a weight.
        kept: E,
    },
}

impl<E: Real> Scalars<E> {
    /// Of the update with this number, counted from one.
    pub(super) fn new(rule: &AdamRule, is_first: bool, time: usize, rate: f64) -> Self {
        let scalar = |value: f32| E::scalar(f64::from(value));
        let time = time as i32;
        let correction_1 = 1.0 - rule.beta_1.powi(time);
        let correction_2 = 1.0 - rule.beta_2.powi(time);
        let (form, epsilon) = match rule.weight_decay {
            AdamWeightDecay::Coupled(penalty) => {
                let root = correction_2.sqrt();
                let form = Form::Adam {
                    penalty: penalty.map(scalar),
                    correction: scalar(root / correction_1),
                };
                (form, rule.epsilon * root)
            }
            AdamWeightDecay::Decoupled(decay) => {
                let form = Form::AdamW {
                    correction_1: scalar(correction_1),
                    correction_2: scalar(correction_2),
                    kept: E::scalar(1.0 - rate * f64::from(decay)),
                };
                (form, rule.epsilon)
            }
        };
        Self {
            is_first,
            beta_1: scalar(rule.beta_1),
            beta_2: scalar(rule.beta_2),
            rest_1: scalar(1.0 - rule.beta_1),
            rest_2: scalar(1.0 - rule.beta_2),
            form,
            epsilon: scalar(epsilon),
            rate: E::scalar(rate),
        }
    }
}

/// The elements of an update, equally many of each.
pub(super) struct Operands<'a, E> {
    pub(super) weight: &'a mut [E],
    pub(super) first: &'a mut [E],
    pub(super) second: &'a mut [E],
    pub(super) gradient: &'a [E],
}

impl<E: Real> Operands<'_, E> {
    /// Updates the weight and its moments. Elements are independent of one another, so that neither threads nor vectors
    /// change a bit.
    pub(super) fn update(self, scalars: &Scalars<E>) {
        let vectorized = |operands| AutoArch::new().dispatch(Pass { operands, scalars });
        if self.weight.len() <= CHUNK || rayon::current_num_threads() == 1 {
            return vectorized(self);
        }
        self.weight
            .par_chunks_mut(CHUNK)
            .zip(self.first.par_chunks_mut(CHUNK))
            .zip(self.second.par_chunks_mut(CHUNK))
            .zip(self.gradient.par_chunks(CHUNK))
            .for_each(|(((weight, first), second), gradient)| {
                vectorized(Operands {
                    weight,
                    first,
                    second,
                    gradient,
                });
            });
    }

    /// Every operation and its order are Burn's; none may be contracted or reordered.
    #[inline(always)]
    fn pass(self, scalars: &Scalars<E>, gradient_of: impl Fn(E, E) -> E, updated: impl Fn(E, E, E) -> E) {
        let Scalars {
            is_first,
            beta_1,
            beta_2,
            rest_1,
            rest_2,
            ..
        } = *scalars;
        let moments = self.first.iter_mut().zip(self.second);
        let elements = self.weight.iter_mut().zip(self.gradient).zip(moments);
        for ((weight, gradient), (first, second)) in elements {
            let gradient = gradient_of(*weight, *gradient);
            let (new_first, new_second) = (gradient * rest_1, gradient * gradient * rest_2);
            // Not as an average with zero, which would turn -0 into 0.
            *first = if is_first {
                new_first
            } else {
                *first * beta_1 + new_first
            };
            *second = if is_first {
                new_second
            } else {
                *second * beta_2 + new_second
            };
            *weight = updated(*weight, *first, *second);
        }
    }
}

/// One pass, compiled for every vector instruction set that the processor may have.
struct Pass<'a, E> {
    operands: Operands<'a, E>,
    scalars: &'a Scalars<E>,
}

impl<E: Real> WithSimd for Pass<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Self { operands, scalars } = self;
        let (epsilon, rate) = (scalars.epsilon, scalars.rate);
        match scalars.form {
            Form::AdamW {
                correction_1,
                correction_2,
                kept,
            } => {
                let updated = |weight, first, second: E| {
                    let step = first / correction_1 / ((second / correction_2).square_root() + epsilon);
                    weight * kept - step * rate
                };
                operands.pass(scalars, |_, gradient| gradient, updated);
            }
            Form::Adam { penalty, correction } => {
                let updated = |weight, first, second: E| {
                    let step = first * correction / (second.square_root() + epsilon);
                    weight - step * rate
                };
                match penalty {
                    Some(penalty) => {
                        operands.pass(scalars, |weight, gradient| weight * penalty + gradient, updated)
                    }
                    None => operands.pass(scalars, |_, gradient| gradient, updated),
                }
            }
        }
    }
}
