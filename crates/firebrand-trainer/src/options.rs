//! The types of a trainer's options.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How the ranks of a run work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Strategy {
    /// One rank has everything.
    Single,
    /// Data parallel: every rank has the whole model and a part of the data.
    Ddp,
}

impl Strategy {
    /// One rank has everything.
    #[must_use]
    pub fn single_device() -> Self {
        Self::Single
    }

    /// Data parallel: every rank has the whole model and a part of the data, and gradients are summed over the ranks while the
    /// backward pass goes on.
    #[must_use]
    pub fn ddp() -> Self {
        Self::Ddp
    }

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Ddp => "ddp",
        }
    }
}

/// What the ranks are that the trainer starts itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Launcher {
    /// Processes: the program runs once for each rank.
    #[default]
    Process,
    /// Threads of this process, for [`Trainer::fit_with`](crate::Trainer::fit_with), in which each rank makes a module of its own.
    ///
    /// Threads start at once, and a debugger or profiler sees all ranks. They share what Burn has once per process: its random
    /// generators, so that a step that draws numbers (dropout) is not reproducible with several ranks, and the locks of its graphs.
    /// A rank that crashes takes all with it. Ranks on several nodes are processes.
    Thread,
}

impl Launcher {
    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Thread => "thread",
        }
    }
}

/// What happens when a rank has no batch left in an epoch and others have, which only streams let happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum UnevenInputs {
    /// The epoch is over for all: what the others have left is not used.
    #[default]
    Stop,
    /// The others go on, and an update is the mean over those that have a batch. Those that have none still take part in the
    /// communication, which PyTorch calls `join`. Layers that communicate themselves (batch norm over ranks) and manual optimization
    /// do not go with it.
    Join,
}

impl UnevenInputs {
    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Join => "join",
        }
    }
}

/// A number of batches, or a share of all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Limit {
    /// At most this many batches.
    Batches(u64),
    /// A share of all batches, from 0 to 1.
    Fraction(f64),
}

impl Limit {
    /// No limit.
    pub const ALL: Self = Self::Fraction(1.0);

    /// Whether nothing is left.
    pub(crate) fn is_none(self) -> bool {
        matches!(self, Self::Batches(0) | Self::Fraction(0.0))
    }

    /// The number of batches out of `total`, which is unknown for a stream; `None` is no limit.
    pub(crate) fn of(self, total: Option<u64>) -> Option<u64> {
        match self {
            Self::Batches(count) => Some(total.map_or(count, |total| count.min(total))),
            Self::Fraction(share) if share >= 1.0 => total,
            Self::Fraction(share) => total.map(|total| (total as f64 * share) as u64),
        }
    }
}

impl From<u64> for Limit {
    fn from(batches: u64) -> Self {
        Self::Batches(batches)
    }
}

impl From<f64> for Limit {
    fn from(share: f64) -> Self {
        Self::Fraction(share)
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(batches) = text.parse::<u64>() {
            return Ok(Self::Batches(batches));
        }
        match text.parse::<f64>() {
            Ok(share) if (0.0..=1.0).contains(&share) => Ok(Self::Fraction(share)),
            _ => Err("expected a number of batches such as 10, or a share of all from 0.0 to 1.0".to_owned()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batches(batches) => write!(f, "{batches}"),
            Self::Fraction(share) => write!(f, "{share:?}"),
        }
    }
}

/// How often the validation runs within an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValCheckInterval {
    /// After a share of the epoch's batches, from just above 0 to 1; 1.0 is once at the end.
    Fraction(f64),
    /// After this many training batches; over epoch borders if `check_val_every_n_epoch` is off.
    Batches(u64),
    /// After this much time.
    Time(Duration),
}

impl FromStr for ValCheckInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(':') {
            return parse_duration(text).map(Self::Time);
        }
        match text.parse::<Limit>() {
            Ok(Limit::Batches(batches)) => Ok(Self::Batches(batches)),
            Ok(Limit::Fraction(share)) => Ok(Self::Fraction(share)),
            Err(_) => Err(
                "expected a number of batches such as 100, a share of the epoch such as 0.25, or a time as \
                           DD:HH:MM:SS"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for ValCheckInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(share) => write!(f, "{share:?}"),
            Self::Batches(batches) => write!(f, "{batches}"),
            Self::Time(time) => f.write_str(&format_duration(*time)),
        }
    }
}

/// Parses `DD:HH:MM:SS`, as Lightning writes times.
///
/// # Errors
///
/// What was expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected =
        || format!("expected a time as DD:HH:MM:SS, such as 00:12:00:00 for twelve hours, and got '{text}'");
    let parts: Vec<u64> = text
        .split(':')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| expected())?;
    match parts.as_slice() {
        [days, hours, minutes, seconds] => Ok(Duration::from_secs(
            ((days * 24 + hours) * 60 + minutes) * 60 + seconds,
        )),
        _ => Err(expected()),
    }
}

/// Formats a time as `DD:HH:MM:SS`.
pub fn format_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    format!("{days:02}:{hours:02}:{minutes:02}:{:02}", seconds % 60)
}

impl Serialize for ValCheckInterval {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fraction(share) => serializer.serialize_f64(*share),
            Self::Batches(batches) => serializer.serialize_u64(*batches),
            Self::Time(time) => serializer.serialize_str(&format_duration(*time)),
        }
    }
}

impl<'de> Deserialize<'de> for ValCheckInterval {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Batches(u64),
            Fraction(f64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Batches(batches) => Ok(Self::Batches(batches)),
            Form::Fraction(share) => Ok(Self::Fraction(share)),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        let time = parse_duration("01:02:03:04").unwrap();
        assert_eq!(time.as_secs(), 93_784);
        assert_eq!(format_duration(time), "01:02:03:04");
        assert!(parse_duration("3 h").unwrap_err().contains("DD:HH:MM:SS"));
    }

    #[test]
    fn limits_are_shares_or_counts() {
        assert_eq!("10".parse(), Ok(Limit::Batches(10)));
        assert_eq!("0.5".parse(), Ok(Limit::Fraction(0.5)));
        assert_eq!("1.0".parse(), Ok(Limit::Fraction(1.0)));
        assert!("1.5".parse::<Limit>().is_err());
        assert_eq!(Limit::Fraction(0.5).of(Some(9)), Some(4));
        assert_eq!(Limit::Batches(5).of(None), Some(5));
        assert_eq!(Limit::ALL.of(None), None);
    }
}
