//! `#[derive(Batch)]`: a struct of tensors becomes what a data loader hands to a step.
//!
//! ```ignore
//! use burn::tensor::{Int, Tensor};
//! use firebrand::Batch;
//!
//! #[derive(Batch, Clone, Debug)]
//! struct Digits {
//!     images: Tensor<2>,
//!     labels: Tensor<1, Int>,
//!     #[batch(shared)]
//!     class_weights: Tensor<1>,
//! }
//! ```
//!
//! The facade crate `firebrand` re-exports the macro next to the trait of the same name; it is documented there as well.

mod attributes;
mod batch;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements the trait `Batch` for a struct with named or unnamed fields.
///
/// The fields are batches themselves: tensors whose first axis is the sample, `Vec`s with one element per sample, tuples of
/// batches, and other structs that derive `Batch`. The first field that is per sample says how many samples there are, and
/// `Batch::check` compares the others with it.
///
/// The struct implements `Clone` as well. Its crate depends on `burn`, as it does for `#[derive(Module)]`. Type parameters
/// are bounded as needed.
///
/// # Attributes of a field
///
/// - `#[batch(shared)]`: a batch of its own that belongs to all samples, such as class weights. It is moved, cast and checked,
///   but not counted, and it is kept whole when the batch is split.
/// - `#[batch(skip)]`: any `Clone + Send + 'static` value, such as the name of a file. It is only cloned.
///
/// # Attributes of the struct
///
/// - `#[batch(crate = "firebrand_core")]`: the path of `firebrand-core`, for crates that do not use the facade `firebrand`;
///   default `::firebrand::__core`, which is the same.
///
/// # Errors
///
/// It does not compile for enums, unions, structs that borrow, structs without a field that is per sample, and unknown or
/// contradicting attributes.
#[proc_macro_derive(Batch, attributes(batch))]
pub fn derive_batch(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    batch::expand(&input)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
