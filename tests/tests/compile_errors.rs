//! What the compiler says about common mistakes.
//!
//! Each file of `compile_errors/` makes one mistake. They are examples of this package that need a feature which nothing turns on,
//! so that they share the compiled dependencies with everything else and are built by this test alone. It selects the whole
//! workspace, as `cargo test --workspace` does: a test that was built with `-p` may find Burn not yet compiled with the
//! features of the workspace, and takes minutes then.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// A file of `compile_errors/`, the code of its only error, and what the message must say.
struct Mistake {
    file: &'static str,
    code: &'static str,
    says: &'static [&'static str],
}

const MISTAKES: [Mistake; 5] = [
    Mistake {
        file: "missing_impl",
        code: "E0277",
        says: &[
            "`Net` cannot be trained: it does not implement `LightningModule`",
            "not a `LightningModule`",
            "implement `LightningModule` with `type Batch`, `training_step` and `configure_optimizers`",
        ],
    },
    Mistake {
        file: "batch_without_derive",
        code: "E0277",
        says: &[
            "`Digits` is not a batch",
            "the trainer cannot count, move or split a `Digits`",
            "add `#[derive(Batch, Clone, Debug)]` to `Digits`",
        ],
    },
    Mistake {
        file: "initialised_optimizer",
        code: "E0277",
        says: &[
            "`ModuleOptimizer` is not the configuration of an optimizer",
            "such as `AdamWConfig::new()` (not `AdamWConfig::new().init()`)",
        ],
    },
    Mistake {
        file: "loader_as_data",
        code: "E0277",
        says: &[
            "DataLoader<burn::Tensor<2>>` is not a data module",
            "the trainer cannot get data from it",
            "wrap loaders in `Data::new().train(loader)`, or implement `DataModule`",
        ],
    },
    Mistake {
        file: "wrong_step_type",
        code: "E0053",
        says: &[
            "method `training_step` has an incompatible type for trait",
            "Result<burn::Tensor<1>, _>`",
            "change the output type to match the trait",
        ],
    },
];

/// The directory of builds and the profile that this test was built in: `<target>/<profile>/deps/<test>`.
fn target_and_profile() -> (PathBuf, String) {
    let test = env::current_exe().unwrap();
    let directory = test.ancestors().nth(2).unwrap();
    let profile = directory.file_name().unwrap().to_str().unwrap();
    let profile = if profile == "debug" { "dev" } else { profile };
    (directory.parent().unwrap().to_owned(), profile.to_owned())
}

/// Builds the mistakes and returns the errors of each: code and text as a user sees it.
fn errors_by_file() -> BTreeMap<String, Vec<(String, String)>> {
    let (target, profile) = target_and_profile();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args("build --workspace --frozen --keep-going --message-format json".split(' '))
        .args(["--features", "firebrand-tests/compile-errors"])
        .args(["--profile", &profile])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    for mistake in &MISTAKES {
        cargo.args(["--example", mistake.file]);
    }
    // Build scripts that watch what cargo tells a test of its package would run again, and rebuild all that depends on them.
    for (name, _) in env::vars_os() {
        let known = name.to_string_lossy();
        if known.starts_with("CARGO_PKG_") || known.starts_with("CARGO_MANIFEST_") || known == "OUT_DIR" {
            cargo.env_remove(name);
        }
    }
    let output = cargo.output().unwrap();
    let mut errors = BTreeMap::<_, Vec<_>>::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (message, file) = (&line["message"], line["target"]["name"].as_str());
        // The count of errors at the end of each file is an error without a code.
        if message["level"] == "error" && !message["code"].is_null() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            errors
                .entry(file.unwrap().to_owned())
                .or_default()
                .push((text(&message["code"]["code"]), text(&message["rendered"])));
        }
    }
    assert!(
        !errors.is_empty(),
        "cargo did not get as far as the mistakes; `cargo test --workspace` builds what it needs:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    errors
}

#[test]
fn mistakes_are_explained() {
    let errors = errors_by_file();
    for Mistake { file, code, says } in &MISTAKES {
        let Some(found) = errors.get(*file) else {
            panic!("{file} compiles");
        };
        let text: String = found.iter().map(|(_, text)| text.as_str()).collect();
        assert!(
            found.len() == 1 && found[0].0 == *code,
            "{file}: not one {code}:\n{text}"
        );
        for part in *says {
            assert!(text.contains(part), "{file}: no '{part}' in:\n{text}");
        }
    }
    assert_eq!(
        errors.len(),
        MISTAKES.len(),
        "errors elsewhere: {:?}",
        errors.keys()
    );
}
