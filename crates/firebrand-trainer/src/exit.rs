use std::error::Error as StdError;
use std::io::Write;
use std::process::ExitCode;

use firebrand_core::{BoxError, ErrorChain};

use crate::Error;
use crate::signals::{Interrupt, SignalGuard};

/// Runs a program: what `main` returns.
///
/// An error is shown once, on standard error, with its causes. The exit code is 0, 130 after Ctrl+C and 143 after SIGTERM (with
/// the checkpoint written), 2 for a usage error, and 1 for every other error.
///
/// A program that started the other ranks itself waits for them when it is done, since they may still have something to do after
/// the fit: for at most `FIREBRAND_TIMEOUT` seconds (30 minutes). One that fails meanwhile is an error of the program. After an error
/// of its own, or a signal, it ends them at once. They are gone when this returns, however that came about.
///
/// ```
/// fn main() -> std::process::ExitCode {
///     firebrand_trainer::run(|| {
///         // Build a trainer, fit, test.
///         Ok(())
///     })
/// }
/// ```
pub fn run(program: impl FnOnce() -> Result<(), BoxError>) -> ExitCode {
    let outcome = program();
    let code = match outcome.and_then(|()| wait_for_ranks().map_err(BoxError::from)) {
        Ok(code) => code,
        Err(error) => {
            report(error.as_ref());
            exit_code(error.as_ref())
        }
    };
    firebrand_launch::end_children();
    ExitCode::from(code)
}

/// Waits for the ranks that this program started; returns the exit code.
fn wait_for_ranks() -> Result<u8, Error> {
    if !firebrand_launch::has_children() {
        return Ok(0);
    }
    let signals = SignalGuard::listen("ending the other ranks, which are not done yet")?;
    let asked = || {
        let asked = signals.requested();
        // Nothing is left here that could be saved and go on in another job.
        asked.filter(|interrupt| *interrupt != Interrupt::Requeue)
    };
    firebrand_launch::finish_children(|| asked().is_some())?;
    Ok(asked().map_or(0, Interrupt::exit_code))
}

fn report(error: &(dyn StdError + Send + Sync + 'static)) {
    #[cfg(feature = "cli")]
    if let Some(usage) = error.downcast_ref::<clap::Error>() {
        // It has a layout and colours of its own.
        let _ = usage.print();
        return;
    }
    let stopped = matches!(error.downcast_ref::<Error>(), Some(Error::Interrupted { .. }));
    let kind = if stopped { "" } else { "error: " };
    // A standard error that is closed is no reason to panic.
    crate::progress::suspend(|| {
        let _ = writeln!(std::io::stderr(), "{kind}{}", ErrorChain(error));
    });
}

/// The code of the first error in the chain that has one.
fn exit_code(error: &(dyn StdError + Send + Sync + 'static)) -> u8 {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            return error.exit_code();
        }
        #[cfg(feature = "cli")]
        if let Some(usage) = error.downcast_ref::<clap::Error>() {
            return u8::try_from(usage.exit_code()).unwrap_or(1);
        }
        next = error.source();
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("training the model")]
    struct Wrapped(#[source] Error);

    fn interrupted(exit_code: u8) -> Error {
        Error::Interrupted {
            signal: "SIGTERM",
            exit_code,
            global_step: 3,
            saved: "resume from x".to_owned(),
        }
    }

    fn code(error: impl Into<BoxError>) -> u8 {
        exit_code(error.into().as_ref())
    }

    #[test]
    fn every_kind_of_error_has_its_code() {
        assert_eq!(code(interrupted(143)), 143);
        assert_eq!(code(interrupted(130)), 130);
        assert_eq!(code(Error::Contradiction("this and that".to_owned())), 2);
        assert_eq!(code("the user's own"), 1);
        assert_eq!(code(Wrapped(interrupted(143))), 143);
        let missing = Error::NothingToResume {
            from: "last".to_owned(),
            searched: "runs".into(),
        };
        assert_eq!(code(missing), 1);
    }

    #[cfg(feature = "cli")]
    #[test]
    fn usage_errors_of_clap_are_usage_errors() {
        let command = clap::Command::new("program");
        assert_eq!(
            code(
                command
                    .try_get_matches_from(["program", "--unknown"])
                    .unwrap_err()
            ),
            2
        );
    }

    #[test]
    fn success_and_failure_become_exit_codes() {
        assert_eq!(
            format!("{:?}", run(|| Ok(()))),
            format!("{:?}", ExitCode::SUCCESS)
        );
        let failed = run(|| Err(interrupted(143).into()));
        assert_eq!(format!("{failed:?}"), format!("{:?}", ExitCode::from(143)));
    }
}
