use std::time::{Duration, Instant};

use super::JoinOptions;
use super::family::family;
use super::notice::say;
use crate::{ChildEnd, Children, Error, Result, SpawnOptions};

/// How long nothing is said of ranks that go on after this one is done.
const FIRST_NOTICE: Duration = Duration::from_secs(5);

/// How often the ranks are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Ends the ranks that this process started, as a program does after an error. They have a few seconds, then they are killed.
pub fn end_children() {
    let family = family().take();
    drop(family);
}

/// Whether this process started ranks that it has not ended.
pub fn has_children() -> bool {
    family().as_ref().is_some_and(|family| family.children.is_some())
}

/// Waits until the ranks that this process started have ended by themselves, as a program does at its own good end: they may
/// still have something to do. They are asked to end, and killed a few seconds later, if one of them fails, at the deadline of
/// the ranks (30 minutes, or `FIREBRAND_TIMEOUT`), and as soon as `stop` says so.
///
/// After 5 seconds, and then every [`notice`](JoinOptions::notice), it says on standard error who is waited for.
///
/// # Errors
///
/// [`Error::Child`] with the first rank that did not end well; [`Error::Ranks`] if some had not ended at the deadline.
pub fn finish_children(stop: impl Fn() -> bool) -> Result<()> {
    let Some(family) = family().take() else {
        return Ok(());
    };
    match &family.children {
        Some(children) => wait(children, family.options, stop),
        None => Ok(()),
    }
}

fn wait(children: &Children, options: JoinOptions, stop: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    let mut next_notice = FIRST_NOTICE.min(options.notice);
    loop {
        let over = children.wait(LOOK).is_ok();
        if over || children.first_failure().is_some() {
            let ended = children.shutdown(SpawnOptions::DEFAULT_GRACE);
            return outcome(children.first_failure(), &ended);
        }
        if stop() {
            children.shutdown(SpawnOptions::DEFAULT_GRACE);
            return Ok(());
        }
        let waited = begun.elapsed();
        if waited >= options.timeout {
            let late = children.running();
            children.shutdown(SpawnOptions::DEFAULT_GRACE);
            return Err(Error::Ranks(format!(
                "the ranks {late:?} have not ended {} s after rank 0 was done, and were ended; FIREBRAND_TIMEOUT sets another \
                 number of seconds",
                options.timeout.as_secs_f64()
            )));
        }
        if waited >= next_notice {
            say(&format!(
                "this rank is done and waits for the ranks {:?} to end, for at most {} s",
                children.running(),
                options.timeout.as_secs_f64()
            ));
            next_notice = waited + options.notice;
        }
    }
}

/// The first that did not end well, be it that it failed or that it was stopped and has saved.
fn outcome(failure: Option<ChildEnd>, ended: &[ChildEnd]) -> Result<()> {
    let stopped = ended.iter().find(|end| end.exit_code() != 0).copied();
    match failure.or(stopped) {
        None => Ok(()),
        Some(end) => Err(Error::Child {
            rank: end.rank,
            cause: end.to_string(),
            exit_code: end.exit_code(),
        }),
    }
}
