use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

use rustix::process::Signal;

use super::lifeline::{Place, wait_for_end};
use super::names;
use crate::environment::{bad, environment_variable, shown};
use crate::{Error, Result};

/// This process is a rank that ends with the process that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentWatch(());

static WATCH: Mutex<Option<ParentWatch>> = Mutex::new(None);

/// Ties this process to the one that started it as a rank, if one did: from then on it is killed when that one is gone, with
/// everything in its process group. Its standard input becomes empty.
///
/// A rank calls it first of all. Calling it again does nothing. Without a parent that is Firebrand it does nothing either.
///
/// # Errors
///
/// If the variables of a rank are set but this process is none: it was started by one, and inherited them. Or if the system
/// refuses a thread.
pub fn adopt() -> Result<Option<ParentWatch>> {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    if watch.is_some() {
        return Ok(*watch);
    }
    let Some(place) = place()? else {
        return Ok(None);
    };
    let pipe = place.open().ok_or_else(|| stranger(place))?;
    if place.fd == 0 {
        empty_stdin()?;
    }
    let (tell, told) = sync_channel(1);
    std::thread::Builder::new()
        .name("firebrand-parent".to_owned())
        .spawn(move || {
            // The kernel keeps this with the thread that asks, so that the thread must be one that stays.
            let asked = die_with_parent();
            drop(tell.send(asked));
            wait_for_end(&pipe);
            kill_own_group();
        })
        .map_err(|error| Error::system("the thread that watches the parent could not be started", error))?;
    match told.recv() {
        Ok(asked) => asked?,
        Err(_) => {
            return Err(Error::system(
                "the thread that watches the parent",
                "it ended at once",
            ));
        }
    }
    *watch = Some(ParentWatch(()));
    Ok(*watch)
}

/// Becomes another program that is a rank: what a process does that [`Children`](crate::Children) starts when the program of
/// the ranks may be anything, such as one that knows nothing of Firebrand. That program too is killed when the parent is gone.
///
/// It must be called from the main thread, before there are others.
///
/// # Errors
///
/// If the program cannot be run, or this process was not started as a rank. It returns only then.
pub fn exec(program: &OsString, args: &[OsString]) -> Result<Infallible> {
    let Some(place) = place()? else {
        return Err(Error::Missing {
            name: names::LIFELINE.to_owned(),
            because: "only `firebrand run` starts a program in this way".to_owned(),
            fix: "use `firebrand run`".to_owned(),
        });
    };
    let pipe = place.open().ok_or_else(|| stranger(place))?;
    die_with_parent()?;
    // The parent may have died before the signal was asked for.
    let parent = environment_variable(names::PARENT).unwrap_or_default();
    let is_there = |parent: i32| rustix::process::getppid().is_some_and(|pid| pid.as_raw_pid() == parent);
    if !parent.parse().is_ok_and(is_there) {
        return Err(Error::system(
            format!("the process '{}' that started this rank", shown(&parent)),
            "it is gone",
        ));
    }
    // A copy that the program inherits, away from the numbers that programs expect something of.
    let copy = rustix::io::fcntl_dupfd_cloexec(&pipe, 10)
        .and_then(|copy| rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty()).map(|()| copy))
        .map_err(|error| Error::system("the pipe of a rank could not be duplicated", error))?;
    let place = Place {
        fd: copy.as_raw_fd().unsigned_abs(),
        inode: place.inode,
    };
    empty_stdin()?;
    let error = Command::new(program)
        .args(args)
        .env(names::LIFELINE, place.to_string())
        // It would say that the pipe is the standard input.
        .env_remove(names::PARENT)
        .exec();
    Err(Error::system(
        format!("'{}' could not be run", program.to_string_lossy()),
        error,
    ))
}

/// What the variable says of the pipe.
fn place() -> Result<Option<Place>> {
    let Some(text) = environment_variable(names::LIFELINE) else {
        return Ok(None);
    };
    let fix = "unset it: it is set by Firebrand for the ranks that it starts";
    Place::parse(&text)
        .map(Some)
        .ok_or_else(|| bad(names::LIFELINE, &text, "names no pipe", fix))
}

fn stranger(place: Place) -> Error {
    bad(
        names::LIFELINE,
        &place.to_string(),
        "names a pipe that this process does not have",
        "a program that a rank starts inherits its variables: start it without those that begin with FIREBRAND_",
    )
}

fn empty_stdin() -> Result<()> {
    let empty = File::open("/dev/null")
        .map_err(|error| Error::system("/dev/null cannot be opened for the standard input", error))?;
    rustix::stdio::dup2_stdin(empty)
        .map_err(|error| Error::system("the standard input could not be made empty", error))
}

/// The fastest way to end with the parent, and one that holds for a process that is stopped.
fn die_with_parent() -> Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Error::system("a signal at the death of the parent was refused", error))?;
    Ok(())
}

/// Ends this process and what it has started, now: a peer is gone, so that there is nothing left to save together.
fn kill_own_group() {
    // A rank leads a process group of its own, or is in that of its wrapper.
    let _ = rustix::process::kill_current_process_group(Signal::KILL);
    std::process::abort();
}
