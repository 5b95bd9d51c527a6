use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::args::Usage;

/// The file of a program, found as a shell finds it.
pub fn find_program(command: &[OsString]) -> anyhow::Result<PathBuf> {
    let name = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let searched = std::env::var_os("PATH").unwrap_or_default();
    find(name, &searched).map_err(|reason| Usage(reason).into())
}

fn find(name: &OsStr, searched: &OsStr) -> Result<PathBuf, String> {
    let shown = name.to_string_lossy();
    if name.as_encoded_bytes().contains(&b'/') {
        let path = Path::new(name);
        return match path.metadata() {
            Err(error) => Err(format!("the program '{shown}' cannot be run: {error}")),
            Ok(data) if data.is_dir() => {
                Err(format!("the program '{shown}' cannot be run: it is a directory"))
            }
            Ok(_) if !is_executable(path) => Err(format!(
                "the program '{shown}' cannot be run: it is not executable; run: chmod +x '{shown}'"
            )),
            Ok(_) => Ok(path.to_owned()),
        };
    }
    std::env::split_paths(searched)
        .map(|directory| directory.join(name))
        .find(|path| !name.is_empty() && is_executable(path))
        .ok_or_else(|| {
            format!("there is no program '{shown}' in PATH; write ./{shown} for one in this directory")
        })
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("train");
        std::fs::write(&program, "").unwrap();
        let searched = directory.path().as_os_str();
        assert!(
            find(OsStr::new("train"), searched)
                .unwrap_err()
                .contains("no program 'train' in PATH")
        );
        assert!(
            find(program.as_os_str(), searched)
                .unwrap_err()
                .contains("chmod +x")
        );
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(find(OsStr::new("train"), searched).unwrap(), program);
        assert_eq!(find(program.as_os_str(), OsStr::new("")).unwrap(), program);
        assert!(find(searched, searched).unwrap_err().contains("a directory"));
        assert!(
            find(OsStr::new("./none"), searched)
                .unwrap_err()
                .contains("./none")
        );
        assert!(find(OsStr::new(""), searched).is_err());
    }
}
