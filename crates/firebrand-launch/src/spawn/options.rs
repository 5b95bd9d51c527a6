use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use firebrand_collective::Secret;

use super::names;
use super::output::{OutputStream, Sink, standard_sink};
use crate::environment::Cluster;
use crate::{Error, Result};

/// Variables of one rank.
pub(super) type RankVariables = Arc<dyn Fn(&Cluster) -> Vec<(OsString, OsString)> + Send + Sync>;

/// What the ranks run, and how they are ended.
#[derive(Clone)]
#[must_use]
pub struct SpawnOptions {
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    pub(super) variables: Vec<(OsString, OsString)>,
    pub(super) rank_variables: RankVariables,
    pub(super) grace: Duration,
    pub(super) sink: Sink,
}

impl SpawnOptions {
    /// How long ranks have to end after SIGTERM before they are killed, unless said otherwise.
    pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);

    /// This program once more, with the same arguments.
    ///
    /// # Errors
    ///
    /// If the system does not say where this program lies.
    pub fn this_program() -> Result<Self> {
        Ok(Self::program(
            this_executable()?,
            std::env::args_os().skip(1).collect(),
        ))
    }

    /// One test of this test program. With the same arguments each rank would run all tests that this process was asked to run.
    ///
    /// `test` is the full name that the test harness prints, such as `ddp::tests::two_ranks_agree`. The rank is started as
    /// `<this program> <test> --exact --nocapture --include-ignored --test-threads=1`, so that it comes by the same code and
    /// finds itself to be a rank. It prints the harness's lines besides its own.
    ///
    /// # Errors
    ///
    /// If the system does not say where this program lies.
    pub fn for_test(test: &str) -> Result<Self> {
        let args = [
            test,
            "--exact",
            "--nocapture",
            "--include-ignored",
            "--test-threads=1",
        ];
        Ok(Self::program(
            this_executable()?,
            args.iter().map(OsString::from).collect(),
        ))
    }

    /// Any program. It has to call [`adopt`](crate::adopt), or be one that calls [`exec`](crate::exec), to end with this process.
    pub fn program(program: PathBuf, args: Vec<OsString>) -> Self {
        Self {
            program,
            args,
            variables: Vec::new(),
            rank_variables: Arc::new(|_| Vec::new()),
            grace: Self::DEFAULT_GRACE,
            sink: standard_sink(),
        }
    }

    /// Sets a variable for all ranks.
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Sets variables that differ between the ranks, besides those that every rank is started with.
    pub fn variables_of_rank(
        mut self,
        variables: impl Fn(&Cluster) -> Vec<(OsString, OsString)> + Send + Sync + 'static,
    ) -> Self {
        self.rank_variables = Arc::new(variables);
        self
    }

    /// Hands the secret of the job on to the ranks, in their environment and never in their arguments. If `FIREBRAND_SECRET` or
    /// `FIREBRAND_SECRET_FILE` is set, the ranks have it from there already.
    pub fn secret(self, secret: &Secret) -> Self {
        let inherited = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if inherited(names::SECRET) || inherited(names::SECRET_FILE) {
            return self;
        }
        self.variable(names::SECRET, OsString::from_vec(secret.as_bytes().to_vec()))
    }

    /// How long the ranks have to end after SIGTERM before they are killed, when the [`Children`](crate::Children) are dropped.
    /// Default: [`DEFAULT_GRACE`](Self::DEFAULT_GRACE).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Where what the ranks write goes, whole lines with their prefix, from threads of their own. Default: to the same stream of
    /// this process.
    pub fn output(mut self, sink: impl Fn(OutputStream, &[u8]) + Send + Sync + 'static) -> Self {
        self.sink = Arc::new(sink);
        self
    }
}

impl std::fmt::Debug for SpawnOptions {
    /// Without the variables, which may hold the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpawnOptions")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

fn this_executable() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| {
        Error::system(
            "the path of this program, which the other ranks run, is not known",
            error,
        )
    })
}
