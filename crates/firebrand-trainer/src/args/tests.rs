use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use firebrand_strategy::{GradientClip, GradientCompression, LossScalerOptions, NonFinite, Precision};

use super::TrainerArgs;
use crate::accelerator::Accelerator;
use crate::checkpoint::Resume;
use crate::config::TrainerConfig;
use crate::options::{Launcher, Limit, Strategy, UnevenInputs, ValCheckInterval};
use crate::progress::ProgressMode;
use crate::{Error, Trainer};

/// A program with an option of its own.
#[derive(Parser, Debug)]
struct Program {
    #[arg(long, default_value = "mlp")]
    model: String,
    #[command(flatten)]
    trainer: TrainerArgs,
}

fn parse(flags: &[&str]) -> Result<Program, clap::Error> {
    Program::try_parse_from(std::iter::once(&"program").chain(flags))
}

fn resolve(flags: &[&str], defaults: TrainerConfig) -> Result<TrainerConfig, Error> {
    parse(flags).unwrap().trainer.resolve(defaults)
}

/// A configuration file with some text.
fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("options.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

/// A configuration in which nothing is as by default.
fn unusual() -> TrainerConfig {
    TrainerConfig {
        accelerator: Accelerator::Cpu,
        devices: Some(2),
        num_nodes: Some(3),
        launcher: Launcher::Thread,
        strategy: Some(Strategy::Ddp),
        find_unused_parameters: true,
        uneven_inputs: UnevenInputs::Join,
        gradient_compression: Some(GradientCompression::Bf16),
        bucket_cap_mb: 7,
        precision: Precision::F64,
        keep_full_precision: Vec::new(),
        loss_scaler: None,
        gradient_checkpointing: true,
        max_epochs: Some(7),
        min_epochs: Some(2),
        max_steps: Some(900),
        min_steps: Some(20),
        max_time: Some(93_784),
        limit_train_batches: Limit::Batches(50),
        limit_val_batches: Limit::Fraction(0.5),
        limit_test_batches: Limit::Batches(3),
        limit_predict_batches: Limit::Fraction(0.25),
        overfit_batches: Some(Limit::Batches(4)),
        fast_dev_run: Some(5),
        val_check_interval: ValCheckInterval::Time(Duration::from_secs(90)),
        check_val_every_n_epoch: 3,
        num_sanity_val_steps: 0,
        accumulate_grad_batches: 8,
        gradient_clip: Some(GradientClip::Value(0.5)),
        non_finite: NonFinite::Skip,
        detect_anomaly: true,
        log_every_n_steps: 10,
        seed: 1234,
        default_root_dir: PathBuf::from("elsewhere/runs"),
        name: "unusual".to_owned(),
        resume: Some(Resume::Best),
        progress: ProgressMode::Lines,
        enable_checkpointing: false,
        enable_model_summary: false,
    }
}

#[test]
fn every_flag_reaches_the_configuration() {
    let flags = "--accelerator cpu --precision 64-true --max-epochs 7 --min-epochs 2 --max-steps 900 --min-steps 20 \
                 --max-time 01:02:03:04 --limit-train-batches 50 --limit-val-batches 0.5 --limit-test-batches 3 \
                 --limit-predict-batches 0.25 --overfit-batches 4 --fast-dev-run 5 --val-check-interval 00:00:01:30 \
                 --check-val-every-n-epoch 3 --num-sanity-val-steps 0 --accumulate-grad-batches 8 --gradient-clip-val 0.5 \
                 --gradient-clip-algorithm value --non-finite skip --detect-anomaly --log-every-n-steps 10 --seed 1234 \
                 --default-root-dir elsewhere/runs --name unusual --resume best --progress lines \
                 --enable-checkpointing false --enable-model-summary=false --devices 2 --num-nodes 3 --launcher thread --uneven-inputs join --gradient-checkpointing --strategy ddp \
                 --find-unused-parameters --gradient-compression bf16 --bucket-cap-mb 7";
    let flags: Vec<&str> = flags.split_whitespace().collect();
    assert_eq!(resolve(&flags, TrainerConfig::default()).unwrap(), unusual());
}

#[test]
fn without_flags_the_program_decides() {
    let program = parse(&[]).unwrap();
    assert_eq!(program.model, "mlp");
    assert_eq!(program.trainer.resolve(unusual()).unwrap(), unusual());
    assert_eq!(program.trainer.module::<toml::Table>().unwrap(), None);
}

#[test]
fn flags_with_optional_values_and_forms_that_turn_things_off() {
    let config = |flags: &[&str]| resolve(flags, unusual()).unwrap();
    assert_eq!(config(&["--fast-dev-run"]).fast_dev_run, Some(1));
    assert_eq!(config(&["--fast-dev-run=3"]).fast_dev_run, Some(3));
    assert_eq!(config(&["--fast-dev-run", "--seed", "1"]).seed, 1);
    assert!(config(&["--enable-checkpointing"]).enable_checkpointing);
    assert!(!config(&["--detect-anomaly", "false"]).detect_anomaly);
    assert_eq!(config(&["--gradient-clip-val", "0"]).gradient_clip, None);
    assert_eq!(config(&["--overfit-batches", "0.0"]).overfit_batches, None);
    assert_eq!(
        config(&["--enable-progress-bar", "false"]).progress,
        ProgressMode::Off
    );
    assert_eq!(config(&["--enable-progress-bar"]).progress, ProgressMode::Lines);
    assert_eq!(config(&["--max-time", "90"]).max_time, Some(90));
}

#[test]
fn steps_and_epochs_take_each_others_place() {
    let epochs = || TrainerConfig {
        max_epochs: Some(10),
        max_time: Some(60),
        ..TrainerConfig::default()
    };
    let config = resolve(&["--max-steps", "2000"], epochs()).unwrap();
    assert_eq!(
        (config.max_epochs, config.max_steps, config.max_time),
        (None, Some(2000), Some(60))
    );
    let config = resolve(&["--max-steps", "2000", "--max-epochs", "3"], epochs()).unwrap();
    assert_eq!((config.max_epochs, config.max_steps), (Some(3), Some(2000)));
    let config = resolve(&["--max-time", "00:00:00:30"], epochs()).unwrap();
    assert_eq!((config.max_epochs, config.max_time), (Some(10), Some(30)));
    let steps = TrainerConfig {
        max_steps: Some(5),
        ..TrainerConfig::default()
    };
    let config = resolve(&["--max-epochs", "3"], steps).unwrap();
    assert_eq!((config.max_epochs, config.max_steps), (Some(3), None));
}

#[test]
fn clipping_is_put_together_from_its_two_options() {
    let with = |clip| TrainerConfig {
        gradient_clip: clip,
        ..TrainerConfig::default()
    };
    let clip = |flags: &[&str], default| resolve(flags, with(default)).map(|config| config.gradient_clip);
    assert_eq!(
        clip(&["--gradient-clip-val", "2"], None).unwrap(),
        Some(GradientClip::Norm(2.0))
    );
    let by_value = Some(GradientClip::Value(1.0));
    assert_eq!(
        clip(&["--gradient-clip-val", "2"], by_value).unwrap(),
        Some(GradientClip::Value(2.0))
    );
    assert_eq!(
        clip(&["--gradient-clip-algorithm", "norm"], by_value).unwrap(),
        Some(GradientClip::Norm(1.0))
    );
    let error = clip(&["--gradient-clip-algorithm", "value"], None).unwrap_err();
    assert!(error.to_string().contains("add gradient_clip_val"), "{error}");
    assert_eq!(error.exit_code(), 2);

    let (_folder, path) = file("gradient_clip_algorithm = 'value'");
    assert_eq!(
        clip(&["--config", &path, "--gradient-clip-val", "3"], None).unwrap(),
        Some(GradientClip::Value(3.0))
    );
}

#[test]
fn a_wrong_value_names_the_flag_the_value_and_what_it_takes() {
    for (flag, value, expected) in [
        (
            "--accelerator",
            "tpu",
            "expected auto, cpu, libtorch, libtorch-cuda, webgpu or cuda",
        ),
        ("--devices", "0", "at least 1"),
        ("--devices", "all", "whole number"),
        ("--num-nodes", "0", "at least 1"),
        (
            "--strategy",
            "pipeline",
            "not available yet in this version: use single or ddp",
        ),
        ("--strategy", "dpp", "expected single or ddp"),
        (
            "--precision",
            "32",
            "expected 32-true, 64-true, bf16-mixed, 16-mixed, bf16-true or 16-true",
        ),
        ("--max-epochs", "ten", "whole number"),
        ("--max-steps", "1.5", "whole number"),
        ("--max-time", "12h", "DD:HH:MM:SS"),
        ("--limit-val-batches", "1.5", "from 0.0 to 1.0"),
        ("--val-check-interval", "0", "more than 0"),
        ("--val-check-interval", "often", "number of batches"),
        ("--accumulate-grad-batches", "0", "at least 1"),
        ("--log-every-n-steps", "0", "at least 1"),
        ("--fast-dev-run", "0", "at least 1"),
        ("--gradient-clip-val", "nan", "finite number"),
        ("--gradient-clip-algorithm", "l2", "expected norm or value"),
        ("--non-finite", "ignore", "expected stop or skip"),
        ("--progress", "rich", "expected auto, bars, lines or off"),
        ("--enable-checkpointing", "maybe", "expected true or false"),
        ("--seed", "-x", "whole number"),
    ] {
        let error = parse(&[&format!("{flag}={value}")]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("'{value}' for '{flag}")) && text.contains(expected),
            "{text}"
        );
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn the_file_wins_over_the_program_and_flags_win_over_the_file() {
    let (_folder, path) =
        file("max_epochs = 5\nseed = 7\nlimit_train_batches = 0.5\nprogress = 'off'\n[module]\nhidden = 64");
    let defaults = TrainerConfig {
        max_epochs: Some(30),
        log_every_n_steps: 3,
        ..TrainerConfig::default()
    };
    let flags = ["--seed", "9", "--config", &path, "--enable-progress-bar"];
    let config = resolve(&flags, defaults.clone()).unwrap();
    let expected = TrainerConfig {
        max_epochs: Some(5),
        seed: 9,
        limit_train_batches: Limit::Fraction(0.5),
        ..defaults
    };
    assert_eq!(config, expected);

    #[derive(serde::Deserialize, Debug, PartialEq)]
    struct Hidden {
        hidden: usize,
    }
    let args = parse(&flags).unwrap().trainer;
    assert_eq!(args.module().unwrap(), Some(Hidden { hidden: 64 }));
    let error = args
        .module::<std::collections::BTreeMap<String, bool>>()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("options.toml: [module]: ") && error.contains("expected a boolean"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_the_file() {
    for (text, expected) in [
        (
            "max_epoch = 3",
            "unknown key 'max_epoch'; did you mean 'max_epochs'?",
        ),
        ("frobnicate = 3", "unknown key 'frobnicate'"),
        ("config = 'other.toml'", "unknown key 'config'"),
        ("help = true", "unknown key 'help'"),
        (
            "max-epochs = 3",
            "unknown key 'max-epochs'; keys have underscores: 'max_epochs'",
        ),
        (
            "max_epochs = 'ten'",
            "max_epochs = \"ten\": expected a whole number",
        ),
        ("max_epochs = -1", "max_epochs = -1: expected a whole number"),
        (
            "devices = 0",
            "devices = 0: expected a whole number of at least 1",
        ),
        (
            "limit_val_batches = 1.5",
            "limit_val_batches = 1.5: expected a number of batches",
        ),
        (
            "progress = 'off'\nenable_progress_bar = true",
            "cannot be used with",
        ),
        ("seed = [1, 2]", "'seed' is an unexpected array"),
        ("[trainer]\nseed = 1", "'trainer' is an unexpected table"),
        ("module = 3", "'module' is not a table"),
        (
            "keep_full_precision = 'head.*'",
            "keep_full_precision: invalid type",
        ),
        ("[loss_scaler]\nscale = 8.0", "loss_scaler: unknown field `scale`"),
        ("gradient_clip = 1.0", "or use gradient_clip_val"),
        ("seed = 1\nseed = 2", "not valid TOML"),
    ] {
        let (_folder, path) = file(text);
        let error = resolve(&["--config", &path], TrainerConfig::default()).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(&path) && message.contains(expected), "{message}");
        assert_eq!(error.exit_code(), 2);
    }
    let error = resolve(&["--config", "nowhere.toml"], TrainerConfig::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("nowhere.toml") && error.contains("cannot be read"),
        "{error}"
    );
}

#[test]
fn a_saved_configuration_is_a_configuration_file() {
    for saved in [
        unusual(),
        TrainerConfig {
            gradient_clip: Some(GradientClip::Norm(1.0)),
            ..TrainerConfig::default()
        },
        TrainerConfig {
            precision: Precision::F16Mixed,
            keep_full_precision: vec!["head.*".to_owned(), "embedding".to_owned()],
            loss_scaler: Some(LossScalerOptions {
                initial_scale: 1024.0,
                ..LossScalerOptions::default()
            }),
            ..TrainerConfig::default()
        },
    ] {
        let (_folder, path) = file(&toml::to_string(&saved).unwrap());
        let defaults = TrainerConfig {
            name: "another".to_owned(),
            ..TrainerConfig::default()
        };
        assert_eq!(resolve(&["--config", &path], defaults).unwrap(), saved);
    }
}

#[test]
fn the_builder_takes_the_arguments_over_what_is_set_so_far() {
    let args = parse(&["--max-epochs", "2"]).unwrap().trainer;
    let trainer = Trainer::builder()
        .max_epochs(30)
        .log_every_n_steps(3)
        .args(&args)
        .unwrap()
        .build()
        .unwrap();
    assert_eq!(
        (trainer.config().max_epochs, trainer.config().log_every_n_steps),
        (Some(2), 3)
    );
    // A check of the whole: the flag is named as the builder names it.
    let args = parse(&["--min-epochs", "9", "--max-epochs", "2"])
        .unwrap()
        .trainer;
    let error = Trainer::builder().args(&args).unwrap().build().err().unwrap();
    assert!(error.to_string().contains("min_epochs: 9"), "{error}");
}

#[test]
fn the_help_names_every_flag_below_its_own_heading() {
    let help = <Program as clap::CommandFactory>::command()
        .render_help()
        .to_string();
    let (own, trainer) = help.split_once("Trainer options:").unwrap();
    assert!(own.contains("--model") && !trainer.contains("--model"), "{help}");
    for flag in [
        "--config",
        "--accelerator",
        "--max-time",
        "--fast-dev-run [<N>]",
        "--resume",
        "--profiler",
    ] {
        assert!(trainer.contains(flag), "{flag} in {help}");
    }
}
