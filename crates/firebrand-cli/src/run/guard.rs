use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

/// A process that kills what the ranks have started when the agent is killed before it can.
///
/// A rank itself dies with the agent by the kernel's doing. Its program may be a wrapper, such as a shell, whose own children do
/// not. They are in the rank's process group, and the guard knows those groups: it reads them from a pipe whose end means
/// that the agent is gone.
pub struct Guard {
    process: Child,
    told: Vec<u32>,
}

impl Guard {
    pub fn start() -> anyhow::Result<Self> {
        let process = Command::new(std::env::current_exe()?)
            .arg("guard")
            // Ctrl+C of a terminal is not for it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            process,
            told: Vec::new(),
        })
    }

    /// The leaders of the groups that are to be killed from now on.
    pub fn watch(&mut self, groups: Vec<u32>) {
        if groups == self.told {
            return;
        }
        let list: Vec<String> = groups.iter().map(u32::to_string).collect();
        if let Some(pipe) = &mut self.process.stdin {
            // Somebody has killed it: then the kernel has to do.
            let _ = writeln!(pipe, "{}", list.join(" "));
        }
        self.told = groups;
    }
}

/// It ends with nothing to kill.
impl Drop for Guard {
    fn drop(&mut self) {
        self.watch(Vec::new());
        self.process.stdin = None;
        let _ = self.process.wait();
    }
}

/// What the process does.
pub fn stand_guard() {
    let mut groups = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        groups = line
            .split_whitespace()
            .filter_map(|group| group.parse().ok())
            .collect();
    }
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}
