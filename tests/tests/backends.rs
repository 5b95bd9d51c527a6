//! Every backend that is compiled in does what Flex does: gradients, a fit, a resumed fit, and ranks; and what cannot be used is
//! an error that says what to do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use firebrand::prelude::*;
use firebrand_tests::runs::{assert_close, column, succeeded};

/// The program that trains on any accelerator, with everything it writes under a folder.
fn train_ranks(root: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train_ranks"));
    command
        .args(["--default-root-dir", root.to_str().unwrap(), "--progress", "off"])
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .env("FIREBRAND_TIMEOUT", "120");
    quiet(&mut command);
    command.output().unwrap()
}

/// A fixed number of threads is part of what is promised.
fn quiet(command: &mut Command) {
    command
        .env("RAYON_NUM_THREADS", "1")
        .env("OMP_NUM_THREADS", "1")
        .env_remove("FIREBRAND_LOG");
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `train_loss` by step.
fn curve(root: &Path, arguments: &str) -> Vec<f64> {
    succeeded(&train_ranks(root, arguments));
    column(root, "train_loss")
}

#[allow(dead_code)] // Without other backends nothing is compared with Flex.
mod checks {
    use std::sync::{Arc, Mutex};

    use burn::tensor::activation::tanh;
    use burn::tensor::{DType, Device, FloatDType, Tensor};
    use firebrand::AnyTensor;
    use firebrand::strategy::{GradientSink, Turns, parameter_use};

    use super::*;

    #[derive(Default)]
    struct Sink(Mutex<Vec<(usize, AnyTensor)>>);

    impl GradientSink for Sink {
        fn push(&self, parameter: usize, gradient: AnyTensor) {
            self.0.lock().unwrap().push((parameter, gradient));
        }
    }

    /// Gradients of two weights, of which the first is used twice, by parameter.
    fn gradients(device: &Device, compute: FloatDType, in_turn: bool) -> Vec<Vec<f32>> {
        let device = device.clone().autodiff();
        let values = |count: usize, salt: usize| -> Vec<f32> {
            (0..count)
                .map(|i| ((i * 37 + salt * 11) % 23) as f32 / 23.0 - 0.5)
                .collect()
        };
        let tensor = |shape: [usize; 2], salt| {
            let values = values(shape[0] * shape[1], salt);
            Tensor::<1>::from_data(values.as_slice(), (&device, DType::F32)).reshape(shape)
        };
        let sink = Arc::new(Sink::default());
        let turns = in_turn.then(|| Turns::new(2, &device));
        let used = |weight: Tensor<2>, parameter: usize| -> Tensor<2> {
            let turn = turns.as_ref().and_then(|turns| turns.get(parameter));
            let sink = Arc::clone(&sink) as Arc<dyn GradientSink>;
            parameter_use(weight.require_grad().into(), turn, compute, parameter, sink)
                .float()
                .unwrap()
        };
        let (first, second) = (used(tensor([5, 5], 1), 0), used(tensor([5, 3], 2), 1));
        let x = tensor([4, 5], 3).cast(compute);
        let hidden = tanh(tanh(x.matmul(first.clone())).matmul(first));
        let output = hidden.matmul(second).cast(FloatDType::F32);
        (output.clone() * output).sum().backward();
        let mut found = std::mem::take(&mut *sink.0.lock().unwrap());
        found.sort_by_key(|(parameter, _)| *parameter);
        let order: Vec<usize> = found.iter().map(|(parameter, _)| *parameter).collect();
        assert_eq!(order, [0, 1], "each gradient arrives once");
        found
            .into_iter()
            .map(|(_, gradient)| {
                assert_eq!(gradient.dtype(), DType::F32, "as the master weight");
                assert!(!gradient.device().is_autodiff());
                gradient.into_data().iter::<f32>().collect()
            })
            .collect()
    }

    pub fn gradients_are_those_of_flex(accelerator: Accelerator) {
        let device = accelerator.device().unwrap();
        for (compute, tolerance) in [
            (FloatDType::F32, 1e-5),
            (FloatDType::F16, 5e-3),
            (FloatDType::BF16, 4e-2),
        ] {
            if !device.supports_dtype(compute) {
                continue;
            }
            for in_turn in [false, true] {
                let expected = gradients(&Device::flex(), compute, in_turn);
                let found = gradients(&device, compute, in_turn);
                for (expected, found) in expected.iter().flatten().zip(found.iter().flatten()) {
                    assert!(expected.is_finite());
                    assert!(
                        (expected - found).abs() <= tolerance * (1.0 + expected.abs()),
                        "{compute:?}, in turn: {in_turn}: {found} and not {expected}"
                    );
                }
            }
        }
    }

    pub fn a_fit_is_that_of_flex(accelerator: Accelerator) {
        let folder = tempfile::tempdir().unwrap();
        let on = |accelerator: Accelerator| {
            let name = accelerator.as_str();
            let arguments = format!("--accelerator {name} --max-steps 60 --gradient-clip-val 0.5 --evaluate");
            curve(&folder.path().join(name), &arguments)
        };
        let expected = on(Accelerator::Cpu);
        assert!(expected[59] < 0.7 * expected[0], "it learns: {expected:?}");
        assert_close(&expected, &on(accelerator), 1e-3, accelerator.as_str());
    }

    pub fn two_ranks_are_one_with_the_doubled_batch(accelerator: Accelerator) {
        let folder = tempfile::tempdir().unwrap();
        let ranks = |count: usize| {
            // Accumulated, so that a bucket is filled twice.
            let arguments = format!(
                "--accelerator {} --devices {count} --max-steps 30 --accumulate-grad-batches 2",
                accelerator.as_str()
            );
            curve(&folder.path().join(count.to_string()), &arguments)
        };
        assert_close(&ranks(1), &ranks(2), 1e-4, accelerator.as_str());
    }

    /// The 16-bit precisions that a device can do.
    fn mixed(accelerator: Accelerator) -> Vec<&'static str> {
        let device = accelerator.device().unwrap();
        let precisions = [Precision::Bf16Mixed, Precision::F16Mixed].into_iter();
        let able: Vec<&str> = precisions
            .filter(|precision| device.supports_dtype(precision.compute()))
            .map(Precision::as_str)
            .collect();
        assert!(!able.is_empty());
        able
    }

    pub fn mixed_precision_follows_float32(accelerator: Accelerator) {
        let folder = tempfile::tempdir().unwrap();
        let name = accelerator.as_str();
        let on = |precision: &str, ranks: usize| {
            let arguments = format!(
                "--accelerator {name} --precision {precision} --devices {ranks} --max-epochs 8 --max-steps 120"
            );
            curve(&folder.path().join(format!("{precision}-{ranks}")), &arguments)
        };
        let exact = on("32-true", 1);
        let mean = |losses: &[f64]| losses[losses.len() - 16..].iter().sum::<f64>() / 16.0;
        for precision in mixed(accelerator) {
            for ranks in [1, 2] {
                let found = on(precision, ranks);
                // Updates that the scale of the loss costs are made up for.
                assert_eq!(found.len(), exact.len(), "{precision}");
                assert!(
                    (mean(&found) / mean(&exact) - 1.0).abs() < 0.1,
                    "{precision} on {ranks} ranks: {} and not {}",
                    mean(&found),
                    mean(&exact)
                );
            }
        }
    }

    fn start(root: &Path, accelerator: Accelerator, precision: &str, resume: Option<&str>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_train_classifier"));
        command
            .arg(root)
            .args(["1", "3"])
            .args(resume)
            .env("FIREBRAND_TEST_ACCELERATOR", accelerator.as_str())
            .env("FIREBRAND_TEST_PRECISION", precision)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        quiet(&mut command);
        command.spawn().unwrap()
    }

    fn finished(child: Child) {
        succeeded(&child.wait_with_output().unwrap());
    }

    fn last(root: &Path) -> Option<PathBuf> {
        let checkpoints = root.join("classifier/version_0/checkpoints");
        let name = std::fs::read_to_string(checkpoints.join("last")).ok()?;
        Some(checkpoints.join(name.trim()))
    }

    /// Weights, optimizer, averages and the curve.
    fn files(root: &Path) -> Vec<(String, Vec<u8>)> {
        let checkpoint = last(root).expect("a finished run has a last checkpoint");
        let files = std::fs::read_dir(checkpoint).unwrap().flatten();
        let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
        files.retain(|path| {
            path.extension()
                .is_some_and(|extension| extension == "safetensors")
        });
        assert!(files.len() >= 3, "{files:?}");
        files.push(root.join("classifier/version_0/metrics.csv"));
        files.sort();
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        files
            .iter()
            .map(|path| (name(path), std::fs::read(path).unwrap()))
            .collect()
    }

    pub fn killed_and_resumed_is_byte_equal(accelerator: Accelerator) {
        for precision in ["32-true"].into_iter().chain(mixed(accelerator)) {
            killed_and_resumed(accelerator, precision);
        }
    }

    fn killed_and_resumed(accelerator: Accelerator, precision: &str) {
        let folder = tempfile::tempdir().unwrap();
        let (whole, killed) = (folder.path().join("whole"), folder.path().join("killed"));
        finished(start(&whole, accelerator, precision, None));
        let mut child = start(&killed, accelerator, precision, None);
        let started = Instant::now();
        while last(&killed).is_none() {
            assert!(started.elapsed() < Duration::from_secs(120), "no checkpoint");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(
            child.try_wait().unwrap().is_none(),
            "it was to be killed in between"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        finished(start(&killed, accelerator, precision, Some("last")));
        for ((name, expected), (_, found)) in files(&whole).iter().zip(&files(&killed)) {
            assert!(expected == found, "{name} differs in {precision}");
        }
    }
}

/// The same tests for one backend.
#[allow(unused_macros)]
macro_rules! backend {
    ($name:ident, $accelerator:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn gradients_are_those_of_flex() {
                checks::gradients_are_those_of_flex($accelerator);
            }

            #[test]
            fn a_fit_is_that_of_flex() {
                checks::a_fit_is_that_of_flex($accelerator);
            }

            #[test]
            fn two_ranks_are_one_with_the_doubled_batch() {
                checks::two_ranks_are_one_with_the_doubled_batch($accelerator);
            }

            #[test]
            fn mixed_precision_follows_float32() {
                checks::mixed_precision_follows_float32($accelerator);
            }

            #[test]
            fn killed_and_resumed_is_byte_equal() {
                checks::killed_and_resumed_is_byte_equal($accelerator);
            }
        }
    };
}

// Flex against itself, where that says something: in mixed precision.
#[test]
fn mixed_precision_follows_float32_on_flex() {
    checks::mixed_precision_follows_float32(Accelerator::Cpu);
}

#[cfg(feature = "libtorch")]
backend!(libtorch, Accelerator::LibTorch);
#[cfg(feature = "webgpu")]
backend!(webgpu, Accelerator::WebGpu);

/// Runs what is to be refused; returns what it says and its exit code.
fn refused(arguments: &str, environment: &[(&str, &str)]) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_train_ranks"));
    command
        .args(["--default-root-dir", folder.path().to_str().unwrap()])
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .envs(environment.iter().copied());
    quiet(&mut command);
    let output = command.output().unwrap();
    let text = said(&output);
    assert!(!text.contains("panicked"), "{arguments}: {text}");
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing is written before the accelerator is known"
    );
    (text, output.status.code())
}

