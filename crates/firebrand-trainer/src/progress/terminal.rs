use std::any::Any;
use std::cell::Cell;
use std::io::{Write, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};

/// How often a bar is drawn at most, in Hz; its clock ticks at the same pace.
const DRAWS_PER_SECOND: u8 = 10;
/// How long a panic message waits for the bars to be cleared. They cannot be if the panicking thread was drawing.
const CLEAR_TIMEOUT: Duration = Duration::from_millis(500);

static STDERR: LazyLock<Arc<Terminal>> = LazyLock::new(|| {
    let target = ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND);
    Arc::new(Terminal::new(
        target,
        Some(Duration::from_secs(1) / u32::from(DRAWS_PER_SECOND)),
    ))
});

thread_local! {
    /// Whether this thread has the bars out of the way, and holds the lock on them.
    static SUSPENDED: Cell<bool> = const { Cell::new(false) };
}

/// Takes the bars on standard error out of the way, runs `f`, and draws them again below what it has written.
///
/// For output of one's own to the terminal, in a callback or a step; without bars, `f` just runs. No bar moves on while
/// it runs, so it should be short.
pub fn suspend<R>(f: impl FnOnce() -> R) -> R {
    Terminal::stderr().suspend(f)
}

/// The bars on a terminal, and the one way to write beside them.
///
/// indicatif draws nothing on a thread that is panicking, hence the other threads that do it here.
pub(super) struct Terminal {
    bars: MultiProgress,
    num_bars: AtomicUsize,
    /// How often a bar is drawn without being advanced.
    tick: Option<Duration>,
}

impl Terminal {
    pub(super) fn new(target: ProgressDrawTarget, tick: Option<Duration>) -> Self {
        Self {
            bars: MultiProgress::with_draw_target(target),
            num_bars: AtomicUsize::new(0),
            tick,
        }
    }

    /// The terminal on standard error, which all bars of a process share.
    pub(super) fn stderr() -> &'static Arc<Self> {
        &STDERR
    }

    /// Adds a bar below those that are there; `style` is called once it belongs to the terminal.
    pub(super) fn add(&self, total: Option<u64>, style: impl FnOnce(&ProgressBar)) -> ProgressBar {
        let bar = self
            .bars
            .add(ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden()));
        style(&bar);
        self.num_bars.fetch_add(1, Ordering::SeqCst);
        match self.tick {
            Some(interval) => bar.enable_steady_tick(interval),
            None => bar.tick(),
        }
        bar
    }

    /// Wipes a bar away.
    pub(super) fn remove(&self, bar: ProgressBar) {
        on_a_sound_thread(|| {
            bar.finish_and_clear();
            self.bars.remove(&bar);
            drop(bar);
        });
        self.num_bars.fetch_sub(1, Ordering::SeqCst);
    }

    /// Writes whole lines above the bars.
    pub(super) fn print(&self, text: &str) {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let above = !self.is_free() && on_a_sound_thread(|| self.bars.println(text).is_ok()) == Some(true);
        if !above {
            // A log that cannot be written is nothing to fail for.
            let _ = writeln!(stderr().lock(), "{text}");
        }
    }

    /// Runs `f` while no bar is on the screen.
    pub(super) fn suspend<R>(&self, f: impl FnOnce() -> R) -> R {
        if self.is_free() {
            f()
        } else if thread::panicking() {
            self.suspend_elsewhere(f)
        } else {
            self.suspend_here(f)
        }
    }

    /// Whether this thread may write as it likes.
    fn is_free(&self) -> bool {
        self.num_bars.load(Ordering::SeqCst) == 0 || SUSPENDED.get() || self.bars.is_hidden()
    }

    fn suspend_here<R>(&self, f: impl FnOnce() -> R) -> R {
        // indicatif panics if it cannot clear, as on a terminal that has been closed.
        if self.bars.clear().is_err() {
            return f();
        }
        // A panic in `f` must not poison the lock on the bars.
        let outcome = self.bars.suspend(|| {
            SUSPENDED.set(true);
            let outcome = catch_unwind(AssertUnwindSafe(f));
            SUSPENDED.set(false);
            outcome
        });
        outcome.unwrap_or_else(|cause: Box<dyn Any + Send>| resume_unwind(cause))
    }

    /// Suspends the bars on another thread while `f` runs on this one.
    fn suspend_elsewhere<R>(&self, f: impl FnOnce() -> R) -> R {
        let (cleared, is_cleared) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        let bars = self.bars.clone();
        let suspender = thread::Builder::new().spawn(move || {
            SUSPENDED.set(true);
            if bars.clear().is_ok() {
                bars.suspend(|| {
                    let _ = cleared.send(());
                    let _ = is_done.recv();
                });
            }
        });
        let suspended = suspender.is_ok() && is_cleared.recv_timeout(CLEAR_TIMEOUT).is_ok();
        // What `f` prints must not wait for the bars, which wait for `f`.
        SUSPENDED.set(true);
        let value = f();
        SUSPENDED.set(false);
        if cfg!(panic = "abort") {
            // The process ends here: the bars are not to come back below the message.
            std::mem::forget(done);
        } else {
            drop(done);
            if let Ok(suspender) = suspender
                && suspended
            {
                let _ = suspender.join();
            }
        }
        value
    }
}

/// Runs `f` here, or, where this thread is panicking, on another one; `None` if it cannot be run.
fn on_a_sound_thread<R: Send>(f: impl FnOnce() -> R + Send) -> Option<R> {
    if !thread::panicking() {
        return Some(f());
    }
    thread::scope(|scope| thread::Builder::new().spawn_scoped(scope, f).ok()?.join().ok())
}

#[cfg(test)]
mod tests;
