use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};

use super::memory::Mapping;
use crate::{Error, Result};

/// The least that an arena may have.
const MIN_ARENA: usize = 64 << 20;

/// What else there is when a node cannot share memory.
const INSTEAD: &str = "or set FIREBRAND_COLLECTIVE=tcp";

/// A memory file without a name in any file system. Its size is fixed: nobody whom it is handed to can shrink it and thereby kill
/// those who read it. It takes no memory before it is written to.
pub(super) fn create(name: &str, size: usize) -> Result<OwnedFd> {
    let what = || format!("{size} bytes of shared memory ({name})");
    let refused = |error: &dyn std::fmt::Display| Error::system(what(), format!("{error}; {INSTEAD}"));
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|error| refused(&error))?;
    if let Some(limit) = getrlimit(Resource::Fsize)
        .current
        .filter(|limit| *limit < size as u64)
    {
        return Err(Error::system(
            what(),
            format!("the limit of file size is {limit} bytes; raise it with `ulimit -f`, {INSTEAD}"),
        ));
    }
    rustix::fs::ftruncate(&file, size as u64).map_err(|error| refused(&error))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|error| refused(&error))?;
    Ok(file)
}

/// The size of a memory file that a peer made, after a look that it cannot shrink.
pub(super) fn sealed_size(file: &OwnedFd, peer: &str) -> Result<usize> {
    let nonsense = |reason: String| Error::Protocol {
        peer: peer.to_owned(),
        reason,
    };
    let seals = rustix::fs::fcntl_get_seals(file)
        .map_err(|error| nonsense(format!("what it handed over is no shared memory: {error}")))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(nonsense("its shared memory could shrink".to_owned()));
    }
    let size = rustix::fs::fstat(file)
        .map_err(|error| nonsense(error.to_string()))?
        .st_size;
    usize::try_from(size).map_err(|_| nonsense(format!("its shared memory has {size} bytes")))
}

/// The arena of one of `ranks` ranks: as large as the memory of the machine, unless a limit allows only less. Pages are taken as
/// they are written, so that the size is a bound and no cost.
pub(super) fn arena(ranks: usize) -> Result<(OwnedFd, Mapping)> {
    let memory = rustix::system::sysinfo();
    let memory = (memory.totalram as usize).saturating_mul(memory.mem_unit as usize);
    let limit = |resource| {
        let limit = getrlimit(resource).current.unwrap_or(u64::MAX);
        usize::try_from(limit).unwrap_or(usize::MAX)
    };
    // What the arenas of all ranks take of a limited address space is missing elsewhere: they get a quarter of it.
    let limit = limit(Resource::Fsize).min(limit(Resource::As) / (4 * ranks.max(1)));
    let mut size = (memory.min(limit) >> 21 << 21).max(MIN_ARENA);
    loop {
        let file = create("firebrand-arena", size)?;
        // This rank will also map the arenas of its peers, which have this size if the ranks have the same limits.
        let attempt: std::io::Result<Vec<Mapping>> =
            (0..ranks).map(|_| Mapping::writable(&file, size)).collect();
        match attempt {
            Ok(mut mappings) => match mappings.pop() {
                Some(mapping) => return Ok((file, mapping)),
                None => return Err(Error::argument("a group has at least one rank")),
            },
            Err(_) if size / 2 >= MIN_ARENA => size = (size / 2) >> 21 << 21,
            Err(error) => return Err(unmappable(size, "this rank", &error)),
        }
    }
}

/// Maps the arena of a peer.
pub(super) fn peer(file: &OwnedFd, peer: &str) -> Result<Mapping> {
    let size = sealed_size(file, peer)?;
    Mapping::read_only(file, size).map_err(|error| unmappable(size, peer, &error))
}

/// Maps the control memory, whose size is known.
pub(super) fn control(file: &OwnedFd, size: usize, peer: &str) -> Result<Mapping> {
    let found = sealed_size(file, peer)?;
    if found != size {
        return Err(Error::Protocol {
            peer: peer.to_owned(),
            reason: format!(
                "its control memory has {found} bytes where this rank's would have {size}; run the same program on every rank"
            ),
        });
    }
    Mapping::writable(file, size).map_err(|error| unmappable(size, peer, &error))
}

fn unmappable(size: usize, whose: &str, error: &std::io::Error) -> Error {
    Error::system(
        format!("{size} bytes of shared memory of {whose} cannot be mapped"),
        format!(
            "{error}; raise the limit of address space (`ulimit -v`) and of mappings (`vm.max_map_count`), {INSTEAD}"
        ),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_cannot_shrink_what_it_was_handed() {
        let file = create("test", 1 << 16).unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
        assert_eq!(sealed_size(&file, "rank 1").unwrap(), 1 << 16);
    }

    #[test]
    fn files_that_could_shrink_and_other_files_are_refused() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(
            sealed_size(&file, "rank 1")
                .unwrap_err()
                .to_string()
                .contains("could shrink")
        );
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        let error = sealed_size(&file, "rank 1").unwrap_err().to_string();
        assert!(
            error.contains("rank 1") && error.contains("no shared memory"),
            "{error}"
        );
        let file = create("test", 1 << 16).unwrap();
        assert!(control(&file, 1 << 17, "rank 0").is_err());
    }

    #[test]
    fn an_arena_is_large_and_takes_no_memory() {
        let (file, mapping) = arena(3).unwrap();
        assert!(mapping.len() >= MIN_ARENA);
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
    }
}
