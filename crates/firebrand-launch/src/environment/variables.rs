use crate::{Error, Result};

/// Looks up environment variables and turns them into numbers, with errors that name them.
///
/// A variable with an empty value counts as not set: `RANK= ./program` is how a shell takes one away.
#[derive(Clone, Copy)]
pub(crate) struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

/// The most processes or nodes of a run. A larger number is a mistake, and products of two of them must not overflow.
const MAX_NUMBER: usize = 1 << 24;

impl<'a> Variables<'a> {
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup }
    }

    pub fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name)
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty())
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// The first of several variables that is set, with its name.
    pub fn first<'n>(&self, names: &[&'n str]) -> Option<(&'n str, String)> {
        names.iter().find_map(|name| Some((*name, self.text(name)?)))
    }

    /// A number from 0, if the variable is set.
    pub fn number(&self, name: &str) -> Result<Option<usize>> {
        self.text(name).map(|value| parse(name, &value)).transpose()
    }

    /// A number from 1, if the variable is set.
    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        match self.number(name)? {
            Some(0) => Err(bad(
                name,
                "0",
                "is not a positive number",
                "set it to 1 or more, or unset it",
            )),
            number => Ok(number),
        }
    }

    /// The first of several variables that is set, as a number from 0, with its name.
    pub fn first_number<'n>(&self, names: &[&'n str]) -> Result<Option<(&'n str, usize)>> {
        self.first(names)
            .map(|(name, value)| Ok((name, parse(name, &value)?)))
            .transpose()
    }

    /// The first of several variables that is set, as a number from 1.
    pub fn first_count(&self, names: &[&str]) -> Result<Option<usize>> {
        match self.first(names) {
            Some((name, _)) => self.count(name),
            None => Ok(None),
        }
    }

    /// A number from 0 that has to be there.
    pub fn require_number(&self, name: &str, because: &str, fix: &str) -> Result<usize> {
        self.number(name)?.ok_or_else(|| missing(name, because, fix))
    }

    /// A number from 1 that has to be there.
    pub fn require_count(&self, name: &str, because: &str, fix: &str) -> Result<usize> {
        self.count(name)?.ok_or_else(|| missing(name, because, fix))
    }

    /// The number of a job or of a step, which may be large.
    pub fn job_number(&self, name: &str) -> Result<Option<u64>> {
        self.text(name)
            .map(|value| {
                value.parse().map_err(|_| {
                    bad(
                        name,
                        &value,
                        "is not a whole number",
                        "unset it, or start the job again",
                    )
                })
            })
            .transpose()
    }

    /// A port, if the variable is set.
    pub fn port(&self, name: &str) -> Result<Option<u16>> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        match value.parse::<u16>() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(bad(
                name,
                &value,
                "is not a port",
                "set it to a number from 1 to 65535",
            )),
        }
    }

    /// How often the run was started again, if the variable is set.
    pub fn restarts(&self, name: &str) -> Result<u32> {
        let count = self.number(name)?.unwrap_or(0);
        u32::try_from(count).map_err(|_| bad(name, &count.to_string(), "is too large", "unset it"))
    }
}

fn parse(name: &str, value: &str) -> Result<usize> {
    match value.parse() {
        Ok(number) if number <= MAX_NUMBER => Ok(number),
        Ok(_) => Err(bad(
            name,
            value,
            "is more than any run has",
            "set it as the launcher would, or unset it",
        )),
        Err(_) => Err(bad(
            name,
            value,
            "is not a whole number",
            "set it to a number in decimal digits, or unset it",
        )),
    }
}

pub(crate) fn bad(name: &str, value: &str, problem: &str, fix: &str) -> Error {
    Error::Variable {
        name: name.to_owned(),
        value: shown(value),
        problem: problem.to_owned(),
        fix: fix.to_owned(),
    }
}

pub(crate) fn missing(name: &str, because: &str, fix: &str) -> Error {
    Error::Missing {
        name: name.to_owned(),
        because: because.to_owned(),
        fix: fix.to_owned(),
    }
}

/// A value for a message: cut after 200 characters, with control characters escaped, since they may steer a terminal.
pub(crate) fn shown(value: &str) -> String {
    const LONGEST: usize = 200;
    let mut text = String::new();
    for c in value.chars().take(LONGEST) {
        match c.is_control() {
            true => text.extend(c.escape_default()),
            false => text.push(c),
        }
    }
    if value.chars().nth(LONGEST).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_variable_the_value_and_the_fix() {
        let lookup = |name: &str| match name {
            "RANK" => Some("one".to_owned()),
            "WORLD_SIZE" => Some("0".to_owned()),
            "MASTER_PORT" => Some("70000".to_owned()),
            "NODE_RANK" => Some(" 3 ".to_owned()),
            "LONG" => Some(format!("\u{1b}[2J{}", "x".repeat(1000))),
            "HUGE" => Some(usize::MAX.to_string()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        let variables = Variables::new(&lookup);
        let error = variables.number("RANK").unwrap_err().to_string();
        assert!(
            error.contains("RANK=one") && error.contains("not a whole number") && error.contains("unset it"),
            "{error}"
        );
        for (error, expected) in [
            (variables.count("WORLD_SIZE").unwrap_err(), "WORLD_SIZE=0"),
            (variables.port("MASTER_PORT").unwrap_err(), "MASTER_PORT=70000"),
            (variables.count("HUGE").unwrap_err(), "more than any run has"),
        ] {
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert_eq!(variables.number("NODE_RANK").unwrap(), Some(3));
        assert_eq!(variables.number("EMPTY").unwrap(), None);
        let error = variables.number("LONG").unwrap_err().to_string();
        assert!(error.len() < 400 && !error.contains('\u{1b}'), "{error}");
    }
}
