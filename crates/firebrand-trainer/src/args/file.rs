use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, FromArgMatches};
use firebrand_strategy::LossScalerOptions;
use serde::de::DeserializeOwned;
use toml::Value;

use super::options::Options;
use crate::{Error, TrainerConfig};

/// The table of the module's own hyper-parameters.
const MODULE: &str = "module";
/// How a saved configuration writes `gradient_clip_val` and `gradient_clip_algorithm`: `{ Norm = 1.0 }`.
const GRADIENT_CLIP: &str = "gradient_clip";
/// Options that a program sets and no flag does: a list of paths, and a table.
const KEEP_FULL_PRECISION: &str = "keep_full_precision";
const LOSS_SCALER: &str = "loss_scaler";

/// A configuration file: options of the trainer, and a table of the module's own hyper-parameters.
#[derive(Default)]
pub(super) struct ConfigFile {
    pub(super) options: Options,
    pub(super) module: Option<toml::Table>,
    keep_full_precision: Option<Vec<String>>,
    loss_scaler: Option<LossScalerOptions>,
}

impl ConfigFile {
    /// Reads a file. Its keys are read as the flags of the same names are, so both take the same values.
    ///
    /// # Errors
    ///
    /// [`Error::ConfigFile`] with the first key that is not known or has a value that it does not take.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let fail = |reason: String| Error::ConfigFile {
            path: path.to_owned(),
            reason,
        };
        let text =
            std::fs::read_to_string(path).map_err(|error| fail(format!("it cannot be read: {error}")))?;
        let mut table: toml::Table = text
            .parse()
            .map_err(|error| fail(format!("it is not valid TOML: {error}")))?;
        let module = match table.remove(MODULE) {
            None => None,
            Some(Value::Table(module)) => Some(module),
            Some(_) => return Err(fail("'module' is not a table".to_owned())),
        };
        let keep_full_precision = without_flag(&mut table, KEEP_FULL_PRECISION).map_err(&fail)?;
        let loss_scaler = without_flag(&mut table, LOSS_SCALER).map_err(&fail)?;
        let mut flags = Vec::new();
        for (key, value) in table {
            for (key, text) in values_of(&key, &value).map_err(&fail)? {
                let flag = format!("--{}={text}", key.replace('_', "-"));
                parse(std::slice::from_ref(&flag)).map_err(|error| fail(problem(&key, &value, &error)))?;
                flags.push(flag);
            }
        }
        let options = parse(&flags).map_err(|error| fail(first_line(&error.to_string())))?;
        Ok(Self {
            options,
            module,
            keep_full_precision,
            loss_scaler,
        })
    }

    /// Puts what the file says in the place of what a configuration has, but for clipping.
    pub(super) fn apply(&self, config: &mut TrainerConfig) {
        self.options.apply(config);
        if let Some(paths) = &self.keep_full_precision {
            config.keep_full_precision.clone_from(paths);
        }
        config.loss_scaler = self.loss_scaler.or(config.loss_scaler);
    }
}

/// Takes the value of a key that no flag has.
fn without_flag<T: DeserializeOwned>(table: &mut toml::Table, key: &str) -> Result<Option<T>, String> {
    let value = table.remove(key).map(Value::try_into).transpose();
    value.map_err(|error: toml::de::Error| format!("{key}: {}", error.message()))
}

/// The text that a flag would take, by key.
fn values_of(key: &str, value: &Value) -> Result<Vec<(String, String)>, String> {
    if key == GRADIENT_CLIP {
        return clip(value).ok_or_else(|| {
            format!("{GRADIENT_CLIP} = {value}: expected {{ Norm = 1.0 }} or {{ Value = 1.0 }}, or use gradient_clip_val")
        });
    }
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Table(_) | Value::Array(_) => {
            let kind = value.type_str();
            return Err(format!(
                "'{key}' is an unexpected {kind}; only '{MODULE}' and '{LOSS_SCALER}' are tables, and only \
                 '{KEEP_FULL_PRECISION}' takes a list"
            ));
        }
        other => other.to_string(),
    };
    if key.contains('-') {
        return Err(format!(
            "unknown key '{key}'; keys have underscores: '{}'",
            key.replace('-', "_")
        ));
    }
    Ok(vec![(key.to_owned(), text)])
}

fn clip(value: &Value) -> Option<Vec<(String, String)>> {
    let mut entries = value.as_table()?.iter();
    let (Some((algorithm, limit)), None) = (entries.next(), entries.next()) else {
        return None;
    };
    let algorithm = match algorithm.as_str() {
        "Norm" => "norm",
        "Value" => "value",
        _ => return None,
    };
    if !limit.is_float() && !limit.is_integer() {
        return None;
    }
    Some(vec![
        ("gradient_clip_val".to_owned(), limit.to_string()),
        ("gradient_clip_algorithm".to_owned(), algorithm.to_owned()),
    ])
}

fn parse(flags: &[String]) -> Result<Options, clap::Error> {
    let command = clap::Command::new("")
        .no_binary_name(true)
        .disable_help_flag(true);
    let matches = Options::augment_args(command).try_get_matches_from(flags)?;
    Options::from_arg_matches(&matches)
}

/// What is wrong with one key, in the words of a file.
fn problem(key: &str, value: &Value, error: &clap::Error) -> String {
    match error.kind() {
        ErrorKind::UnknownArgument => match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(flag)) => {
                let known = flag.trim_start_matches('-').replace('-', "_");
                format!("unknown key '{key}'; did you mean '{known}'?")
            }
            _ => format!(
                "unknown key '{key}'; a key is the name of a flag of the trainer, with underscores (see --help)"
            ),
        },
        ErrorKind::ValueValidation => {
            // What the parser of the value says, without the flag around it.
            let expected = std::error::Error::source(error).map_or_else(String::new, ToString::to_string);
            format!("{key} = {value}: {expected}")
        }
        _ => format!("{key} = {value}: {}", first_line(&error.to_string())),
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
