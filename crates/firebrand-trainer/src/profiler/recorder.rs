use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What became of the calls of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Total {
    pub name: Cow<'static, str>,
    pub calls: u64,
    pub time: Duration,
    pub longest: Duration,
}

/// One call, for the trace. The name is an index into the totals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub name: u32,
    pub thread: u32,
    /// Nanoseconds since the recorder began.
    pub start: u64,
    pub duration: u64,
}

/// Sums up spans as they end, and keeps the first of them one by one if a trace is wanted.
#[derive(Debug)]
pub(super) struct Recorder {
    pub began: Instant,
    pub totals: Vec<Total>,
    indices: HashMap<Cow<'static, str>, u32>,
    /// The names of threads by their number.
    pub threads: HashMap<u32, String>,
    pub events: Vec<Event>,
    pub max_events: usize,
    pub num_dropped: u64,
}

impl Recorder {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            totals: Vec::new(),
            indices: HashMap::new(),
            threads: HashMap::new(),
            events: Vec::new(),
            max_events: 0,
            num_dropped: 0,
        }
    }

    pub fn record(&mut self, name: Cow<'static, str>, start: Instant, duration: Duration) {
        let index = match self.indices.get(&name) {
            Some(index) => *index,
            None => self.insert(name),
        };
        if let Some(total) = self.totals.get_mut(index as usize) {
            total.calls += 1;
            total.time += duration;
            total.longest = total.longest.max(duration);
        }
        if self.max_events == 0 {
            return;
        }
        if self.events.len() >= self.max_events {
            self.num_dropped += 1;
            return;
        }
        let thread = thread_number();
        self.threads.entry(thread).or_insert_with(|| {
            std::thread::current()
                .name()
                .map_or_else(|| format!("thread {thread}"), str::to_owned)
        });
        let start = nanoseconds(start.saturating_duration_since(self.began));
        self.events.push(Event {
            name: index,
            thread,
            start,
            duration: nanoseconds(duration),
        });
    }

    fn insert(&mut self, name: Cow<'static, str>) -> u32 {
        let index = u32::try_from(self.totals.len()).unwrap_or(u32::MAX);
        self.indices.insert(name.clone(), index);
        self.totals.push(Total {
            name,
            calls: 0,
            time: Duration::ZERO,
            longest: Duration::ZERO,
        });
        index
    }
}

/// Nanoseconds in 64 bits are enough for five centuries.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A small number for the current thread, the same for as long as it lives.
fn thread_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    thread_local!(static NUMBER: Cell<u32> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}
