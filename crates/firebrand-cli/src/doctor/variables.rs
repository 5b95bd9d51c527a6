use firebrand_collective::Secret;
use firebrand_launch::JoinOptions;

use super::report::Report;

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What holds the secret itself.
const HIDDEN: &str = "FIREBRAND_SECRET";

pub fn examine(report: &mut Report, lookup: Lookup<'_>) {
    report.section("Variables of Firebrand");
    let mut set: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        })
        .filter(|(name, _)| name.starts_with("FIREBRAND_"))
        .collect();
    set.sort();
    if set.is_empty() {
        report.fact("FIREBRAND_*", "none is set");
    }
    for (name, value) in set {
        report.fact(&name, shown(&name, value));
    }
    match Secret::from_environment(lookup) {
        Ok(Some(_)) => report.fact("secret of the job", "known"),
        Ok(None) => report.fact(
            "secret of the job",
            "not set; on one machine it is drawn for each run",
        ),
        Err(error) => {
            report.fact("secret of the job", "unusable");
            report.problem(
                error.to_string(),
                "Give every rank the same FIREBRAND_SECRET, or a FIREBRAND_SECRET_FILE that only its owner can read",
            );
        }
    }
    check_values(report, lookup);
}

fn shown(name: &str, value: String) -> String {
    if name == HIDDEN {
        "(hidden)".to_owned()
    } else {
        value
    }
}

/// What a run would refuse, it refuses here: the same code reads the variables.
fn check_values(report: &mut Report, lookup: Lookup<'_>) {
    for name in JoinOptions::VARIABLES {
        let alone = |asked: &str| lookup(asked).filter(|_| asked == name);
        match JoinOptions::from_environment(&alone) {
            Ok(_) => {}
            Err(firebrand_launch::Error::Variable {
                name,
                value,
                problem,
                fix,
            }) => report.problem(format!("{name}={value} {problem}"), format!("{fix}, or unset it")),
            Err(error) => report.problem(error.to_string(), format!("unset {name}")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn examined(pairs: &[(&str, &str)]) -> String {
        let mut report = Report::default();
        examine(&mut report, &|name| {
            let pair = pairs.iter().find(|(key, _)| *key == name);
            pair.map(|(_, value)| (*value).to_owned())
        });
        report.to_string()
    }

    #[test]
    fn the_secret_is_checked_and_never_shown() {
        assert_eq!(shown("FIREBRAND_SECRET", "abc".to_owned()), "(hidden)");
        assert_eq!(shown("FIREBRAND_SECRET_FILE", "path".to_owned()), "path");
        let text = examined(&[("FIREBRAND_SECRET", "hush")]);
        assert!(text.contains("known") && !text.contains("hush"), "{text}");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        std::fs::write(&file, "hush").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let text = examined(&[("FIREBRAND_SECRET_FILE", file.to_str().unwrap())]);
        assert!(
            text.contains("mode 0644") && text.contains("chmod 600") && !text.contains("hush"),
            "{text}"
        );
    }

    #[test]
    fn values_that_no_variable_takes_are_problems() {
        for (name, value) in [
            ("FIREBRAND_TIMEOUT", "soon"),
            ("FIREBRAND_TIMEOUT", "0"),
            ("FIREBRAND_TIMEOUT", "inf"),
            ("FIREBRAND_TIMEOUT", "1e12"),
            ("FIREBRAND_COLLECTIVE", "gloo"),
            // Known by name, and refused by a run.
            ("FIREBRAND_COLLECTIVE", "nccl"),
        ] {
            let text = examined(&[(name, value)]);
            assert!(text.contains(&format!("{name}={value}")), "{text}");
        }
        let text = examined(&[("FIREBRAND_TIMEOUT", "soon"), ("FIREBRAND_COLLECTIVE", "gloo")]);
        assert!(text.contains("2 problems"), "{text}");
        assert!(
            examined(&[("FIREBRAND_TIMEOUT", "2.5"), ("FIREBRAND_COLLECTIVE", "shm")]).contains("No problem")
        );
    }
}
