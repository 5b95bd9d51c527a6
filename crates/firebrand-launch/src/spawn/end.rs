use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildEnd {
    /// Its global rank.
    pub rank: usize,
    /// The number of its process.
    pub pid: u32,
    /// Its status, unless something else in this process took it first.
    pub status: Option<ExitStatus>,
}

/// The codes of a run that was stopped and has saved: Ctrl+C and SIGTERM.
const INTERRUPTED: [i32; 2] = [130, 143];

impl ChildEnd {
    /// Whether it was neither a success nor, by its exit code (130, 143), a run that was stopped and has saved.
    pub fn is_failure(&self) -> bool {
        match self.status {
            Some(status) => !status.success() && !self.was_interrupted(),
            None => true,
        }
    }

    /// Whether its exit code says that it was stopped by Ctrl+C (130) or SIGTERM (143) and has saved.
    pub fn was_interrupted(&self) -> bool {
        self.status
            .and_then(|status| status.code())
            .is_some_and(|code| INTERRUPTED.contains(&code))
    }

    /// The exit code as a shell gives it: 128 and its number for a signal.
    pub fn exit_code(&self) -> u8 {
        let code = self
            .status
            .and_then(|status| status.code().or_else(|| Some(128 + status.signal()?)));
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }
}

impl fmt::Display for ChildEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(status) = self.status else {
            return f.write_str("it ended, and its exit code is not known: SIGCHLD is ignored, or something else waited for it");
        };
        match (status.code(), status.signal()) {
            (Some(code), _) => write!(f, "it ended with exit code {code}"),
            (None, Some(signal)) => {
                write!(f, "it was killed by signal {signal}")?;
                if let Some((name, meaning)) = signal_in_words(signal) {
                    write!(f, " ({name}{meaning})")?;
                }
                Ok(())
            }
            (None, None) => write!(f, "it ended with {status}"),
        }
    }
}

fn signal_in_words(signal: i32) -> Option<(&'static str, &'static str)> {
    use rustix::process::Signal;
    Some(match Signal::from_named_raw(signal)? {
        Signal::KILL => ("SIGKILL", ": the system does that when memory runs out"),
        Signal::TERM => ("SIGTERM", ""),
        Signal::INT => ("SIGINT", ""),
        Signal::ABORT => ("SIGABRT", ""),
        Signal::SEGV => ("SIGSEGV", ""),
        Signal::BUS => ("SIGBUS", ": shared memory or a mapped file ran out of space"),
        Signal::ILL => ("SIGILL", ": this processor lacks an instruction"),
        Signal::FPE => ("SIGFPE", ""),
        Signal::HUP => ("SIGHUP", ""),
        Signal::XCPU => ("SIGXCPU", ": the limit of processor time"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(raw: i32) -> ChildEnd {
        ChildEnd {
            rank: 1,
            pid: 7,
            status: Some(ExitStatus::from_raw(raw)),
        }
    }

    #[test]
    fn an_end_is_told_in_words_and_as_a_code() {
        for (raw, code, failure, text) in [
            (0, 0, false, "exit code 0"),
            (3 << 8, 3, true, "exit code 3"),
            (130 << 8, 130, false, "exit code 130"),
            (143 << 8, 143, false, "exit code 143"),
            (9, 137, true, "signal 9 (SIGKILL: "),
            (15, 143, true, "signal 15 (SIGTERM)"),
            (40, 168, true, "signal 40"),
        ] {
            let end = end(raw);
            assert_eq!((end.exit_code(), end.is_failure()), (code, failure), "{raw}");
            assert!(end.to_string().contains(text), "{end}");
        }
        let unknown = ChildEnd {
            status: None,
            ..end(0)
        };
        assert!(unknown.is_failure() && unknown.exit_code() == 1);
    }
}
