use std::io::Write;
use std::path::PathBuf;

use super::replace::replace_file;
use super::{LoggerError, RunDirectory};

/// The name of the file with the resolved configuration of a run.
pub const HPARAMS_FILE_NAME: &str = "hparams.toml";

/// Writes the hyper-parameters to `hparams.toml` in the run directory, whole or not at all, and returns its path.
///
/// A resumed run replaces the file with its own.
///
/// # Errors
///
/// [`LoggerError::Io`] if the file cannot be written, [`LoggerError::Encode`] if a value has no form in TOML.
pub fn write_hparams(run: &RunDirectory, hparams: &toml::Table) -> Result<PathBuf, LoggerError> {
    let path = run.path().join(HPARAMS_FILE_NAME);
    let text = toml::to_string_pretty(hparams).map_err(|source| LoggerError::Encode {
        what: "hyper-parameters",
        source: source.into(),
    })?;
    replace_file(&path, |file| file.write_all(text.as_bytes()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_reads_back_and_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(root.path(), "digits").unwrap();
        for epochs in [3, 30] {
            let hparams: toml::Table = format!("seed = 7\n[trainer]\nmax_epochs = {epochs}\nlr = 1e-3")
                .parse()
                .unwrap();
            let path = write_hparams(&run, &hparams).unwrap();
            assert_eq!(path, run.path().join("hparams.toml"));
            let read: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
            assert_eq!(read, hparams);
        }
    }
}
