use std::fmt;

/// A pattern over parameter paths: literal, but for `*`, which stands for any characters.
///
/// `head.*` matches `head.weight` and `head.norm.gamma`; `*.bias` matches every bias. A pattern without `*` matches the path
/// itself and everything below it, so `head` is the layer `head`.
///
/// ```
/// use firebrand_core::PathPattern;
///
/// assert!(PathPattern::new("encoder.*.bias").matches("encoder.layers.3.bias"));
/// assert!(PathPattern::new("head").matches("head.weight"));
/// assert!(!PathPattern::new("head").matches("header.weight"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct PathPattern(String);

impl PathPattern {
    /// A pattern as written.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    /// Whether the path is one of those that the pattern stands for.
    pub fn matches(&self, path: &str) -> bool {
        let mut pieces = self.0.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = path.strip_prefix(first) else {
            return false;
        };
        let mut last = None;
        for piece in pieces {
            if let Some(middle) = last.replace(piece) {
                match rest.find(middle) {
                    Some(at) => rest = rest.get(at + middle.len()..).unwrap_or_default(),
                    None => return false,
                }
            }
        }
        match last {
            Some(end) => rest.ends_with(end),
            None => rest.is_empty() || rest.starts_with('.'),
        }
    }
}

impl From<&str> for PathPattern {
    fn from(pattern: &str) -> Self {
        Self::new(pattern)
    }
}

impl From<String> for PathPattern {
    fn from(pattern: String) -> Self {
        Self(pattern)
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::PathPattern;

    #[test]
    fn stars_stand_for_anything() {
        let cases = [
            ("*", "a.b", true),
            ("a*", "a.b", true),
            ("*.b", "a.b", true),
            ("*.b", "a.b.c", false),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.c", false),
            ("a.*.c.*", "a.b.c.d", true),
            ("a", "a", true),
            ("a", "a.b", true),
            ("a", "ab", false),
            ("a.b.", "a.b", false),
            ("ab*ba", "aba", false),
        ];
        for (pattern, path, expected) in cases {
            assert_eq!(
                PathPattern::new(pattern).matches(path),
                expected,
                "{pattern} {path}"
            );
        }
    }
}
