use super::Accelerator;

/// Why an accelerator cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AcceleratorError {
    /// The program was built without it.
    #[error(
        "accelerator: {0} is not compiled into this program; build it with the feature `{0}` of the crate firebrand (`cargo run \
         --features firebrand/{0}`), or use one of: {1}", accelerator.as_str(), compiled()
    )]
    NotCompiled {
        /// What was asked for.
        accelerator: Accelerator,
    },
    /// There is no such device, or what it needs is not installed.
    #[error("accelerator: there is no device for {}; {}", accelerator.as_str(), needs(*accelerator))]
    NotPresent {
        /// What was asked for.
        accelerator: Accelerator,
    },
    /// More ranks on a node than devices.
    #[error(
        "accelerator: rank {local_rank} of this node has no {} device of its own, since there {} here; ask for at most {present} \
         `devices` per node, or use an accelerator that ranks share, such as cpu",
        accelerator.as_str(), if *present == 1 { "is 1".to_owned() } else { format!("are {present}") }
    )]
    TooFew {
        /// What was asked for.
        accelerator: Accelerator,
        /// How many there are.
        present: usize,
        /// The rank within its node, from 0.
        local_rank: usize,
    },
    /// The device is there and does not work.
    #[error("accelerator: {} cannot use its device: {reason}; {}", accelerator.as_str(), needs(*accelerator))]
    Unusable {
        /// What was asked for.
        accelerator: Accelerator,
        /// What the backend said.
        reason: String,
    },
    /// The device cannot compute in the precision.
    #[error(
        "precision: {precision} needs {dtype}, in which {} on this device cannot compute; choose a precision of {able}, or the \
         accelerator cpu", accelerator.as_str()
    )]
    Precision {
        /// What was asked for.
        accelerator: Accelerator,
        /// The precision, by its name.
        precision: &'static str,
        /// The type that it needs.
        dtype: &'static str,
        /// The types that the device computes in.
        able: String,
    },
}

impl AcceleratorError {
    /// Whether other options are the remedy, and not another machine.
    pub(crate) fn is_usage(&self) -> bool {
        !matches!(self, Self::NotPresent { .. } | Self::Unusable { .. })
    }
}

/// The names of those that are compiled in.
fn compiled() -> String {
    let names = Accelerator::ALL
        .into_iter()
        .filter(|accelerator| accelerator.is_compiled())
        .map(Accelerator::as_str);
    names.collect::<Vec<_>>().join(", ")
}

/// What has to be there for an accelerator.
fn needs(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Auto | Accelerator::Cpu => "the processor should always be there",
        Accelerator::LibTorch => {
            "LibTorch 2.9.0 has to be found by the loader (LD_LIBRARY_PATH); see `scripts/setup-libtorch`"
        }
        Accelerator::LibTorchCuda => {
            "it needs an NVIDIA GPU, its driver (`nvidia-smi` shows both), and a LibTorch that was built with CUDA; if \
             CUDA_VISIBLE_DEVICES is set, it must name a GPU"
        }
        Accelerator::WebGpu => {
            "it needs a GPU with a Vulkan driver (Linux: libvulkan1 and the vendor's driver; mesa-vulkan-drivers has one in \
             software), Metal or Direct3D 12"
        }
        Accelerator::Cuda => {
            "it needs an NVIDIA GPU and its driver (libcuda.so.1; `nvidia-smi` shows both), and NVIDIA's libnvrtc and CUDA headers \
             of CUDA 12 or later; if CUDA_VISIBLE_DEVICES is set, it must name a GPU"
        }
    }
}