#[test]
fn what_is_not_compiled_in_names_its_feature() {
    for accelerator in Accelerator::ALL.into_iter().filter(|known| !known.is_compiled()) {
        let name = accelerator.as_str();
        let (text, code) = refused(&format!("--accelerator {name} --devices 2"), &[]);
        assert!(text.contains(&format!("feature `{name}`")), "{text}");
        assert_eq!(code, Some(2), "{text}");
    }
}

#[test]
fn what_is_not_present_says_what_it_needs() {
    // No GPU that a driver may find, and no driver of Vulkan or OpenGL.
    let nothing = [
        ("__EGL_VENDOR_LIBRARY_FILENAMES", "none"),
        ("CUDA_VISIBLE_DEVICES", "-1"),
        ("VK_DRIVER_FILES", "none"),
        ("VK_ICD_FILENAMES", "none"),
    ];
    for (accelerator, needed) in [
        (Accelerator::Cuda, "nvidia-smi"),
        (Accelerator::LibTorchCuda, "nvidia-smi"),
        (Accelerator::WebGpu, "Vulkan"),
    ] {
        if !accelerator.is_compiled() || (accelerator == Accelerator::WebGpu && !cfg!(target_os = "linux")) {
            continue;
        }
        let (text, code) = refused(&format!("--accelerator {}", accelerator.as_str()), &nothing);
        assert!(text.contains(needed), "{text}");
        assert_eq!(code, Some(1), "{text}");
    }
}

#[cfg(feature = "webgpu")]
#[test]
fn a_precision_that_the_device_lacks_names_those_that_it_has() {
    let device = Accelerator::WebGpu.device().unwrap();
    if device.supports_dtype(burn::tensor::FloatDType::F64) {
        return;
    }
    let (text, code) = refused("--accelerator webgpu --precision 64-true", &[]);
    for part in ["64-true", "float64", "float32", "cpu"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(code, Some(2), "{text}");
}

#[test]
fn auto_finds_a_device_that_can_compute_in_the_precision() {
    let folder = tempfile::tempdir().unwrap();
    let losses = curve(
        folder.path(),
        "--accelerator auto --precision 64-true --max-steps 3",
    );
    assert_eq!(losses.len(), 3);
}
