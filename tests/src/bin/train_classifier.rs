//! Trains the tests' model with everything that is hard to resume: `train_classifier ROOT RANKS PAUSE [RESUME]`.
//!
//! FIREBRAND_TEST_ACCELERATOR names the accelerator, FIREBRAND_TEST_PRECISION the precision; without them that is the processor
//! in 32-true. After each batch the program pauses for so
//! many milliseconds, so that it can be killed in between.

use std::time::Duration;

use burn::tensor::Device;
use firebrand::prelude::*;
use firebrand::progress::ProgressMode;
use firebrand_tests::{Classifier, data};

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().unwrap_or_else(|| "runs".to_owned());
    let ranks = arguments.next().and_then(|ranks| ranks.parse().ok()).unwrap_or(1);
    let pause = arguments.next().and_then(|pause| pause.parse().ok()).unwrap_or(3);
    let resume = arguments.next();
    let wanted = std::env::var("FIREBRAND_TEST_ACCELERATOR").unwrap_or_else(|_| "cpu".to_owned());
    let accelerator = Accelerator::ALL
        .into_iter()
        .find(|known| known.as_str() == wanted);
    let wanted_precision = std::env::var("FIREBRAND_TEST_PRECISION").unwrap_or_else(|_| "32-true".to_owned());
    let precision = Precision::ALL
        .into_iter()
        .find(|known| known.as_str() == wanted_precision);
    firebrand::run(move || {
        let precision = precision.ok_or_else(|| format!("there is no precision '{wanted_precision}'"))?;
        let slow = Lambda::new("slow").on_train_batch_end(move |_, _| {
            std::thread::sleep(Duration::from_millis(pause));
            Ok(())
        });
        let mut trainer = Trainer::builder()
            .default_root_dir(root)
            .name("classifier")
            .accelerator(accelerator.ok_or_else(|| format!("there is no accelerator '{wanted}'"))?)
            .devices(ranks)
            .precision(precision)
            .max_epochs(6)
            .accumulate_grad_batches(2)
            .gradient_clip(GradientClip::Norm(1.0))
            .val_check_interval(ValCheckInterval::Fraction(0.5))
            .log_every_n_steps(1)
            .callback(slow)
            .callback(EmaWeights::new(0.9))
            .callback(LearningRateMonitor::new())
            .callback(
                ModelCheckpoint::monitor("val_loss")
                    .save_top_k(2)
                    .every_n_train_steps(3)
                    .save_last(true),
            )
            .logger(CsvLogger::new())
            .progress(ProgressMode::Off)
            .enable_model_summary(false);
        if let Some(from) = resume {
            trainer = trainer.resume(from.as_str());
        }
        let device = Device::flex();
        let module = match precision {
            Precision::F32 => Classifier::new(&device),
            _ => Classifier::wide(&device)?,
        };
        trainer.build()?.fit(module, data(2))?;
        Ok(())
    })
}
