use std::io::Read;

use super::command::PARENT;

/// In a process that another rank has started: sees to it that this one ends when that one is gone, whatever it is doing.
///
/// The standard input is a pipe from the other process, which never writes; its end means that the process is gone. Where the
/// system can, it also kills this one then, which ends it even if it is stopped. Elsewhere this does nothing.
pub fn watch_parent() {
    let Some(parent) = std::env::var(PARENT).ok().and_then(|id| id.parse::<u32>().ok()) else {
        return;
    };
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};
        // Without it, the pipe alone has to do.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if getppid().is_none_or(|id| id.as_raw_nonzero().get().unsigned_abs() != parent) {
            std::process::exit(143);
        }
    }
    let watch = || {
        let mut bytes = [0; 64];
        let mut input = std::io::stdin();
        loop {
            match input.read(&mut bytes) {
                Ok(1..) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // The parent is gone: there is nobody to report to.
                _ => std::process::exit(143),
            }
        }
    };
    // Without the thread, the system's own signal has to do.
    let _ = std::thread::Builder::new()
        .name("firebrand-parent".to_owned())
        .spawn(watch);
}
