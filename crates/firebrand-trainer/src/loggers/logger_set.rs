use super::{LogRow, Logger, LoggerError, RunDirectory};

/// All loggers of a run, behind which none of them can stop it.
///
/// A logger that fails, as on a full disk, is warned about once and goes on being called; [`finish`](Self::finish)
/// reports what went wrong.
#[derive(Default)]
pub struct Loggers {
    members: Vec<Member>,
}

struct Member {
    logger: Box<dyn Logger>,
    failure: Option<LoggerFailure>,
}

/// What went wrong with one logger in the course of a run.
#[derive(Debug, thiserror::Error)]
#[error(
    "the logger '{logger}' failed {num_errors} time(s), so what it wrote is not complete; first: {first}"
)]
#[non_exhaustive]
pub struct LoggerFailure {
    /// The name of the logger.
    pub logger: &'static str,
    /// How many calls failed.
    pub num_errors: u64,
    /// The first error.
    #[source]
    pub first: LoggerError,
}

impl Loggers {
    /// No loggers: everything is ignored.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a logger.
    pub fn push(&mut self, logger: Box<dyn Logger>) {
        self.members.push(Member {
            logger,
            failure: None,
        });
    }

    /// Whether there are no loggers, so that no value need be read for them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The number of loggers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Opens every logger; see [`Logger::begin`].
    ///
    /// # Errors
    ///
    /// The first logger's error that cannot open its files: before training starts, a user would rather know.
    pub fn begin(&mut self, run: &RunDirectory, resumed_at: Option<u64>) -> Result<(), LoggerError> {
        for member in &mut self.members {
            member.failure = None;
            member.logger.begin(run, resumed_at)?;
        }
        Ok(())
    }

    /// Writes the resolved configuration to every logger.
    pub fn log_hparams(&mut self, hparams: &toml::Table) {
        self.for_each(|logger| logger.log_hparams(hparams));
    }

    /// Writes values to every logger.
    pub fn log_metrics(&mut self, row: &LogRow<'_>) {
        self.for_each(|logger| logger.log_metrics(row));
    }

    /// Writes a distribution to every logger that can.
    pub fn log_histogram(&mut self, step: u64, name: &str, values: &[f64]) {
        self.for_each(|logger| logger.log_histogram(step, name, values));
    }

    /// Brings all that was logged to the disk; to be called before each checkpoint.
    pub fn flush(&mut self) {
        self.for_each(|logger| logger.flush());
    }

    /// Closes every logger, and returns the failures of the whole run, which are also warned about.
    #[must_use = "what was logged may not be complete"]
    pub fn finish(&mut self) -> Vec<LoggerFailure> {
        self.for_each(|logger| logger.finish());
        let failures: Vec<_> = self
            .members
            .iter_mut()
            .filter_map(|member| member.failure.take())
            .collect();
        for failure in &failures {
            tracing::warn!("{failure}");
        }
        failures
    }

    fn for_each(&mut self, mut call: impl FnMut(&mut dyn Logger) -> Result<(), LoggerError>) {
        for member in &mut self.members {
            let Err(first) = call(member.logger.as_mut()) else {
                continue;
            };
            match &mut member.failure {
                Some(failure) => failure.num_errors += 1,
                None => {
                    let logger = member.logger.name();
                    tracing::warn!(
                        "the logger '{logger}' failed, training goes on, and further errors are counted: {first}"
                    );
                    member.failure = Some(LoggerFailure {
                        logger,
                        num_errors: 1,
                        first,
                    });
                }
            }
        }
    }
}

impl FromIterator<Box<dyn Logger>> for Loggers {
    fn from_iter<I: IntoIterator<Item = Box<dyn Logger>>>(loggers: I) -> Self {
        let mut set = Self::new();
        loggers.into_iter().for_each(|logger| set.push(logger));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Recording {
        calls: Arc<Mutex<Vec<String>>>,
        fails: bool,
    }

    impl Recording {
        fn call(&self, call: String) -> Result<(), LoggerError> {
            self.calls.lock().unwrap().push(call);
            let source = std::io::ErrorKind::StorageFull.into();
            if self.fails {
                Err(LoggerError::io("append to", "log".as_ref(), source))
            } else {
                Ok(())
            }
        }
    }

    impl Logger for Recording {
        fn name(&self) -> &'static str {
            "recording"
        }
        fn begin(&mut self, _: &RunDirectory, resumed_at: Option<u64>) -> Result<(), LoggerError> {
            self.calls.lock().unwrap().push(format!("begin {resumed_at:?}"));
            Ok(())
        }
        fn log_hparams(&mut self, hparams: &toml::Table) -> Result<(), LoggerError> {
            self.call(format!("hparams {}", hparams.len()))
        }
        fn log_metrics(&mut self, row: &LogRow<'_>) -> Result<(), LoggerError> {
            self.call(format!("metrics {} {:?}", row.step, row.values))
        }
        fn flush(&mut self) -> Result<(), LoggerError> {
            self.call("flush".to_owned())
        }
        fn finish(&mut self) -> Result<(), LoggerError> {
            self.call("finish".to_owned())
        }
    }

    #[test]
    fn a_failing_logger_neither_stops_nor_hides_the_others() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(root.path(), "digits").unwrap();
        let bad = Recording {
            fails: true,
            ..Recording::default()
        };
        let good = Recording::default();
        let boxed: [Box<dyn Logger>; 2] = [Box::new(bad.clone()), Box::new(good.clone())];
        let mut loggers: Loggers = boxed.into_iter().collect();

        loggers.begin(&run, Some(5)).unwrap();
        loggers.log_hparams(&toml::Table::new());
        loggers.log_metrics(&LogRow {
            step: 6,
            epoch: 0,
            values: &[("loss".to_owned(), 0.5)],
        });
        loggers.log_histogram(6, "weights", &[1.0]);
        loggers.flush();
        let failures = loggers.finish();

        let expected = [
            "begin Some(5)",
            "hparams 0",
            "metrics 6 [(\"loss\", 0.5)]",
            "flush",
            "finish",
        ];
        assert_eq!(*bad.calls.lock().unwrap(), expected);
        assert_eq!(*good.calls.lock().unwrap(), expected);
        assert_eq!(failures.len(), 1);
        assert_eq!((failures[0].logger, failures[0].num_errors), ("recording", 4));
        assert!(failures[0].to_string().contains("append to 'log'"));
        assert_eq!(loggers.finish().len(), 1, "a second run counts anew");
    }
}
