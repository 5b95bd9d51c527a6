//! What each backend says of its devices. Everything that is compiled in by a feature is here.

use burn::tensor::Device;
#[cfg(any(feature = "cuda", feature = "libtorch-cuda", feature = "webgpu"))]
use burn::tensor::DeviceType;

use super::Accelerator;

/// The devices of one kind that are there.
#[derive(Debug, Default)]
pub(super) struct Present {
    pub list: Vec<Device>,
    /// Whether several ranks use one device.
    pub is_shared: bool,
    /// Whether `Auto` takes one.
    pub is_for_auto: bool,
    /// Whether it takes a computation to know that they work.
    pub is_tried: bool,
}

impl Present {
    fn processor(device: Device) -> Self {
        Self {
            list: vec![device],
            is_shared: true,
            is_for_auto: true,
            is_tried: false,
        }
    }

    #[cfg(any(feature = "cuda", feature = "libtorch-cuda", feature = "webgpu"))]
    fn gpus(list: Vec<Device>) -> Self {
        Self {
            is_for_auto: !list.is_empty(),
            list,
            is_shared: false,
            is_tried: true,
        }
    }

    /// The device for the rank with a number within its node, if there is one for it.
    pub(super) fn of_rank(&self, local_rank: usize) -> Option<Device> {
        let alone = self.list.len() == 1 && (self.is_shared || has_gpu_of_its_own());
        self.list.get(if alone { 0 } else { local_rank }).cloned()
    }
}

/// Whether Slurm shows each rank the one GPU that is its own.
fn has_gpu_of_its_own() -> bool {
    ["SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// What there is of a kind, without opening it; nothing if it is not compiled in.
pub(super) fn present(accelerator: Accelerator) -> Present {
    match accelerator {
        Accelerator::Cpu => Present::processor(Device::flex()),
        #[cfg(feature = "libtorch")]
        #[allow(deprecated)] // Burn means to give LibTorch up; here it is one backend of several.
        Accelerator::LibTorch => Present::processor(Device::libtorch()),
        #[cfg(feature = "libtorch-cuda")]
        Accelerator::LibTorchCuda => Present::gpus(Device::enumerate(DeviceType::LibTorch).into_vec()),
        #[cfg(feature = "webgpu")]
        Accelerator::WebGpu => webgpu(),
        #[cfg(feature = "cuda")]
        Accelerator::Cuda => Present::gpus(Device::enumerate(DeviceType::Cuda).into_vec()),
        _ => Present::default(),
    }
}

/// Makes a device ready to compute where that can fail with an error; elsewhere the first use does.
#[cfg(feature = "webgpu")]
pub(super) fn open(device: &Device) -> Result<(), String> {
    use burn::backend::wgpu::graphics::AutoGraphicsApi;
    use burn::backend::wgpu::{RuntimeOptions, WgpuInitError, try_init_setup};
    use burn::backend::{CubeDevice, DispatchDevice};

    let DispatchDevice::Cube(CubeDevice::Wgpu(device)) = device.as_dispatch() else {
        return Ok(());
    };
    let options = RuntimeOptions::try_default().map_err(|error| error.to_string())?;
    match try_init_setup::<AutoGraphicsApi>(device, options) {
        // It is open already.
        Ok(_) | Err(WgpuInitError::Registration { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Makes a device ready to compute; here, the first use does.
#[cfg(not(feature = "webgpu"))]
pub(super) fn open(_: &Device) -> Result<(), String> {
    Ok(())
}

/// Gives LibTorch so many threads on the processor.
#[cfg(feature = "libtorch")]
pub(crate) fn limit_threads(count: usize) {
    tch::set_num_threads(i32::try_from(count).unwrap_or(i32::MAX));
}

/// The adapters of the best kind: an integrated GPU beside a discrete one would slow its rank down.
#[cfg(feature = "webgpu")]
fn webgpu() -> Present {
    use burn::backend::{CubeDevice, DispatchDevice, WgpuDeviceKind};
    use burn::tensor::DeviceKind;

    let found = Device::enumerate(DeviceType::Wgpu).into_vec();
    if found.is_empty() {
        return Present::default();
    }
    // The user has named one, which Burn looks up.
    if std::env::var_os("CUBECL_WGPU_DEFAULT_DEVICE").is_some() {
        return Present {
            is_shared: true,
            ..Present::gpus(vec![Device::wgpu(DeviceKind::DefaultDevice)])
        };
    }
    let class = |device: &Device| match device.as_dispatch() {
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) => match device.kind {
            WgpuDeviceKind::DiscreteGpu(_) => 0,
            WgpuDeviceKind::IntegratedGpu(_) => 1,
            WgpuDeviceKind::VirtualGpu(_) => 2,
            WgpuDeviceKind::Cpu => SOFTWARE,
            _ => 3,
        },
        _ => SOFTWARE,
    };
    const SOFTWARE: u8 = 4;
    let best = found.iter().map(class).min().unwrap_or(SOFTWARE);
    let list = found.into_iter().filter(|device| class(device) == best).collect();
    Present {
        is_shared: best == SOFTWARE,
        is_for_auto: best != SOFTWARE,
        ..Present::gpus(list)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_a_processor_and_not_a_gpu() {
        let shared = Present::processor(Device::flex());
        assert!(shared.of_rank(5).is_some());
        let own = Present {
            is_shared: false,
            ..Present::processor(Device::flex())
        };
        assert!(own.of_rank(0).is_some());
        // Unless Slurm runs this test with a GPU for each task.
        assert_eq!(own.of_rank(1).is_some(), has_gpu_of_its_own());
    }
}
