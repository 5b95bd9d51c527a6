use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use firebrand_launch::environment_variable;
use firebrand_launch::slurm::job_to_requeue;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, exit};

use crate::Error;

/// A second Ctrl+C counts only so much later: a terminal may deliver one press twice.
const SECOND_PRESS: Duration = Duration::from_millis(500);

/// A request from outside to finish the step, save and leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// SIGTERM: the job is preempted.
    Terminate,
    /// Ctrl+C.
    Keyboard,
    /// SIGUSR1 in a job of Slurm: its time is nearly up.
    Requeue,
}

impl Interrupt {
    /// The exit code that shells expect: 128 and the number of the signal.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Terminate => 143,
            Self::Keyboard => 130,
            // The job goes on later: nothing has failed.
            Self::Requeue => 0,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Terminate => "SIGTERM",
            Self::Keyboard => "Ctrl+C",
            Self::Requeue => "SIGUSR1",
        }
    }

    /// What stands for it among the requests.
    fn number(self) -> u8 {
        match self {
            Self::Terminate => 1,
            Self::Keyboard => 2,
            Self::Requeue => 3,
        }
    }
}

/// What the last signal asked for: 0 nothing, else its number.
static REQUESTED: AtomicU8 = AtomicU8::new(0);
static INSTALLED: OnceLock<Result<(), std::io::ErrorKind>> = OnceLock::new();
static LISTENERS: Mutex<Listeners> = Mutex::new(Listeners {
    count: 0,
    promise: "",
    first_press: None,
});

/// Who will look at the request.
struct Listeners {
    /// How many do; while none does, a signal does what it does without us.
    count: usize,
    /// What Ctrl+C will make the first of them do, in words.
    promise: &'static str,
    first_press: Option<Instant>,
}

fn listeners() -> MutexGuard<'static, Listeners> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens for signals while it lives. Several may: each rank that is a thread has one.
pub(crate) struct SignalGuard(());

impl SignalGuard {
    /// Starts to listen. The thread that waits for signals is made once per process. `promise` says what Ctrl+C will bring about.
    pub(crate) fn listen(promise: &'static str) -> Result<Self, Error> {
        let installed = INSTALLED.get_or_init(|| {
            // Outside of a job that can be requeued, SIGUSR1 does what it does without us.
            let in_job = job_to_requeue(&environment_variable).is_some();
            let wanted = [SIGINT, SIGTERM].into_iter().chain(in_job.then_some(SIGUSR1));
            let mut signals = Signals::new(wanted).map_err(|error| error.kind())?;
            std::thread::Builder::new()
                .name("firebrand-signals".to_owned())
                .spawn(move || signals.forever().for_each(handle))
                .map(drop)
                .map_err(|error| error.kind())
        });
        installed.map_err(|kind| Error::Signals(kind.into()))?;
        let mut listeners = listeners();
        if listeners.count == 0 {
            REQUESTED.store(0, Ordering::SeqCst);
            listeners.promise = promise;
            listeners.first_press = None;
        }
        listeners.count += 1;
        Ok(Self(()))
    }

    /// What a signal has asked for since listening began.
    pub(crate) fn requested(&self) -> Option<Interrupt> {
        match REQUESTED.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Interrupt::Terminate),
            2 => Some(Interrupt::Keyboard),
            _ => Some(Interrupt::Requeue),
        }
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        listeners().count -= 1;
    }
}

/// Runs on the signal thread, where everything is allowed.
fn handle(signal: i32) {
    let mut listeners = listeners();
    if listeners.count == 0 {
        // Nothing to save: leave as the signal says.
        drop(listeners);
        let _ = emulate_default_handler(signal);
        return;
    }
    if signal == SIGTERM {
        REQUESTED.store(Interrupt::Terminate.number(), Ordering::SeqCst);
        return;
    }
    if signal == SIGUSR1 {
        let _ =
            REQUESTED.compare_exchange(0, Interrupt::Requeue.number(), Ordering::SeqCst, Ordering::SeqCst);
        return;
    }
    let now = Instant::now();
    match listeners.first_press {
        None => {
            listeners.first_press = Some(now);
            let _ = REQUESTED.compare_exchange(
                0,
                Interrupt::Keyboard.number(),
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            say(listeners.promise);
        }
        Some(pressed) if now.duration_since(pressed) >= SECOND_PRESS => {
            exit(i32::from(Interrupt::Keyboard.exit_code()));
        }
        Some(_) => {}
    }
}

/// Says something from a thread of its own: standard error may be a pipe that nobody reads, and the next signal must not wait
/// for it.
fn say(promise: &'static str) {
    let _ = std::thread::Builder::new()
        .name("firebrand-says".to_owned())
        .spawn(move || tracing::warn!("Ctrl+C: {promise}; press again to leave at once"));
}
