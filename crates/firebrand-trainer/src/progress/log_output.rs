use std::io::{self, IsTerminal, Write};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use super::terminal::Terminal;

/// The variable with the filter of the log, in the syntax of [`EnvFilter`]: `debug`, `warn,firebrand_trainer=trace`.
const FILTER_VARIABLE: &str = "FIREBRAND_LOG";

/// Shows log messages on standard error, above the bars where there are any, and says whether it does.
///
/// `FIREBRAND_LOG` filters them (default `info`, and `warn` on every rank but the first, so that each message appears once). Where the program has set up `tracing` itself, that stays, and this does
/// nothing and returns `false`.
pub fn init_tracing(is_global_zero: bool) -> bool {
    if tracing::dispatcher::has_been_set() {
        return false;
    }
    let level = if is_global_zero {
        LevelFilter::INFO
    } else {
        LevelFilter::WARN
    };
    let filter = EnvFilter::builder()
        .with_default_directive(level.into())
        .with_env_var(FILTER_VARIABLE)
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(AboveBars)
        .finish()
        .try_init()
        .is_ok()
}

/// Writes each message as one piece, above the bars.
#[derive(Clone, Copy, Debug)]
struct AboveBars;

impl<'a> MakeWriter<'a> for AboveBars {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self
    }
}

impl Write for AboveBars {
    /// The formatter hands over a whole message at once.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        Terminal::stderr().print(&String::from_utf8_lossy(message));
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
