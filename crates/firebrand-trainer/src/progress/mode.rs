use std::io::{IsTerminal, stderr};

/// How the progress of a run is shown, on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ProgressMode {
    /// Bars on a capable terminal, else lines: where standard error is no terminal, `TERM` is `dumb`, or `CI` is set.
    #[default]
    Auto,
    /// Bars on any terminal, else lines.
    Bars,
    /// Plain lines: at the start and end of each stage, and now and then in between.
    Lines,
    /// Nothing, as on all ranks but the first.
    Off,
}

impl ProgressMode {
    /// The mode with `Auto` decided, and with `Bars` only where there is a terminal to draw them on.
    pub(super) fn resolve(self) -> Self {
        let variable = |name| std::env::var(name).ok();
        self.resolve_for(
            stderr().is_terminal(),
            variable("TERM").as_deref(),
            variable("CI").as_deref(),
        )
    }

    fn resolve_for(self, terminal: bool, term: Option<&str>, ci: Option<&str>) -> Self {
        let capable = term.is_some_and(|term| term != "dumb") || cfg!(windows);
        let in_ci = ci.is_some_and(|ci| !ci.is_empty() && ci != "false" && ci != "0");
        match self {
            Self::Auto if terminal && capable && !in_ci => Self::Bars,
            Self::Bars if terminal && capable => Self::Bars,
            Self::Auto | Self::Bars => Self::Lines,
            Self::Lines | Self::Off => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ProgressMode::{Auto, Bars, Lines, Off};

    #[test]
    fn bars_need_a_terminal() {
        let xterm = Some("xterm");
        for (mode, terminal, term, ci, expected) in [
            (Auto, true, xterm, None, Bars),
            (Auto, false, xterm, None, Lines),
            (Auto, true, Some("dumb"), None, Lines),
            (Auto, true, None, None, Lines),
            (Auto, true, xterm, Some("true"), Lines),
            (Auto, true, xterm, Some("false"), Bars),
            (Bars, true, xterm, Some("true"), Bars),
            (Bars, false, xterm, None, Lines),
            (Lines, true, xterm, None, Lines),
            (Off, true, xterm, None, Off),
        ] {
            // On Windows a terminal needs no `TERM`.
            if cfg!(windows) && term.is_none() {
                continue;
            }
            assert_eq!(
                mode.resolve_for(terminal, term, ci),
                expected,
                "{mode:?} {terminal} {term:?} {ci:?}"
            );
        }
    }
}
