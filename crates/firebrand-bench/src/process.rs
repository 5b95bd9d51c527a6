//! The processes that measure what this one cannot: ranks, and Python.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use tempfile::NamedTempFile;

/// This program with other arguments.
pub(crate) fn this_program<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program to run it as a rank")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// A Python script in a file, since it runs itself again for its other ranks.
pub(crate) struct Script(NamedTempFile);

impl Script {
    pub(crate) fn new(text: &str) -> Result<Self> {
        let mut file = tempfile::Builder::new().suffix(".py").tempfile()?;
        file.write_all(text.as_bytes())?;
        Ok(Self(file))
    }

    /// Runs the script on one thread.
    pub(crate) fn command<A: AsRef<OsStr>>(
        &self,
        python: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(python);
        command
            .arg(self.0.path())
            .args(arguments)
            .envs(["OMP_NUM_THREADS", "MKL_NUM_THREADS"].map(|name| (name, "1")));
        command
    }
}

/// A process that answers each line with a line of JSON, numbers in a list.
pub(crate) struct Oracle {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    name: String,
}

impl Oracle {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let name = command.get_program().display().to_string();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        let (questions, answers) = (child.stdin.take(), child.stdout.take());
        Ok(Self {
            questions,
            answers: BufReader::new(answers.with_context(|| format!("{name} has no output"))?),
            child,
            name,
        })
    }

    pub(crate) fn ask(&mut self, question: &str) -> Result<Vec<f64>> {
        // A process that has ended closes the pipe; that it gives no answer says as much as a write that fails.
        if let Some(questions) = &mut self.questions {
            let _ = writeln!(questions, "{question}").and_then(|()| questions.flush());
        }
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer.is_empty() {
            bail!(
                "{} ended without an answer to '{question}'; its own output says why",
                self.name
            );
        }
        serde_json::from_str(&answer).with_context(|| format!("{} answered '{}'", self.name, answer.trim()))
    }

    /// Lets it end by itself.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.questions = None;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} ended with {status}", self.name);
        }
        Ok(())
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        // After `finish` there is nothing left to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a process to its end, and returns the numbers in the last line of its output.
pub(crate) fn numbers_of(mut command: Command) -> Result<Vec<f64>> {
    let name = command.get_program().display().to_string();
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!("{name} ended with {}; its own output says why", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .next_back()
        .with_context(|| format!("{name} printed nothing"))?;
    serde_json::from_str(line).with_context(|| format!("{name} printed '{line}'"))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_oracle_answers_line_by_line_and_ends_with_its_questions() {
        let mut oracle = Oracle::start(shell("while read n; do echo \"[$n, 0.5]\"; done")).unwrap();
        assert_eq!(oracle.ask("3").unwrap(), [3.0, 0.5]);
        assert_eq!(oracle.ask("4").unwrap(), [4.0, 0.5]);
        oracle.finish().unwrap();
    }

    #[test]
    fn a_process_that_fails_is_an_error() {
        let mut oracle = Oracle::start(shell("exit 3")).unwrap();
        assert!(oracle.ask("1").unwrap_err().to_string().contains("ended"));
        assert!(oracle.finish().unwrap_err().to_string().contains('3'));
        assert!(numbers_of(shell("echo '[1]'; exit 4")).is_err());
        assert!(numbers_of(shell("echo Traceback")).is_err());
        assert_eq!(
            numbers_of(shell("echo hello; echo '[1, 2]'")).unwrap(),
            [1.0, 2.0]
        );
    }
}
