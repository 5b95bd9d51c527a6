use std::fmt;

use serde::Serialize;

/// What was found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    sections: Vec<Section>,
    problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct Section {
    name: &'static str,
    facts: Vec<Fact>,
}

#[derive(Debug, Serialize)]
struct Fact {
    name: String,
    value: String,
}

/// Something that stands in the way of a run.
#[derive(Debug, Serialize)]
struct Problem {
    what: String,
    fix: String,
}

impl Report {
    /// Begins a section; facts belong to the last one.
    pub fn section(&mut self, name: &'static str) {
        self.sections.push(Section {
            name,
            facts: Vec::new(),
        });
    }

    pub fn fact(&mut self, name: impl Into<String>, value: impl Into<String>) {
        if let Some(section) = self.sections.last_mut() {
            section.facts.push(Fact {
                name: name.into(),
                value: value.into(),
            });
        }
    }

    pub fn problem(&mut self, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.push(Problem {
            what: what.into(),
            fix: fix.into(),
        });
    }

    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(f, "{}", section.name)?;
            let width = section
                .facts
                .iter()
                .map(|fact| fact.name.chars().count())
                .max()
                .unwrap_or(0);
            for fact in &section.facts {
                writeln!(f, "  {:width$}  {}", fact.name, fact.value)?;
            }
        }
        match self.problems.len() {
            0 => writeln!(f, "No problem found."),
            count => {
                writeln!(f, "{count} {}:", if count == 1 { "problem" } else { "problems" })?;
                for problem in &self.problems {
                    writeln!(f, "  - {}\n    {}", problem.what, problem.fix)?;
                }
                Ok(())
            }
        }
    }
}

/// Bytes in the largest unit of which there is one.
pub fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_aligned_and_every_problem_has_its_fix() {
        let mut report = Report::default();
        report.section("Machine");
        report.fact("cores", "2");
        report.fact("memory", "8.0 GiB");
        assert_eq!(
            report.to_string(),
            "Machine\n  cores   2\n  memory  8.0 GiB\nNo problem found.\n"
        );
        report.problem("it is slow", "buy another");
        assert!(
            report
                .to_string()
                .ends_with("1 problem:\n  - it is slow\n    buy another\n")
        );
        assert!(report.has_problems());
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(64 << 20), "64.0 MiB");
        assert_eq!(size(3 << 29), "1.5 GiB");
    }
}
