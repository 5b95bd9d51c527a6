//! How the values of flags, and of keys in a configuration file, are read; what is wrong is said with what is expected.

use firebrand_strategy::{GradientCompression, NonFinite, Precision};

use crate::accelerator::Accelerator;
use crate::options::{Launcher, Limit, Strategy, UnevenInputs, ValCheckInterval, parse_duration};
use crate::progress::ProgressMode;

/// Lightning's `gradient_clip_algorithm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClipAlgorithm {
    Norm,
    Value,
}

/// What the profiler gives: a table, or a trace in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProfilerChoice {
    Simple,
    ChromeTrace(std::path::PathBuf),
}

/// How every refusal of something that a later version will take begins.
const NOT_YET: &str = "not available yet in this version";

/// One of a few names; `later` are names that are known and cannot be used.
fn one_of<T: Copy>(text: &str, names: &[(&str, T)], later: &[&str]) -> Result<T, String> {
    if let Some((_, value)) = names.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    let (last, others) = names.split_last().unwrap_or((&"nothing", &[]));
    let expected = if others.is_empty() {
        (*last).to_owned()
    } else {
        format!("{} or {last}", others.join(", "))
    };
    Err(if later.contains(&text) {
        format!("{NOT_YET}: use {expected}")
    } else {
        format!("expected {expected}")
    })
}

pub(super) fn accelerator(text: &str) -> Result<Accelerator, String> {
    let names = Accelerator::ALL.map(|accelerator| (accelerator.as_str(), accelerator));
    one_of(text, &names, &[])
}

pub(super) fn precision(text: &str) -> Result<Precision, String> {
    let names = Precision::ALL.map(|precision| (precision.as_str(), precision));
    one_of(text, &names, &[])
}

pub(super) fn strategy(text: &str) -> Result<Strategy, String> {
    let names = [Strategy::Single, Strategy::Ddp].map(|strategy| (strategy.as_str(), strategy));
    one_of(text, &names, &["pipeline", "hybrid"])
}

pub(super) fn launcher(text: &str) -> Result<Launcher, String> {
    let names = [Launcher::Process, Launcher::Thread].map(|launcher| (launcher.as_str(), launcher));
    one_of(text, &names, &[])
}

pub(super) fn uneven_inputs(text: &str) -> Result<UnevenInputs, String> {
    let names = [UnevenInputs::Stop, UnevenInputs::Join].map(|inputs| (inputs.as_str(), inputs));
    one_of(text, &names, &[])
}

pub(super) fn compression(text: &str) -> Result<GradientCompression, String> {
    one_of(
        text,
        &[
            ("bf16", GradientCompression::Bf16),
            ("f16", GradientCompression::F16),
        ],
        &[],
    )
}

/// A number of devices or nodes.
pub(super) fn num_ranks(text: &str) -> Result<usize, String> {
    let number = at_least_one(text)?;
    usize::try_from(number).map_err(|error| error.to_string())
}

pub(super) fn non_finite(text: &str) -> Result<NonFinite, String> {
    one_of(text, &[("stop", NonFinite::Stop), ("skip", NonFinite::Skip)], &[])
}

pub(super) fn clip_algorithm(text: &str) -> Result<ClipAlgorithm, String> {
    one_of(
        text,
        &[("norm", ClipAlgorithm::Norm), ("value", ClipAlgorithm::Value)],
        &[],
    )
}

pub(super) fn progress(text: &str) -> Result<ProgressMode, String> {
    let names = [
        ("auto", ProgressMode::Auto),
        ("bars", ProgressMode::Bars),
        ("lines", ProgressMode::Lines),
        ("off", ProgressMode::Off),
    ];
    one_of(text, &names, &[])
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    one_of(text, &[("true", true), ("false", false)], &[])
}

pub(super) fn profiler(text: &str) -> Result<ProfilerChoice, String> {
    match text {
        "" => Err("expected 'simple', or the path of a file for a Chrome trace".to_owned()),
        "simple" => Ok(ProfilerChoice::Simple),
        path => Ok(ProfilerChoice::ChromeTrace(path.into())),
    }
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| "expected a whole number such as 10".to_owned())
}

pub(super) fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("expected a whole number of at least 1".to_owned()),
    }
}

pub(super) fn clip_limit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(limit) if limit.is_finite() && limit >= 0.0 => Ok(limit),
        _ => Err("expected a finite number above 0 such as 1.0, or 0 for no clipping".to_owned()),
    }
}

/// Seconds, from a number of them or `DD:HH:MM:SS`.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    text.parse()
        .or_else(|_| parse_duration(text).map(|time| time.as_secs()))
        .map_err(|_| {
            "expected a time as DD:HH:MM:SS, such as 00:12:00:00 for twelve hours, or a number of seconds"
                .to_owned()
        })
}

pub(super) fn limit(text: &str) -> Result<Limit, String> {
    text.parse()
}

pub(super) fn val_check_interval(text: &str) -> Result<ValCheckInterval, String> {
    match text.parse()? {
        ValCheckInterval::Fraction(0.0) | ValCheckInterval::Batches(0) => Err(
            "expected more than 0: a number of batches, a share of the epoch, or a time as DD:HH:MM:SS"
                .to_owned(),
        ),
        interval => Ok(interval),
    }
}
