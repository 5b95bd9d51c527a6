use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrand_strategy::Precision;

use super::{Accelerator, AcceleratorError, devices};

/// The device of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Its kind, never `Auto`.
    pub accelerator: Accelerator,
    /// Without autodiff.
    pub device: Device,
}

impl Chosen {
    /// The device for the rank with a number within its node, opened and tried.
    ///
    /// Tensors on it that name no dtype have the precision's from now on, such as the constants that layers and losses make for
    /// themselves. Burn allows that once per device and process, before the first tensor; where it comes too late, that is said
    /// in a warning.
    pub(crate) fn for_rank(
        wanted: Accelerator,
        precision: Precision,
        local_rank: usize,
    ) -> Result<Self, AcceleratorError> {
        if wanted != Accelerator::Auto {
            wanted.check()?;
            return Self::open(wanted, precision, local_rank);
        }
        let mut refused = None;
        for accelerator in Accelerator::BEST_FIRST {
            // A device in software is there to be asked for by its name: the processor itself is faster.
            if !devices::present(accelerator).is_for_auto {
                continue;
            }
            match Self::open(accelerator, precision, local_rank) {
                Ok(chosen) => return Ok(chosen),
                // Half of the ranks on a GPU and half on the processor would be no speed-up.
                Err(error @ AcceleratorError::TooFew { .. }) => return Err(error),
                Err(error) => {
                    tracing::debug!("auto passes over {}: {error}", accelerator.as_str());
                    refused = Some(error);
                }
            }
        }
        Err(refused.unwrap_or(AcceleratorError::NotPresent { accelerator: wanted }))
    }

    fn open(
        accelerator: Accelerator,
        precision: Precision,
        local_rank: usize,
    ) -> Result<Self, AcceleratorError> {
        let present = devices::present(accelerator);
        let device = present.of_rank(local_rank).ok_or(AcceleratorError::TooFew {
            accelerator,
            present: present.list.len(),
            local_rank,
        })?;
        let unusable = |reason| AcceleratorError::Unusable { accelerator, reason };
        guarded(|| devices::open(&device)).map_err(unusable)?;
        let (master, compute) = (precision.master(), precision.compute());
        for dtype in [master, compute] {
            if !guarded(|| Ok(device.supports_dtype(dtype))).map_err(unusable)? {
                return Err(AcceleratorError::Precision {
                    accelerator,
                    precision: precision.as_str(),
                    dtype: name(dtype),
                    able: able(&device),
                });
            }
        }
        prefer(&device, precision);
        if present.is_tried {
            guarded(|| compute_one(&device, compute)).map_err(unusable)?;
        }
        Ok(Self { accelerator, device })
    }
}

/// Adds two numbers: a driver without its compiler is found here, and not in the middle of the first step.
fn compute_one(device: &Device, dtype: FloatDType) -> Result<(), String> {
    let one = Tensor::<1>::ones([1], (device, DType::from(dtype)));
    let sum = (one.clone() + one)
        .try_into_data()
        .map_err(|error| error.to_string())?;
    match sum.iter::<f32>().next() {
        Some(2.0) => Ok(()),
        other => Err(format!("1 + 1 gave {other:?}")),
    }
}

/// Lets tensors that name no dtype have the precision's.
fn prefer(device: &Device, precision: Precision) {
    let (wanted, mut device) = (precision.constants(), device.clone());
    if DType::from(device.settings().float_dtype) != DType::from(wanted) && device.configure(wanted).is_err()
    {
        tracing::warn!(
            "tensors were made before the trainer asked for {}: Burn keeps their dtype as the default, and a layer that makes \
             constants of its own may fail; build modules and batches after `Trainer::builder().build()`",
            precision.as_str()
        );
    }
}

/// Turns a backend's panic into an error: a missing driver is something to be told, not a crash.
fn guarded<T>(ask: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "it panicked".to_owned()))
    })
}

/// The float types that a device computes in, in words.
fn able(device: &Device) -> String {
    let all = [
        FloatDType::F64,
        FloatDType::F32,
        FloatDType::F16,
        FloatDType::BF16,
    ];
    let able = all.into_iter().filter(|dtype| device.supports_dtype(*dtype));
    let names: Vec<&str> = able.map(name).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "none".to_owned(),
    }
}

fn name(dtype: FloatDType) -> &'static str {
    match dtype {
        FloatDType::F64 => "float64",
        FloatDType::F32 | FloatDType::Flex32 => "float32",
        FloatDType::F16 => "float16",
        FloatDType::BF16 => "bfloat16",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_backend_is_an_error_with_its_text() {
        let said = guarded::<()>(|| panic!("libcuda.so.1 is {}", "missing")).unwrap_err();
        assert_eq!(said, "libcuda.so.1 is missing");
        assert_eq!(guarded(|| Ok(3)), Ok(3));
    }

    #[test]
    fn one_and_one_is_two_in_every_type_of_the_processor() {
        for dtype in [
            FloatDType::F64,
            FloatDType::F32,
            FloatDType::F16,
            FloatDType::BF16,
        ] {
            compute_one(&Device::flex(), dtype).unwrap();
        }
        assert_eq!(able(&Device::flex()), "float64, float32, float16 or bfloat16");
    }
}
