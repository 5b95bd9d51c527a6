use std::time::Duration;

use firebrand_collective::Backend;

use crate::Result;
use crate::environment::bad;

/// How ranks come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinOptions {
    /// The deadline of every operation between ranks, and of their coming together; default 30 minutes, or `FIREBRAND_TIMEOUT`
    /// seconds.
    pub timeout: Duration,
    /// After how long without a sign of life a rank counts as dead; default 30 seconds.
    pub silence: Duration,
    /// How bytes move between ranks; default `auto`, or `FIREBRAND_COLLECTIVE`.
    pub backend: Backend,
    /// How often a rank that waits for others says for whom, on standard error; default one minute.
    pub notice: Duration,
}

impl Default for JoinOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(1800),
            silence: Duration::from_secs(30),
            backend: Backend::Auto,
            notice: Duration::from_secs(60),
        }
    }
}

impl JoinOptions {
    /// The variables that [`from_environment`](Self::from_environment) looks at.
    pub const VARIABLES: [&str; 2] = ["FIREBRAND_TIMEOUT", "FIREBRAND_COLLECTIVE"];

    /// The defaults, and what the environment says instead.
    ///
    /// # Errors
    ///
    /// If a variable has a value that it cannot have.
    pub fn from_environment(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        // An empty value counts as none.
        let lookup = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let [timeout, collective] = Self::VARIABLES;
        let mut options = Self::default();
        if let Some(text) = lookup(timeout) {
            let seconds = text
                .parse::<f64>()
                .ok()
                .filter(|seconds| *seconds > 0.0 && *seconds < 1e9);
            let seconds = seconds.ok_or_else(|| {
                bad(
                    timeout,
                    &text,
                    "is no number of seconds above 0",
                    "set it to one, such as 300",
                )
            })?;
            options.timeout = Duration::from_secs_f64(seconds);
            options.silence = options.silence.min(options.timeout);
        }
        if let Some(text) = lookup(collective) {
            options.backend = text.parse().map_err(|_| {
                bad(
                    collective,
                    &text,
                    "is no way to move bytes",
                    "choose auto, shm or tcp",
                )
            })?;
        }
        Ok(options)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_deadline_and_backend() {
        let options = JoinOptions::from_environment(&|name| match name {
            "FIREBRAND_TIMEOUT" => Some("2.5".to_owned()),
            "FIREBRAND_COLLECTIVE" => Some("tcp".to_owned()),
            _ => None,
        })
        .unwrap();
        assert_eq!(options.timeout, Duration::from_millis(2500));
        assert_eq!(
            (options.silence, options.backend),
            (Duration::from_millis(2500), Backend::Tcp)
        );
        for (variable, value) in [("FIREBRAND_TIMEOUT", "-1"), ("FIREBRAND_COLLECTIVE", "udp")] {
            let found = JoinOptions::from_environment(&|name| (name == variable).then(|| value.to_owned()));
            let text = found.unwrap_err().to_string();
            assert!(text.contains(variable) && text.contains(value), "{text}");
        }
    }
}
