//! Data parallel training: every rank has the whole model and a part of the data, and gradients are summed over the ranks while
//! the backward pass goes on.

mod bucket;
mod data_parallel;
mod header;
mod layout;
mod reducer;
mod replicate;
#[cfg(test)]
mod tests;

pub use data_parallel::{DataParallel, DdpOptions, GradientCompression};
pub use replicate::{check_alike, replicate};
