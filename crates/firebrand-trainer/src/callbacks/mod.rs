//! Parts that look on while the trainer runs, and ask it for things with typed commands.

mod callback;
mod standin;
pub use standin::*;

pub use callback::{Callback, CheckpointRequest, Commands, View};
