use std::time::{Duration, Instant};

/// How fast a stage advances, the time of the stages inside it left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The position from which a resumed stage goes on.
    start: u64,
    begun: Instant,
    /// The time that is over in inner stages.
    paused: Duration,
    paused_since: Option<Instant>,
}

impl Pace {
    pub(super) fn new(start: u64, now: Instant) -> Self {
        Self {
            start,
            begun: now,
            paused: Duration::ZERO,
            paused_since: None,
        }
    }

    /// An inner stage begins.
    pub(super) fn pause(&mut self, now: Instant) {
        self.paused_since.get_or_insert(now);
    }

    /// The inner stage is over.
    pub(super) fn resume(&mut self, now: Instant) {
        if let Some(since) = self.paused_since.take() {
            self.paused += now.saturating_duration_since(since);
        }
    }

    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        let until = self.paused_since.unwrap_or(now);
        until
            .saturating_duration_since(self.begun)
            .saturating_sub(self.paused)
    }

    /// Batches per second since the start of the stage; `None` before the first.
    pub(super) fn rate(&self, position: u64, now: Instant) -> Option<f64> {
        let seconds = self.elapsed(now).as_secs_f64();
        let done = position.saturating_sub(self.start);
        (done > 0 && seconds > 0.0).then(|| done as f64 / seconds)
    }

    pub(super) fn remaining(&self, position: u64, total: u64, now: Instant) -> Option<Duration> {
        let seconds = total.saturating_sub(position) as f64 / self.rate(position, now)?;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_start_and_inner_stages_do_not_count() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut pace = Pace::new(100, begun);
        assert_eq!(pace.rate(100, at(3)), None);
        assert_eq!(pace.rate(120, at(4)), Some(5.0));
        pace.pause(at(4));
        assert_eq!(pace.rate(120, at(50)), Some(5.0));
        pace.resume(at(54));
        assert_eq!(pace.rate(130, at(56)), Some(5.0));
        assert_eq!(pace.elapsed(at(56)), Duration::from_secs(6));
        assert_eq!(pace.remaining(130, 150, at(56)), Some(Duration::from_secs(4)));
        assert_eq!(pace.remaining(160, 150, at(60)), Some(Duration::ZERO));
    }
}
