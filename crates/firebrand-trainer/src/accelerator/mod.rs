//! Which device computes: the kinds there are, those that this program can use on this machine, and the one that a rank gets.

mod chosen;
mod devices;
mod error;

use burn::tensor::Device;
use firebrand_strategy::Precision;
use serde::{Deserialize, Serialize};

pub(crate) use chosen::Chosen;
#[cfg(feature = "libtorch")]
pub(crate) use devices::limit_threads;
pub use error::AcceleratorError;

/// Which device computes.
///
/// [`Cpu`](Self::Cpu) is there in every program; the others are compiled in by the feature of the same name of the crate
/// `firebrand`, and want something installed where the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Accelerator {
    /// The best that is compiled in, present and able to compute in the precision: `cuda`, `libtorch-cuda`, `webgpu` on a GPU,
    /// `libtorch`, `cpu`, in this order.
    #[default]
    Auto,
    /// The processor, with Burn's pure-Rust backend Flex.
    Cpu,
    /// The processor, with LibTorch.
    #[serde(rename = "libtorch")]
    LibTorch,
    /// NVIDIA GPUs, with LibTorch.
    #[serde(rename = "libtorch-cuda")]
    LibTorchCuda,
    /// GPUs of any make, with fused kernels through Vulkan, Metal or Direct3D. Also a software device such as Mesa's, if there is
    /// nothing else.
    #[serde(rename = "webgpu")]
    WebGpu,
    /// NVIDIA GPUs, with fused CUDA kernels.
    Cuda,
}

impl Accelerator {
    /// All but `Auto`, the best first.
    const BEST_FIRST: [Self; 5] = [
        Self::Cuda,
        Self::LibTorchCuda,
        Self::WebGpu,
        Self::LibTorch,
        Self::Cpu,
    ];

    /// Every one, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::Cpu,
        Self::LibTorch,
        Self::LibTorchCuda,
        Self::WebGpu,
        Self::Cuda,
    ];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::LibTorch => "libtorch",
            Self::LibTorchCuda => "libtorch-cuda",
            Self::WebGpu => "webgpu",
            Self::Cuda => "cuda",
        }
    }

    /// Whether it is compiled into this program.
    pub fn is_compiled(self) -> bool {
        match self {
            Self::Auto | Self::Cpu => true,
            Self::LibTorch => cfg!(feature = "libtorch"),
            Self::LibTorchCuda => cfg!(feature = "libtorch-cuda"),
            Self::WebGpu => cfg!(feature = "webgpu"),
            Self::Cuda => cfg!(feature = "cuda"),
        }
    }

    /// How many devices of the kind are present, without opening one: 0 if there is none or the kind is not compiled in. A
    /// processor is one device.
    pub fn num_devices(self) -> usize {
        match self {
            Self::Auto => Self::BEST_FIRST
                .into_iter()
                .map(Self::num_devices)
                .find(|count| *count > 0)
                .unwrap_or_default(),
            kind => devices::present(kind).list.len(),
        }
    }

    /// The first device of the kind, without autodiff, opened and tried in float32; for programs without a trainer, and to build
    /// modules and batches where they will be used.
    ///
    /// # Errors
    ///
    /// If the kind is not compiled in or not present, or the device cannot be used.
    pub fn device(self) -> Result<Device, AcceleratorError> {
        Chosen::for_rank(self, Precision::F32, 0).map(|chosen| chosen.device)
    }

    /// Whether the kind can be had at all, without opening a device.
    pub(crate) fn check(self) -> Result<(), AcceleratorError> {
        if !self.is_compiled() {
            return Err(AcceleratorError::NotCompiled { accelerator: self });
        }
        if self.num_devices() == 0 {
            return Err(AcceleratorError::NotPresent { accelerator: self });
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_file_is_that_of_the_command_line() {
        #[derive(Deserialize)]
        struct File {
            accelerator: Accelerator,
        }
        for accelerator in Accelerator::ALL {
            let text = format!("accelerator = '{}'", accelerator.as_str());
            assert_eq!(toml::from_str::<File>(&text).unwrap().accelerator, accelerator);
        }
    }

    #[test]
    fn what_is_not_compiled_in_names_the_feature() {
        for accelerator in Accelerator::ALL {
            let found = accelerator.device();
            if accelerator.is_compiled() {
                continue;
            }
            let error = found.unwrap_err().to_string();
            assert!(
                error.contains(&format!("feature `{}`", accelerator.as_str())),
                "{error}"
            );
            assert_eq!(accelerator.num_devices(), 0);
        }
    }

    #[test]
    fn the_processor_serves_every_rank() {
        for local_rank in [0, 3] {
            let chosen = Chosen::for_rank(Accelerator::Cpu, Precision::F64, local_rank).unwrap();
            assert_eq!(chosen.accelerator, Accelerator::Cpu);
            assert_eq!(chosen.device, Device::flex());
        }
    }

    #[test]
    fn auto_finds_something() {
        let chosen = Chosen::for_rank(Accelerator::Auto, Precision::F64, 0).unwrap();
        assert_ne!(chosen.accelerator, Accelerator::Auto);
        assert!(chosen.accelerator.is_compiled());
    }
}
