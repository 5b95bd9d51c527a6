//! What the other ranks of a node run.

use std::path::Path;

use crate::{Result, SpawnOptions};

/// This program once more. A test binary runs all of its tests: there, the other rank is to run the one that is running here.
pub(super) fn same_again() -> Result<SpawnOptions> {
    let program = std::env::current_exe().ok();
    let test = program.and_then(|program| test_of(&program, std::thread::current().name()));
    match test {
        Some(test) => SpawnOptions::for_test(&test),
        None => SpawnOptions::this_program(),
    }
}

/// The name of the test that runs on a thread, if the program is a test binary as `cargo test` builds it: a file in `deps` whose
/// name ends in a hash. Its harness names threads after tests.
fn test_of(program: &Path, thread: Option<&str>) -> Option<String> {
    let stem = program.file_stem()?.to_str()?;
    let hash = stem.rsplit_once('-')?.1;
    let in_deps = program.parent()?.file_name()? == "deps";
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let thread = thread.filter(|name| *name != "main")?;
    (in_deps && is_hash).then(|| thread.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_test_binary_is_run_for_one_test() {
        let test = Path::new("/target/debug/deps/ddp-0123456789abcdef");
        assert_eq!(test_of(test, Some("two::ranks")), Some("two::ranks".to_owned()));
        assert_eq!(test_of(test, Some("main")), None);
        assert_eq!(test_of(Path::new("/target/release/digits"), Some("worker")), None);
    }
}
