//! Where the time of a run goes: named spans, summed up in a table and, on demand, drawn over time.

mod error;
mod recorder;
mod span;
mod summary;
mod trace;

pub use error::ProfilerError;
pub use span::{Profiler, Span};
