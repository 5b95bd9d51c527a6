use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ProfilerError;
use super::recorder::Recorder;
use super::summary::summary;
use super::trace::{trace_path, write_trace};

const DEFAULT_MAX_EVENTS: usize = 250_000;

/// Measures named spans of time, on any thread: clones record into the same profile.
///
/// A span costs a few hundred nanoseconds. What is measured is the host's time: on a device that works asynchronously a span
/// ends when the work is queued, and the wait shows up where a value is read.
///
/// ```
/// use firebrand_trainer::profiler::Profiler;
///
/// let profiler = Profiler::simple();
/// for _ in 0..3 {
///     let _step = profiler.span("training_step");
///     let _inner = profiler.span("data_wait"); // Spans may nest.
/// }
/// assert!(profiler.summary().contains("training_step"));
///
/// // A loop that may go without one pays nothing then.
/// let off: Option<Profiler> = None;
/// let _span = off.as_ref().map(|profiler| profiler.span("training_step"));
/// ```
#[derive(Clone, Debug)]
pub struct Profiler {
    recorder: Arc<Mutex<Recorder>>,
    trace: Option<PathBuf>,
    global_rank: usize,
}

impl Profiler {
    /// Sums up calls and times by name; [`summary`](Self::summary) is the table.
    #[must_use]
    pub fn simple() -> Self {
        Self {
            recorder: Arc::new(Mutex::new(Recorder::new())),
            trace: None,
            global_rank: 0,
        }
    }

    /// Keeps single spans too, and writes them to a file for `chrome://tracing` or Perfetto when it is
    /// [finished](Self::finish). Ranks above 0 write beside it: `trace.json`, `trace-rank1.json`, ….
    #[must_use]
    pub fn chrome_trace(self, path: impl Into<PathBuf>) -> Self {
        let profiler = Self {
            trace: Some(path.into()),
            ..self
        };
        profiler.max_events(DEFAULT_MAX_EVENTS)
    }

    /// How many single spans are kept at most, at 24 bytes each; default 250,000. What comes later is only summed up and
    /// counted.
    #[must_use]
    pub fn max_events(self, events: usize) -> Self {
        self.lock().max_events = events;
        self
    }

    /// The rank that the trace is of.
    #[must_use]
    pub fn global_rank(self, rank: usize) -> Self {
        Self {
            global_rank: rank,
            ..self
        }
    }

    /// Measures from now until the span is dropped or [stopped](Span::stop).
    pub fn span(&self, name: impl Into<Cow<'static, str>>) -> Span {
        Span {
            recorder: Arc::clone(&self.recorder),
            name: name.into(),
            start: Instant::now(),
        }
    }

    /// Records a span that was measured elsewhere, as one of the current thread.
    pub fn record(&self, name: impl Into<Cow<'static, str>>, start: Instant, duration: Duration) {
        self.lock().record(&name.into(), start, duration);
    }

    /// The spans so far as a table, the longest total first: calls, total, mean and longest time, and the total's percentage of
    /// the time since the profiler was made. Spans nest and threads overlap, so percentages do not add up to 100.
    pub fn summary(&self) -> String {
        let recorder = self.lock();
        let (totals, elapsed) = (recorder.totals.clone(), recorder.began.elapsed());
        drop(recorder);
        summary(totals, elapsed)
    }

    /// How many single spans the trace lacks because there were more than [`max_events`](Self::max_events).
    pub fn num_dropped(&self) -> u64 {
        self.lock().num_dropped
    }

    /// Writes the trace, if one is wanted, and gives its path. It may be called again later, with more in it.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(&self) -> Result<Option<PathBuf>, ProfilerError> {
        let Some(path) = &self.trace else {
            return Ok(None);
        };
        let path = trace_path(path, self.global_rank);
        let recorder = self.lock();
        if recorder.num_dropped > 0 {
            tracing::warn!(
                path = %path.display(),
                dropped = recorder.num_dropped,
                "the trace has only the first {} spans; `max_events` raises the limit",
                recorder.max_events
            );
        }
        write_trace(&path, &recorder, self.global_rank).map_err(|source| ProfilerError::Io {
            path: path.clone(),
            source,
        })?;
        Ok(Some(path))
    }

    /// Where the trace goes, as it was given.
    pub fn trace_path(&self) -> Option<&Path> {
        self.trace.as_deref()
    }

    fn lock(&self) -> MutexGuard<'_, Recorder> {
        lock(&self.recorder)
    }
}

/// A panic elsewhere leaves at worst one span out.
fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A span that is being measured; it is recorded when it is dropped.
#[must_use = "a span that is dropped at once measures nothing"]
#[derive(Debug)]
pub struct Span {
    recorder: Arc<Mutex<Recorder>>,
    name: Cow<'static, str>,
    start: Instant,
}

impl Span {
    /// Ends the span.
    pub fn stop(self) {}
}

impl Drop for Span {
    fn drop(&mut self) {
        let duration = self.start.elapsed();
        lock(&self.recorder).record(&self.name, self.start, duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_all_threads_are_counted() {
        let profiler = Profiler::simple();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let profiler = profiler.clone();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        profiler.span("shared").stop();
                    }
                    profiler.span(format!("own {thread}")).stop();
                });
            }
        });
        let recorder = profiler.lock();
        let calls = |name: &str| {
            recorder
                .totals
                .iter()
                .find(|total| total.name == name)
                .map(|total| total.calls)
        };
        assert_eq!(calls("shared"), Some(4000));
        for thread in 0..4 {
            assert_eq!(calls(&format!("own {thread}")), Some(1));
        }
        assert!(
            recorder.events.is_empty() && recorder.num_dropped == 0,
            "no trace was wanted"
        );
    }

    #[test]
    fn a_span_lasts_until_it_ends() {
        let profiler = Profiler::simple();
        let span = profiler.span("outer");
        std::thread::sleep(Duration::from_millis(20));
        profiler.record("inner", Instant::now(), Duration::from_secs(7));
        assert_eq!(profiler.lock().totals.len(), 1);
        span.stop();
        let totals = profiler.lock().totals.clone();
        assert_eq!(
            (totals[0].name.as_ref(), totals[0].time),
            ("inner", Duration::from_secs(7))
        );
        assert!(
            totals[1].time >= Duration::from_millis(20) && totals[1].longest == totals[1].time,
            "{totals:?}"
        );
    }

    #[test]
    fn a_span_is_cheap() {
        let profiler = Profiler::simple().chrome_trace("unused.json");
        let begin = Instant::now();
        const SPANS: u32 = 100_000;
        for _ in 0..SPANS {
            profiler.span("training_step").stop();
        }
        let each = begin.elapsed() / SPANS;
        println!("{each:?} per span");
        // Far above what it takes, since the machine may be busy.
        assert!(each < Duration::from_micros(10), "{each:?}");
    }
}
