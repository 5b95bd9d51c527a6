//! Rank-free parameters: a path, a shape, a dtype and a tensor without its rank.

mod path;
mod pattern;
mod table;
mod tensor;
mod traverse;

pub use path::{SeedStream, path_id, seed_from};
pub use pattern::PathPattern;
pub use table::{ParamEntry, ParamKind, ParamTable};
pub(crate) use tensor::with_rank;
pub use tensor::{AnyTensor, on_host};
pub use traverse::{
    ParamInfo, ParamMapper, ParamVisitor, assign_path_ids, map_module, train_params, visit_fields,
    visit_module,
};
