use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use firebrand_core::ErrorChain;

use super::ProfilerError;
use super::recorder::Recorder;
use super::summary::summary;
use super::trace::{trace_path, write_trace};

const DEFAULT_MAX_EVENTS: usize = 250_000;

/// Measures named spans of time, on any thread: clones record into the same profile.
///
/// The default is [`off`](Self::off) and costs nothing; a span costs a few hundred nanoseconds. What is measured is the host's
/// time: on a device that works asynchronously a span ends when the work is queued, and the wait shows up where a value is read.
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
/// ```
#[derive(Clone, Debug, Default)]
pub struct Profiler {
    recorder: Option<Arc<Mutex<Recorder>>>,
    trace: Option<PathBuf>,
    global_rank: usize,
}

impl Profiler {
    /// Measures nothing.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }

    /// Sums up calls and times by name; [`summary`](Self::summary) is the table, which the trainer prints after a fit.
    #[must_use]
    pub fn simple() -> Self {
        Self {
            recorder: Some(Arc::new(Mutex::new(Recorder::new()))),
            ..Self::default()
        }
    }

    /// Keeps single spans too, and writes them to a file for `chrome://tracing` or Perfetto when it
    /// [reports](Self::report). Ranks above 0 write beside it: `trace.json`, `trace-rank1.json`, …. A profiler that is off is
    /// turned on.
    #[must_use]
    pub fn chrome_trace(self, path: impl Into<PathBuf>) -> Self {
        let on = if self.is_on() {
            self
        } else {
            Self {
                recorder: Self::simple().recorder,
                ..self
            }
        };
        Self {
            trace: Some(path.into()),
            ..on
        }
        .max_events(DEFAULT_MAX_EVENTS)
    }

    /// How many single spans are kept at most for the trace, at 24 bytes each; default 250,000. What comes later is only summed
    /// up and counted.
    #[must_use]
    pub fn max_events(self, events: usize) -> Self {
        if let Some(recorder) = &self.recorder {
            lock(recorder).max_events = events;
        }
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

    /// Whether it measures anything.
    pub fn is_on(&self) -> bool {
        self.recorder.is_some()
    }

    /// Measures from now until the span is dropped or [stopped](Span::stop).
    pub fn span(&self, name: impl Into<Cow<'static, str>>) -> Span {
        Span(self.recorder.as_ref().map(|recorder| Running {
            recorder: Arc::clone(recorder),
            name: name.into(),
            start: Instant::now(),
        }))
    }

    /// Records a span that was measured elsewhere, as one of the current thread.
    pub fn record(&self, name: impl Into<Cow<'static, str>>, start: Instant, duration: Duration) {
        if let Some(recorder) = &self.recorder {
            lock(recorder).record(name.into(), start, duration);
        }
    }

    /// The spans so far as a table, the longest total first: calls, total, mean and longest time, and the total's percentage of
    /// the time since the profiler was made. Spans nest and threads overlap, so percentages do not add up to 100. Empty if it is
    /// off.
    pub fn summary(&self) -> String {
        let Some(recorder) = &self.recorder else {
            return String::new();
        };
        let (totals, elapsed) = {
            let recorder = lock(recorder);
            (recorder.totals.clone(), recorder.began.elapsed())
        };
        summary(totals, elapsed)
    }

    /// How many single spans the trace lacks because there were more than [`max_events`](Self::max_events).
    pub fn num_dropped(&self) -> u64 {
        self.recorder
            .as_ref()
            .map_or(0, |recorder| lock(recorder).num_dropped)
    }

    /// Writes the trace, if one is wanted, and gives its path. It may be called again later, with more in it.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write_trace(&self) -> Result<Option<PathBuf>, ProfilerError> {
        let (Some(recorder), Some(path)) = (&self.recorder, &self.trace) else {
            return Ok(None);
        };
        let path = trace_path(path, self.global_rank);
        let recorder = lock(recorder);
        if recorder.num_dropped > 0 {
            tracing::warn!(
                "the trace '{}' has the first {} spans and lacks {}; raise `max_events`",
                path.display(),
                recorder.events.len(),
                recorder.num_dropped
            );
        }
        match write_trace(&path, &recorder, self.global_rank) {
            Ok(()) => Ok(Some(path)),
            Err(source) => Err(ProfilerError::Io { path, source }),
        }
    }

    /// Prints the summary on standard output and writes the trace; a trace that cannot be written is a warning. Nothing happens
    /// if it is off.
    pub fn report(&self) {
        if !self.is_on() {
            return;
        }
        crate::progress::print_line(&self.summary());
        match self.write_trace() {
            Ok(Some(path)) => tracing::info!("the trace is in '{}'", path.display()),
            Ok(None) => {}
            Err(error) => tracing::warn!("{}", ErrorChain(&error)),
        }
    }
}

/// A panic elsewhere leaves at worst one span out.
fn lock(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A span that is being measured; it is recorded when it is dropped.
#[must_use = "a span that is dropped at once measures nothing"]
#[derive(Debug)]
pub struct Span(Option<Running>);

#[derive(Debug)]
struct Running {
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
        if let Some(Running {
            recorder,
            name,
            start,
        }) = self.0.take()
        {
            let duration = start.elapsed();
            lock(&recorder).record(name, start, duration);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(profiler: &Profiler) -> MutexGuard<'_, Recorder> {
        lock(profiler.recorder.as_ref().unwrap())
    }

    #[test]
    fn off_records_nothing_until_it_is_turned_on() {
        let off = Profiler::default();
        off.span("a").stop();
        off.record("a", Instant::now(), Duration::from_secs(1));
        off.report();
        assert!(!off.is_on() && off.summary().is_empty() && off.num_dropped() == 0);
        let on = Profiler::off().chrome_trace("unused.json");
        on.span("a").stop();
        assert_eq!(recorder(&on).events.len(), 1);
    }

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
        let recorder = recorder(&profiler);
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
        assert_eq!(recorder(&profiler).totals.len(), 1);
        span.stop();
        let totals = recorder(&profiler).totals.clone();
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
