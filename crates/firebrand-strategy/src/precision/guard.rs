use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::PrecisionPolicy;
use crate::Error;

impl PrecisionPolicy {
    /// Runs a step of the user. Where two float dtypes meet in it, Burn panics; under a mixed precision that becomes an error which
    /// says what to do. The module is not to be used further then.
    ///
    /// # Errors
    ///
    /// [`Error::MixedDTypes`].
    pub fn guard<R>(&self, step: &'static str, run: impl FnOnce() -> R) -> Result<R, Error> {
        if !self.precision.is_mixed() {
            return Ok(run());
        }
        catch_unwind(AssertUnwindSafe(run)).or_else(|panic| match text(&*panic) {
            Some(text) if text.contains("dtype") => Err(Error::MixedDTypes {
                step,
                precision: self.precision.as_str(),
                reason: text.split_whitespace().collect::<Vec<_>>().join(" "),
                kept: self.kept(),
            }),
            _ => resume_unwind(panic),
        })
    }

    /// What is left out, in words.
    fn kept(&self) -> String {
        let patterns: Vec<String> = self
            .keep_full
            .iter()
            .map(|pattern| format!("'{pattern}'"))
            .collect();
        match patterns.is_empty() {
            true => String::new(),
            false => format!(
                " `keep_full_precision` keeps {} in float32: cast the input of such a layer with `step.full_precision`, and what it \
                 returns with `step.cast` where other layers follow.",
                patterns.join(", ")
            ),
        }
    }
}

/// What a panic says.
fn text(panic: &(dyn Any + Send)) -> Option<&str> {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied())
}
