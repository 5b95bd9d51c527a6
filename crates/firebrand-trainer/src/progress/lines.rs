use std::io::Write;
use std::time::{Duration, Instant};

use super::stage::Stage;

/// A line between the start and the end of a stage comes at most this often, ...
const INTERVAL: Duration = Duration::from_secs(10);
/// ... when another tenth of the stage is done, or after this time.
const LONG_INTERVAL: Duration = Duration::from_secs(60);
/// A start is not worth a line this soon after another line: its end follows soon, too.
const START_INTERVAL: Duration = Duration::from_secs(1);

/// Lines for where bars cannot be drawn: files, pipes, the logs of a cluster.
pub(super) struct Lines {
    output: Box<dyn Write + Send>,
    last: Option<Instant>,
    /// For each running stage, the tenths that have been shown.
    tenths: Vec<u64>,
    /// Whether a line has been due for a batch already, and waits for its metrics.
    waiting: bool,
}

impl Lines {
    pub(super) fn new(output: Box<dyn Write + Send>) -> Self {
        Self {
            output,
            last: None,
            tenths: Vec::new(),
            waiting: false,
        }
    }

    pub(super) fn begin(&mut self, stage: &Stage, now: Instant) {
        self.tenths.push(tenth(stage));
        if self
            .last
            .is_none_or(|last| now.saturating_duration_since(last) >= START_INTERVAL)
        {
            self.print(&stage.opening(), now);
        }
    }

    /// Whether the next [`show`](Self::show) writes a line.
    pub(super) fn is_due(&self, stage: &Stage, now: Instant) -> bool {
        let Some(since) = self.last.map(|last| now.saturating_duration_since(last)) else {
            return true;
        };
        let advanced = self.tenths.last().is_none_or(|&shown| tenth(stage) > shown);
        since >= LONG_INTERVAL || since >= INTERVAL && advanced
    }

    /// A batch is done. A line that becomes due waits for the metrics of that batch, but not longer.
    pub(super) fn advance(&mut self, stage: &Stage, now: Instant) {
        if self.waiting {
            self.show(stage, now);
        } else {
            self.waiting = self.is_due(stage, now);
        }
    }

    /// Writes where a stage stands, if that is due.
    pub(super) fn show(&mut self, stage: &Stage, now: Instant) {
        if self.is_due(stage, now) {
            self.print(&stage.interim(now), now);
            if let Some(shown) = self.tenths.last_mut() {
                *shown = tenth(stage);
            }
        }
    }

    pub(super) fn end(&mut self, stage: &Stage, now: Instant) {
        self.print(&stage.summary(now), now);
        self.tenths.pop();
    }

    pub(super) fn print(&mut self, text: &str, now: Instant) {
        self.last = Some(now);
        self.waiting = false;
        // One write, so that a line is not mixed with those of other processes. Nobody reading is no reason to stop.
        let _ = self
            .output
            .write_all(format!("{text}\n").as_bytes())
            .and_then(|()| self.output.flush());
    }
}

fn tenth(stage: &Stage) -> u64 {
    match stage.total {
        Some(total) if total > 0 => stage.position.saturating_mul(10) / total,
        _ => 0,
    }
}
