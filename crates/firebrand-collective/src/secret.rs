use std::fmt;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::{Error, Result};

const VARIABLE: &str = "FIREBRAND_SECRET";
const FILE_VARIABLE: &str = "FIREBRAND_SECRET_FILE";

/// The longest secret in bytes.
const MAX_SECRET: usize = 4096;

/// What all ranks of a job know and nobody else: connections between ranks begin with a proof that both ends know it.
///
/// It is never shown. Choose one that cannot be guessed, such as that of [`random`](Self::random).
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// The secret of `FIREBRAND_SECRET`, or of the file that `FIREBRAND_SECRET_FILE` names, without the end of its last line.
    /// `variable` looks up an environment variable.
    ///
    /// # Errors
    ///
    /// If the secret is empty or too long, the file cannot be read or can be read by others than its owner, or both
    /// variables are set and differ.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let direct = variable(VARIABLE)
            .map(|text| Self::new(VARIABLE, text.as_bytes()))
            .transpose()?;
        let file = variable(FILE_VARIABLE)
            .map(|path| Self::from_file(Path::new(&path)))
            .transpose()?;
        match (direct, file) {
            (Some(direct), Some(file)) if direct.0 != file.0 => Err(Error::argument(format!(
                "{VARIABLE} and {FILE_VARIABLE} are both set and differ; unset one of them"
            ))),
            (direct, file) => Ok(direct.or(file)),
        }
    }

    /// A new secret of 256 random bits. It is text of 64 hexadecimal digits, so that it can be handed on in an environment
    /// variable.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn random() -> Result<Self> {
        let mut bytes = [0u8; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::system("there are no random numbers for a secret", error))?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(text.into_bytes().into()))
    }

    /// The secret itself.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The secret itself, shared.
    pub fn shared(&self) -> Arc<[u8]> {
        Arc::clone(&self.0)
    }

    fn new(origin: &str, bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Error::argument(format!(
                "{origin} is set but empty; unset it, or give a long random text such as that of `openssl rand -hex 32`"
            )));
        }
        if bytes.len() > MAX_SECRET {
            return Err(Error::argument(format!(
                "{origin} holds more than {MAX_SECRET} bytes, which is more than a secret has"
            )));
        }
        Ok(Self(bytes.into()))
    }

    fn from_file(path: &Path) -> Result<Self> {
        let origin = format!("the file '{}' of {FILE_VARIABLE}", path.display());
        let unreadable = |error: std::io::Error| Error::system(format!("{origin} cannot be read"), error);
        // A pipe or a device could block or never end.
        if !path.metadata().map_err(unreadable)?.is_file() {
            return Err(Error::argument(format!("{origin} is not an ordinary file")));
        }
        let file = File::open(path).map_err(unreadable)?;
        check_permissions(&file.metadata().map_err(unreadable)?, path, &origin)?;
        let mut bytes = Vec::new();
        file.take(MAX_SECRET as u64 + 3)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        Self::new(&origin, line.strip_suffix(b"\r").unwrap_or(line))
    }
}

#[cfg(unix)]
fn check_permissions(metadata: &Metadata, path: &Path, origin: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    Err(Error::argument(format!(
        "{origin} is open to others than its owner (mode {mode:04o}); run: chmod 600 '{}'",
        path.display()
    )))
}

#[cfg(not(unix))]
fn check_permissions(_: &Metadata, _: &Path, _: &str) -> Result<()> {
    Ok(())
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn read(direct: Option<&str>, file: Option<&Path>) -> Result<Option<Secret>> {
        Secret::from_environment(|name| match name {
            "FIREBRAND_SECRET" => direct.map(str::to_owned),
            "FIREBRAND_SECRET_FILE" => file.map(|path| path.display().to_string()),
            _ => None,
        })
    }

    fn file(content: &[u8], mode: u32) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        directory
    }

    #[test]
    fn it_comes_from_the_variable_or_the_file_or_not_at_all() {
        assert!(read(None, None).unwrap().is_none());
        assert_eq!(read(Some("abc"), None).unwrap().unwrap().as_bytes(), b"abc");
        for content in [&b"abc\n"[..], b"abc\r\n", b"abc"] {
            let directory = file(content, 0o600);
            let path = directory.path().join("secret");
            assert_eq!(read(None, Some(&path)).unwrap().unwrap().as_bytes(), b"abc");
            assert_eq!(
                read(Some("abc"), Some(&path)).unwrap().unwrap().as_bytes(),
                b"abc"
            );
            let error = read(Some("other"), Some(&path)).unwrap_err().to_string();
            assert!(
                error.contains("differ") && !error.contains("abc") && !error.contains("other"),
                "{error}"
            );
        }
        let directory = file(b"abc", 0o400);
        assert!(
            read(None, Some(&directory.path().join("secret")))
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_command_that_mends_it() {
        for mode in [0o640, 0o604, 0o620, 0o644, 0o666] {
            let directory = file(b"abc", mode);
            let path = directory.path().join("secret");
            let error = read(None, Some(&path)).unwrap_err().to_string();
            assert!(
                error.contains(&format!("chmod 600 '{}'", path.display())),
                "{error}"
            );
            assert!(error.contains(&format!("{mode:04o}")), "{error}");
        }
    }

    #[test]
    fn nothing_and_too_much_and_no_file_are_refused() {
        assert!(read(Some(""), None).unwrap_err().to_string().contains("empty"));
        let directory = file(b"\n", 0o600);
        assert!(
            read(None, Some(&directory.path().join("secret")))
                .unwrap_err()
                .to_string()
                .contains("empty")
        );
        let directory = file(&vec![b'a'; 1 << 20], 0o600);
        assert!(
            read(None, Some(&directory.path().join("secret")))
                .unwrap_err()
                .to_string()
                .contains("4096")
        );
        let error = read(None, Some(Path::new("/nowhere/secret")))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nowhere/secret"), "{error}");
        let error = read(None, Some(Path::new("/dev/zero"))).unwrap_err().to_string();
        assert!(error.contains("not an ordinary file"), "{error}");
    }

    #[test]
    fn a_random_one_is_text_and_never_shown() {
        let (first, second) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_ne!(first.as_bytes(), second.as_bytes());
        let text = std::str::from_utf8(first.as_bytes()).unwrap();
        assert!(text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(!format!("{first:?} {first}").contains(text));
        assert_eq!(&*first.shared(), first.as_bytes());
    }
}
