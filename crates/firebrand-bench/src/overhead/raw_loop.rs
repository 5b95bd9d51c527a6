use burn::optim::{AdamWConfig, GradientsParams, SgdConfig};
use burn::tensor::Device;

use super::feed::Source;
use super::model::{LEARNING_RATE, LOG_EVERY_N_STEPS, Mlp, Optimizer, Size};

/// The loop that a user of Burn writes, and nothing else.
pub(super) fn train(size: Size, optimizer: Optimizer, source: Source) -> Mlp {
    let device = Device::flex().autodiff();
    let mut module = Mlp::new(size, optimizer, &device);
    let mut optimizer = match optimizer {
        Optimizer::AdamW => AdamWConfig::new().init(),
        Optimizer::Sgd => SgdConfig::new().init(),
    };
    for (step, batch) in (1u64..).zip(source.open(&device)) {
        let loss = module.loss(batch);
        let gradients = GradientsParams::from_grads(loss.backward(), &module);
        module = optimizer.step(LEARNING_RATE, module, gradients);
        if step.is_multiple_of(LOG_EVERY_N_STEPS) {
            std::hint::black_box(loss.into_scalar::<f32>());
        }
    }
    module
}
