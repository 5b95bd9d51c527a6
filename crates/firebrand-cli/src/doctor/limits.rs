use rustix::process::{Resource, Rlimit, getrlimit};

use super::report::{Report, size};

/// A rank has connections to its peers, files of data, and checkpoints open.
const FEW_FILES: u64 = 1024;

pub fn examine(report: &mut Report) {
    report.section("Limits");
    let files = getrlimit(Resource::Nofile);
    report.fact("open files (ulimit -n)", shown(&files, |count| count.to_string()));
    if let Some(fix) = too_few_files(&files) {
        report.problem(
            format!("a process may open only {} files", files.current.unwrap_or(0)),
            fix,
        );
    }
    report.fact(
        "locked memory (ulimit -l)",
        shown(&getrlimit(Resource::Memlock), size),
    );
    report.fact(
        "processes (ulimit -u)",
        shown(&getrlimit(Resource::Nproc), |count| count.to_string()),
    );
}

fn shown(limit: &Rlimit, unit: impl Fn(u64) -> String) -> String {
    let one = |value: Option<u64>| value.map_or("unlimited".to_owned(), &unit);
    match limit.current == limit.maximum {
        true => one(limit.current),
        false => format!("{}, at most {}", one(limit.current), one(limit.maximum)),
    }
}

fn too_few_files(files: &Rlimit) -> Option<String> {
    files.current.filter(|count| *count < FEW_FILES)?;
    Some(match files.maximum {
        Some(maximum) if maximum < FEW_FILES => {
            format!(
                "the hard limit is {maximum}: raise it in /etc/security/limits.conf, or with `docker run --ulimit nofile=65536`"
            )
        }
        _ => format!("run `ulimit -n {FEW_FILES}` or more before the program"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn few_files_are_a_problem_with_the_fix_that_helps() {
        let limit = |current, maximum| Rlimit { current, maximum };
        assert!(too_few_files(&limit(Some(1024), Some(1024))).is_none());
        assert!(too_few_files(&limit(None, None)).is_none());
        assert!(
            too_few_files(&limit(Some(256), None))
                .unwrap()
                .contains("ulimit -n 1024")
        );
        assert!(
            too_few_files(&limit(Some(256), Some(512)))
                .unwrap()
                .contains("hard limit is 512")
        );
        assert_eq!(
            shown(&limit(Some(2048), None), size),
            "2.0 KiB, at most unlimited"
        );
    }
}
