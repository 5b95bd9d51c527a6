use firebrand_core::Error;
use serde::de::DeserializeOwned;

/// Reads the state of a callback.
///
/// # Errors
///
/// [`Error::State`] that names the callback and what does not fit.
pub(super) fn read_state<T: DeserializeOwned>(callback: &str, state: &serde_json::Value) -> Result<T, Error> {
    T::deserialize(state).map_err(|error| Error::State {
        what: callback.to_owned(),
        reason: error.to_string(),
    })
}

/// Numbers in a state, bit for bit, also those that JSON has no number for.
pub(super) mod exact_f64 {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    use crate::checkpoint::{f64_from_json, f64_to_json};

    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map_or(Value::Null, f64_to_json).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(None),
            value => f64_from_json(&value)
                .map(Some)
                .ok_or_else(|| serde::de::Error::custom(format!("{value} is not a number"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    struct State {
        #[serde(with = "exact_f64")]
        best: Option<f64>,
    }

    #[test]
    fn numbers_survive_text_bit_for_bit() {
        for best in [
            None,
            Some(0.1),
            Some(-0.0),
            Some(f64::NEG_INFINITY),
            Some(-f64::NAN),
        ] {
            let text = serde_json::to_string(&State { best }).unwrap();
            let back: State = read_state("C", &serde_json::from_str(&text).unwrap()).unwrap();
            assert_eq!(back.best.map(f64::to_bits), best.map(f64::to_bits), "{text}");
        }
    }

    #[test]
    fn foreign_states_are_refused_by_name() {
        for state in [
            serde_json::json!({"best": "x"}),
            serde_json::json!("best"),
            serde_json::json!({}),
        ] {
            let error = read_state::<State>("EarlyStopping", &state)
                .unwrap_err()
                .to_string();
            assert!(error.contains("EarlyStopping"), "{error}");
        }
    }
}
