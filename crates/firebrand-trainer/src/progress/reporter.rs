use std::io::{Write, stderr, stdout};
use std::time::{Duration, Instant};

use super::bars::Bars;
use super::format::{format_span, results_table};
use super::lines::Lines;
use super::mode::ProgressMode;
use super::panics::install_panic_hook;
use super::stage::Stage;
use super::terminal::Terminal;

/// How often metrics on a bar change: more often than this nobody can read them, and each time costs a device
/// synchronisation.
const METRICS_INTERVAL: Duration = Duration::from_millis(100);

/// Shows how far a run is, on standard error; results go to standard output.
///
/// A loop begins a stage, advances it by its batches, and ends it; stages nest, as a validation in an epoch of training.
/// Whatever is dropped in between, by an error or a panic, leaves the terminal clean.
///
/// ```
/// use firebrand_trainer::progress::{ProgressMode, ProgressReporter};
///
/// let mut progress = ProgressReporter::new(ProgressMode::Auto);
/// progress.begin_fit("fit");
/// progress.begin_stage("train epoch 0", Some(100), 0);
/// for _ in 0..100 {
///     progress.advance(1);
///     if progress.wants_metrics() {
///         progress.set_metrics(&[("train_loss".to_owned(), 0.5)]);
///     }
/// }
/// progress.end_stage();
/// progress.finish();
/// ```
pub struct ProgressReporter {
    display: Display,
    results: Box<dyn Write + Send>,
    stages: Vec<Stage>,
    /// What is running, and since when.
    fit: Option<(String, Instant)>,
    metrics_shown: Option<Instant>,
    clock: Box<dyn Fn() -> Instant + Send>,
}

enum Display {
    Bars(Bars),
    Lines(Lines),
    Off,
}

impl ProgressReporter {
    /// A reporter on standard error. With bars, it also sees to it that the message of a panic is not drawn over.
    #[must_use]
    pub fn new(mode: ProgressMode) -> Self {
        match mode.resolve() {
            ProgressMode::Bars => {
                install_panic_hook();
                Self::from_display(Display::Bars(Bars::new(Terminal::stderr().clone())))
            }
            ProgressMode::Lines => Self::with_output(Box::new(stderr())),
            _ => Self::from_display(Display::Off),
        }
    }

    /// A reporter that writes plain lines to `output`.
    #[must_use]
    pub fn with_output(output: Box<dyn Write + Send>) -> Self {
        Self::from_display(Display::Lines(Lines::new(output)))
    }

    fn from_display(display: Display) -> Self {
        Self {
            display,
            results: Box::new(stdout()),
            stages: Vec::new(),
            fit: None,
            metrics_shown: None,
            clock: Box::new(Instant::now),
        }
    }

    /// Whether anything is shown at all.
    #[must_use]
    pub fn is_off(&self) -> bool {
        matches!(self.display, Display::Off)
    }

    /// Starts the clock of the whole run, called `title`, such as `fit`.
    pub fn begin_fit(&mut self, title: &str) {
        self.fit = Some((title.to_owned(), (self.clock)()));
    }

    /// Begins a stage such as `train epoch 3`, `validate`, `test` or `predict`, inside the one that is running.
    ///
    /// `total` is the number of batches if it is known, `start` the number of them that were done before a resume.
    pub fn begin_stage(&mut self, name: &str, total: Option<u64>, start: u64) {
        let now = (self.clock)();
        if let Some(outer) = self.stages.last() {
            outer.pace.with(|pace| pace.pause(now));
        }
        let stage = Stage::new(name, total, start, now);
        match &mut self.display {
            Display::Bars(bars) => bars.begin(&stage),
            Display::Lines(lines) => lines.begin(&stage, now),
            Display::Off => {}
        }
        self.stages.push(stage);
        self.metrics_shown = None;
    }

    /// Counts batches of the running stage as done.
    pub fn advance(&mut self, num_batches: u64) {
        let Some(stage) = self.stages.last_mut() else {
            return;
        };
        stage.position = stage.position.saturating_add(num_batches);
        match &mut self.display {
            Display::Bars(bars) => bars.advance(num_batches),
            Display::Lines(lines) => lines.advance(stage, (self.clock)()),
            Display::Off => {}
        }
    }

    /// Whether metrics would be shown if they were set now. Reading them off a device makes it wait, so ask first.
    #[must_use]
    pub fn wants_metrics(&self) -> bool {
        let Some(stage) = self.stages.last() else {
            return false;
        };
        let now = (self.clock)();
        match &self.display {
            Display::Bars(_) => self
                .metrics_shown
                .is_none_or(|shown| now.saturating_duration_since(shown) >= METRICS_INTERVAL),
            Display::Lines(lines) => lines.is_due(stage, now),
            Display::Off => false,
        }
    }

    /// Sets the metrics of the running stage, in the order in which they are shown.
    ///
    /// Those that are set before [`end_stage`](Self::end_stage) stand in the line that the stage leaves, whether
    /// [`wants_metrics`](Self::wants_metrics) or not.
    pub fn set_metrics(&mut self, metrics: &[(String, f64)]) {
        let Some(stage) = self.stages.last_mut() else {
            return;
        };
        metrics.clone_into(&mut stage.metrics);
        let now = (self.clock)();
        match &mut self.display {
            Display::Bars(bars) => bars.show_metrics(metrics),
            Display::Lines(lines) => lines.show(stage, now),
            Display::Off => {}
        }
        self.metrics_shown = Some(now);
    }

    /// Ends the running stage, which leaves a line with its time, speed and last metrics.
    pub fn end_stage(&mut self) {
        let now = (self.clock)();
        let Some(stage) = self.stages.pop() else { return };
        match &mut self.display {
            Display::Bars(bars) => bars.end(&stage, now),
            Display::Lines(lines) => lines.end(&stage, now),
            Display::Off => {}
        }
        if let Some(outer) = self.stages.last() {
            outer.pace.with(|pace| pace.resume(now));
        }
        self.metrics_shown = None;
    }

    /// Writes a line to where progress is shown, above the bars.
    pub fn println(&mut self, text: &str) {
        let now = (self.clock)();
        match &mut self.display {
            Display::Bars(bars) => bars.print(text),
            Display::Lines(lines) => lines.print(text, now),
            Display::Off => {}
        }
    }

    /// Writes the final values of an evaluation to standard output, as a table.
    pub fn results(&mut self, title: &str, metrics: &[(String, f64)]) {
        let output = &mut self.results;
        // A closed pipe is no reason to fail.
        let mut write = || {
            let _ = writeln!(output, "{}", results_table(title, metrics)).and_then(|()| output.flush());
        };
        match &self.display {
            Display::Bars(bars) => bars.suspend(write),
            Display::Lines(_) => write(),
            Display::Off => {}
        }
    }

    /// Ends the run: bars are wiped away, stages that are still running leave nothing, and the time of a run that was begun
    /// with [`begin_fit`](Self::begin_fit) is shown. A run that fails is dropped without this.
    pub fn finish(&mut self) {
        if let Display::Bars(bars) = &mut self.display {
            bars.clear();
        }
        self.stages.clear();
        if let Some((title, begun)) = self.fit.take() {
            let elapsed = (self.clock)().saturating_duration_since(begun);
            self.println(&format!("{title}: finished in {}", format_span(elapsed)));
        }
    }
}

#[cfg(test)]
mod tests;
