use std::collections::BTreeMap;
use std::fmt;

use firebrand_core::ErrorChain;

/// What a callback finds wrong. The trainer adds which callback it was, and in which event.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CallbackError {
    /// An option of the callback cannot have its value.
    #[error("{option}: {value} is not {expected}")]
    Option {
        /// The option, by its name in the callback's builder.
        option: &'static str,
        /// The value that was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// The metric that is monitored was not logged.
    #[error("the monitored metric '{metric}' was not logged; {logged}")]
    MissingMetric {
        /// The metric that was asked for.
        metric: String,
        /// What was logged instead.
        logged: String,
    },
}

impl CallbackError {
    pub(super) fn missing(metric: &str, metrics: &BTreeMap<String, f64>) -> Self {
        const SHOWN: usize = 20;
        let mut names: Vec<&str> = metrics.keys().map(String::as_str).take(SHOWN).collect();
        let more = metrics.len() - names.len();
        let more = format!("{more} more");
        if metrics.len() > SHOWN {
            names.push(&more);
        }
        let logged = if names.is_empty() {
            "nothing was: call `step.log` in the module's steps".to_owned()
        } else {
            format!("these were: {}", names.join(", "))
        };
        Self::MissingMetric {
            metric: metric.to_owned(),
            logged,
        }
    }
}

impl fmt::Debug for CallbackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ErrorChain(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_metrics_are_cut() {
        let metrics: BTreeMap<String, f64> = (0..25).map(|n| (format!("m{n:02}"), 0.0)).collect();
        let text = CallbackError::missing("val_loss", &metrics).to_string();
        assert!(
            text.contains("'val_loss'") && text.contains("m00, m01") && text.ends_with("m19, 5 more"),
            "{text}"
        );
        let text = CallbackError::missing("val_loss", &BTreeMap::new()).to_string();
        assert!(text.contains("step.log"), "{text}");
    }
}
