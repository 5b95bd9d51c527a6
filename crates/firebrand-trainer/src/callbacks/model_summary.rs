use firebrand_core::Result;

use super::{Callback, Commands, SummaryDepth, View, summary_table};

/// Prints the parameters and buffers of the module on standard output when the fit begins, see [`summary_table`].
///
/// The trainer does so by itself unless `enable_model_summary(false)` says otherwise; add it for another depth.
#[must_use]
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelSummary {
    depth: SummaryDepth,
}

impl ModelSummary {
    /// Its name as a callback.
    pub const NAME: &str = "ModelSummary";

    /// As deep as fits on a page.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many levels of fields are shown.
    pub fn max_depth(mut self, depth: impl Into<SummaryDepth>) -> Self {
        self.depth = depth.into();
        self
    }
}

impl Callback for ModelSummary {
    fn name(&self) -> String {
        Self::NAME.to_owned()
    }

    fn on_fit_start(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        if view.is_global_zero {
            crate::progress::print_line(&summary_table(view.module, view.table, view.trained, self.depth));
        }
        Ok(())
    }
}
