use std::ffi::OsStr;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// How long Slurm's controller may take to answer.
const DEADLINE: Duration = Duration::from_secs(60);

/// What [`requeue`] has to be given in this job, or none outside of Slurm: a task of an array is requeued by itself.
///
/// `variable` looks up an environment variable.
pub fn job_to_requeue(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    match set("SLURM_ARRAY_JOB_ID").zip(set("SLURM_ARRAY_TASK_ID")) {
        Some((job, task)) => Some(format!("{job}_{task}")),
        None => set("SLURM_JOB_ID"),
    }
}

/// Puts a job back into the queue with `scontrol requeue`: Slurm ends all of its processes and starts it again later.
///
/// One rank calls it, after the checkpoint is on disk.
///
/// # Errors
///
/// If `scontrol` is not there, does not answer within a minute, or refuses, with what it said.
pub fn requeue(job: &str) -> Result<()> {
    requeue_with(OsStr::new("scontrol"), job, DEADLINE)
}

fn requeue_with(scontrol: &OsStr, job: &str, deadline: Duration) -> Result<()> {
    let failed = |reason: String| Error::Requeue {
        job: crate::environment::shown(job),
        reason,
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !job.split('_').all(digits) || job.matches('_').count() > 1 {
        return Err(failed(
            "it is no number of a job; SLURM_JOB_ID holds the one of this job".to_owned(),
        ));
    }
    let mut child = Command::new(scontrol)
        .args(["requeue", job])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => failed(
                "there is no scontrol on this node; install Slurm's client commands there, or submit the job again by hand"
                    .to_owned(),
            ),
            _ => failed(format!("scontrol could not be started: {error}")),
        })?;
    let status = wait(&mut child, deadline).map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // What it said only adds to the failure.
        drop(stderr.take(4096).read_to_end(&mut said));
    }
    Err(failed(format!(
        "scontrol ended with {status} and said '{}'; submit the job with `--requeue`, and see that JobRequeue is not 0 in slurm.conf",
        String::from_utf8_lossy(&said).trim()
    )))
}

fn wait(child: &mut Child, deadline: Duration) -> std::result::Result<ExitStatus, String> {
    let start = Instant::now();
    loop {
        let reason = match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if start.elapsed() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            Ok(None) => format!(
                "scontrol did not answer within {} s; look at the controller with `scontrol ping`",
                deadline.as_secs_f64()
            ),
            Err(error) => format!("scontrol could not be waited for: {error}"),
        };
        // It may have ended in this moment, which is as good.
        drop(child.kill());
        drop(child.wait());
        return Err(reason);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(text: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("scontrol");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        directory
    }

    fn run(directory: &tempfile::TempDir, job: &str) -> Result<()> {
        let program = directory.path().join("scontrol");
        // A fork of another test may hold the script open for writing for a moment.
        for _ in 0..50 {
            match requeue_with(program.as_os_str(), job, Duration::from_millis(500)) {
                Err(error) if error.to_string().contains("Text file busy") => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                outcome => return outcome,
            }
        }
        panic!("the script stayed busy");
    }

    #[test]
    fn scontrol_is_called_with_the_job() {
        let directory = script("echo \"$@\" > \"$0.log\"");
        run(&directory, "123_4").unwrap();
        let log = fs::read_to_string(directory.path().join("scontrol.log")).unwrap();
        assert_eq!(log.trim(), "requeue 123_4");
    }

    #[test]
    fn a_refusal_a_hang_and_a_missing_program_are_told_apart() {
        let refusing = script("echo 'Requested operation is presently disabled' >&2; exit 1");
        let error = run(&refusing, "5").unwrap_err().to_string();
        for part in ["job 5", "presently disabled", "--requeue"] {
            assert!(error.contains(part), "{error}");
        }
        let error = run(&script("exec sleep 60"), "5").unwrap_err().to_string();
        assert!(error.contains("did not answer within 0.5 s"), "{error}");
        let error = requeue_with(OsStr::new("no-such-scontrol"), "5", DEADLINE)
            .unwrap_err()
            .to_string();
        assert!(error.contains("there is no scontrol"), "{error}");
    }

    #[test]
    fn what_is_no_number_of_a_job_never_reaches_a_command_line() {
        for job in ["", "--help", "1 2", "1_2_3", "_", "7;ls", "1_"] {
            let error = requeue_with(OsStr::new("true"), job, DEADLINE).unwrap_err();
            assert!(error.to_string().contains("no number of a job"), "{error}");
        }
    }

    #[test]
    fn the_task_of_an_array_is_requeued_by_itself() {
        let of = |pairs: &'static [(&str, &str)]| {
            job_to_requeue(&move |name| {
                let pair = pairs.iter().find(|(key, _)| *key == name);
                pair.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("SLURM_JOB_ID", "7")]).as_deref(), Some("7"));
        let array: &[(&str, &str)] = &[
            ("SLURM_JOB_ID", "9"),
            ("SLURM_ARRAY_JOB_ID", "7"),
            ("SLURM_ARRAY_TASK_ID", "2"),
        ];
        assert_eq!(of(array).as_deref(), Some("7_2"));
    }
}
