//! Parts that look on while the trainer runs, and ask it for things with typed commands.

mod callback;

pub use callback::{Callback, CheckpointRequest, Commands, View};
