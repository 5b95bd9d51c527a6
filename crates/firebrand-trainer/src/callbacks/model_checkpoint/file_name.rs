use std::collections::BTreeMap;
use std::fmt::Write;

use crate::callbacks::CallbackError;

const EXPECTED: &str = "a template of literal text, {epoch}, {step} and metrics such as {val_loss:.3}, without '/' and '\\', that \
                        does not start with a dot and contains {step} so that names differ";

/// The template of a checkpoint's name. `{epoch}-{step}-{val_loss:.2}` gives `epoch=003-step=001200-val_loss=0.25`.
#[derive(Debug, PartialEq)]
pub(super) struct FileName(Vec<Piece>);

#[derive(Debug, PartialEq)]
enum Piece {
    Literal(String),
    Epoch,
    Step,
    Metric { name: String, decimals: usize },
}

impl FileName {
    pub const DEFAULT: &str = "{epoch}-{step}";

    /// # Errors
    ///
    /// If it is no template of plain file names that differ from step to step.
    pub fn parse(template: &str) -> Result<Self, CallbackError> {
        Self::pieces(template)
            .filter(|pieces| pieces.contains(&Piece::Step))
            .map(Self)
            .ok_or_else(|| CallbackError::Option {
                option: "filename",
                value: format!("'{template}'"),
                expected: EXPECTED,
            })
    }

    fn pieces(template: &str) -> Option<Vec<Piece>> {
        if template.starts_with('.') {
            return None;
        }
        let mut pieces = Vec::new();
        let mut rest = template;
        while let Some((literal, after)) = rest.split_once('{') {
            pieces.push(Self::literal(literal)?);
            let (field, after) = after.split_once('}')?;
            pieces.push(Self::field(field)?);
            rest = after;
        }
        pieces.push(Self::literal(rest)?);
        Some(pieces)
    }

    fn literal(text: &str) -> Option<Piece> {
        (!text.contains(['/', '\\', '}']) && !text.contains(char::is_control))
            .then(|| Piece::Literal(text.to_owned()))
    }

    fn field(field: &str) -> Option<Piece> {
        // A name may itself hold a colon; a format starts with a dot.
        let (name, decimals) = match field.rsplit_once(":.") {
            Some((name, decimals)) => (
                name,
                decimals
                    .trim_end_matches('f')
                    .parse()
                    .ok()
                    .filter(|digits| *digits <= 17)?,
            ),
            None => (field, 4),
        };
        match name {
            "" => None,
            "epoch" => Some(Piece::Epoch),
            "step" => Some(Piece::Step),
            name => Some(Piece::Metric {
                name: name.to_owned(),
                decimals,
            }),
        }
    }

    /// The name of the checkpoint at a step.
    pub fn format(&self, epoch: u64, global_step: u64, metrics: &BTreeMap<String, f64>) -> String {
        let mut text = String::new();
        for piece in &self.0 {
            // Writing to a `String` cannot fail.
            let _ = match piece {
                Piece::Literal(literal) => write!(text, "{literal}"),
                Piece::Epoch => write!(text, "epoch={epoch:03}"),
                Piece::Step => write!(text, "step={global_step:06}"),
                Piece::Metric { name, decimals } => {
                    let plain = name.replace(|c: char| matches!(c, '/' | '\\') || c.is_control(), "_");
                    match metrics.get(name) {
                        Some(value) => write!(text, "{plain}={value:.decimals$}"),
                        None => write!(text, "{plain}=none"),
                    }
                }
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_padded_and_plain() {
        let metrics = BTreeMap::from([("val/loss".to_owned(), 0.25), ("val_acc".to_owned(), f64::NAN)]);
        for (template, expected) in [
            (FileName::DEFAULT, "epoch=003-step=001200"),
            (
                "{epoch}-{step}-{val/loss:.2f}",
                "epoch=003-step=001200-val_loss=0.25",
            ),
            ("best {step} {val_acc:.1}", "best step=001200 val_acc=NaN"),
            ("{step}-{other}", "step=001200-other=none"),
            ("{val/loss}{step}", "val_loss=0.2500step=001200"),
        ] {
            assert_eq!(
                FileName::parse(template).unwrap().format(3, 1200, &metrics),
                expected
            );
        }
        assert_eq!(
            FileName::parse("{epoch}-{step}")
                .unwrap()
                .format(1234, 12_345_678, &metrics),
            "epoch=1234-step=12345678"
        );
    }

    #[test]
    fn templates_that_could_collide_or_escape_are_refused() {
        for template in [
            "best",
            "{epoch}",
            "../{step}",
            "a/{step}",
            ".{step}",
            "{step",
            "step}{step}",
            "{}{step}",
            "{a:.x}{step}",
        ] {
            let error = FileName::parse(template).unwrap_err().to_string();
            assert!(error.contains(template) && error.contains("{step}"), "{error}");
        }
    }
}
