//! In which dtype weights are kept and steps compute, and how 16-bit gradients are kept from vanishing.

mod guard;
mod loss_scaler;
mod policy;

pub use loss_scaler::{LossScaler, LossScalerOptions, LossScalerState};
pub use policy::{Precision, PrecisionPolicy};
