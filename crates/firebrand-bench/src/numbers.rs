use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// What was measured, by name: `overhead.small.raw_us`.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Map<String, Value>);

impl Numbers {
    /// Adds a number, rounded to a millionth, which is finer than any measurement here.
    pub(crate) fn add(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), ((value * 1e6).round() / 1e6).into());
    }

    /// A number that was added.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }

    /// Adds the numbers of a flat JSON object.
    pub(crate) fn merge(&mut self, json: &str) -> Result<()> {
        let object: Map<String, Value> =
            serde_json::from_str(json).with_context(|| format!("'{json}' is no JSON object"))?;
        for (name, value) in object {
            match value.as_f64() {
                Some(value) => self.add(name, value),
                None => bail!("{name} is {value}, not a number"),
            }
        }
        Ok(())
    }

    /// Writes everything as one flat JSON object.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.0)?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_one_flat_object() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.json");
        let mut numbers = Numbers::default();
        numbers.add("a.b", 1.234_567_8);
        numbers.merge(r#"{"a.c": 2}"#).unwrap();
        numbers.write(&path).unwrap();
        let read: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read, serde_json::json!({"a.b": 1.234568, "a.c": 2.0}));
        assert_eq!(numbers.get("a.c"), Some(2.0));
    }

    #[test]
    fn refuses_what_is_no_number() {
        let mut numbers = Numbers::default();
        assert!(
            numbers
                .merge(r#"{"a": "fast"}"#)
                .unwrap_err()
                .to_string()
                .contains("fast")
        );
        assert!(numbers.merge("Traceback").is_err());
    }
}
