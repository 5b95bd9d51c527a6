use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;

use super::CheckpointError;

/// The deepest nesting that is written: readers of JSON commonly stop at 128.
const MAX_DEPTH: usize = 100;

/// What stands before the bits of a float that JSON has no number for.
const BITS: &str = "f64:";

/// An `f64` as JSON that gives it back bit for bit: a number if it is finite, else a string with its bits in
/// hexadecimal digits, such as `"f64:7ff0000000000000"` for infinity.
///
/// ```
/// use firebrand_trainer::checkpoint::{f64_from_json, f64_to_json};
///
/// for value in [0.1, -0.0, f64::NEG_INFINITY, f64::NAN] {
///     let back = f64_from_json(&f64_to_json(value)).unwrap();
///     assert_eq!(back.to_bits(), value.to_bits());
/// }
/// ```
pub fn f64_to_json(value: f64) -> Value {
    if value.is_finite() {
        Value::from(value)
    } else {
        Value::from(format!("{BITS}{:016x}", value.to_bits()))
    }
}

/// The `f64` that [`f64_to_json`] wrote, or `None` if it is something else.
pub fn f64_from_json(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => {
            let bits = text.strip_prefix(BITS).filter(|bits| bits.len() == 16)?;
            u64::from_str_radix(bits, 16).ok().map(f64::from_bits)
        }
        _ => None,
    }
}

/// JSON with sorted keys, two spaces of indentation and a line break at its end: equal values give equal bytes.
pub(super) fn to_bytes(value: &Value) -> Result<Vec<u8>, CheckpointError> {
    if !within_depth(value, MAX_DEPTH) {
        return Err(CheckpointError::InvalidState {
            reason: format!("it is nested more than {MAX_DEPTH} levels deep; flatten it"),
        });
    }
    let mut bytes =
        serde_json::to_vec_pretty(&Sorted(value)).map_err(|error| CheckpointError::InvalidState {
            reason: error.to_string(),
        })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Whether a value is nested at most so many levels.
fn within_depth(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(values) => levels > 0 && values.iter().all(|value| within_depth(value, levels - 1)),
        Value::Object(map) => levels > 0 && map.values().all(|value| within_depth(value, levels - 1)),
        _ => true,
    }
}

/// Serializes maps in the order of their keys, also if some crate of the build turned `preserve_order` on.
struct Sorted<'a>(&'a Value);

impl Serialize for Sorted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(values) => {
                let mut sequence = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    sequence.serialize_element(&Sorted(value))?;
                }
                sequence.end()
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| *key);
                let mut sorted = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    sorted.serialize_entry(key, &Sorted(value))?;
                }
                sorted.end()
            }
            other => other.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn keys_are_sorted_at_every_level() {
        let text =
            String::from_utf8(to_bytes(&json!({"b": [{"z": 1, "a": 2}], "a": null})).unwrap()).unwrap();
        let places: Vec<_> = ["\"a\": null", "\"b\"", "\"a\": 2", "\"z\""]
            .map(|key| text.find(key))
            .into();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
    }

    #[test]
    fn nesting_that_could_not_be_read_again_is_refused() {
        let nested = |levels| (0..levels).fold(json!(1), |value, _| json!([value]));
        let bytes = to_bytes(&nested(MAX_DEPTH)).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&bytes).unwrap(),
            nested(MAX_DEPTH)
        );
        assert!(
            to_bytes(&nested(MAX_DEPTH + 1))
                .unwrap_err()
                .to_string()
                .contains("100 levels")
        );
    }

    #[test]
    fn foreign_strings_are_no_floats() {
        for text in [
            "f64:",
            "f64:7ff",
            "f64:zzzzzzzzzzzzzzzz",
            "7ff0000000000000",
            "f64:7ff00000000000000",
        ] {
            assert_eq!(f64_from_json(&json!(text)), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn floats_survive_bit_for_bit(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            let bytes = to_bytes(&json!({"value": f64_to_json(value)})).unwrap();
            let read: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(f64_from_json(&read["value"]).unwrap().to_bits(), bits);
        }
    }
}
