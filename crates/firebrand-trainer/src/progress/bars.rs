use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::format::format_metrics;
use super::stage::Stage;
use super::terminal::Terminal;

/// The template of a stage whose length is known, and of one whose length is not. Metrics have what is left of the line.
const BAR: &str = "{prefix} {bar:10.cyan} {pos}/{len} [{pace}] {wide_msg}";
const SPINNER: &str = "{prefix} {spinner:.cyan} {pos} [{pace}] {wide_msg}";

/// A bar for each running stage, the inner ones below the outer ones. What ends leaves a line above them.
pub(super) struct Bars {
    terminal: Arc<Terminal>,
    bars: Vec<ProgressBar>,
}

impl Bars {
    pub(super) fn new(terminal: Arc<Terminal>) -> Self {
        Self {
            terminal,
            bars: Vec::new(),
        }
    }

    pub(super) fn begin(&mut self, stage: &Stage) {
        self.bars.push(self.terminal.add(stage.total, |bar| {
            bar.set_style(style(stage));
            bar.update(|state| state.set_pos(stage.position));
            bar.set_prefix(stage.name.clone());
        }));
    }

    pub(super) fn advance(&self, num_batches: u64) {
        if let Some(bar) = self.bars.last() {
            bar.inc(num_batches);
        }
    }

    pub(super) fn show_metrics(&self, metrics: &[(String, f64)]) {
        if let Some(bar) = self.bars.last() {
            bar.set_message(format_metrics(metrics));
        }
    }

    pub(super) fn end(&mut self, stage: &Stage, now: Instant) {
        self.terminal.print(&stage.summary(now));
        if let Some(bar) = self.bars.pop() {
            self.terminal.remove(bar);
        }
    }

    pub(super) fn print(&self, text: &str) {
        self.terminal.print(text);
    }

    pub(super) fn suspend<R>(&self, f: impl FnOnce() -> R) -> R {
        self.terminal.suspend(f)
    }

    pub(super) fn clear(&mut self) {
        while let Some(bar) = self.bars.pop() {
            self.terminal.remove(bar);
        }
    }
}

/// After an error or in a panic the terminal has to be left as it was.
impl Drop for Bars {
    fn drop(&mut self) {
        self.clear();
    }
}

fn style(stage: &Stage) -> ProgressStyle {
    let (template, fallback): (_, fn() -> ProgressStyle) = match stage.total {
        Some(_) => (BAR, ProgressStyle::default_bar),
        None => (SPINNER, ProgressStyle::default_spinner),
    };
    let pace = stage.pace.clone();
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| fallback())
        .progress_chars("━╸─")
        .with_key("pace", move |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = out.write_str(&pace.describe(state.pos(), state.len(), Instant::now()));
        })
}

#[cfg(test)]
mod tests;
