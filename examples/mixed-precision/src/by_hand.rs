//! Without a trainer: cast the weights, scale the loss, go back, unscale, check, step, adapt the scale.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, FloatDType, Tensor};
use firebrand::{LossScaler, Precision, Result, TrainerArgs, TrainerConfig};

use crate::model::{
    BATCH, EPOCHS, EVERY, Net, RATE, SAMPLES, Sample, collate, mean_squared_error, report, sample,
};

/// Trains on the processor, in the precision that the arguments say.
pub fn train(args: &TrainerArgs) -> Result<()> {
    let mut defaults = TrainerConfig::default();
    defaults.precision = Precision::F16Mixed;
    let precision = args.resolve(defaults)?.precision;
    let compute = precision.compute();
    let mut scaler = match precision {
        Precision::F16Mixed => Some(LossScaler::new(Default::default())?),
        Precision::F32 | Precision::Bf16Mixed => None,
        other => {
            return Err(format!(
                "--precision {}: by hand there are 32-true, bf16-mixed and 16-mixed",
                other.as_str()
            )
            .into());
        }
    };

    let device = Device::flex().autodiff();
    // The weights that the optimizer sees are float32.
    let mut net = Net::new(&device);
    let mut optimizer = AdamWConfig::new().init();
    let samples: Vec<Sample> = (0..SAMPLES).map(sample).collect();
    let batches = (0..EPOCHS).flat_map(|_| samples.chunks(BATCH));
    let mut global_step = 0;
    for batch in batches {
        let (x, target) = collate(batch.to_vec(), &device);
        // Steps see a copy in 16 bits. The cast is a part of the graph, so that gradients arrive at the weights in float32.
        let copy = net.clone().map(&mut CastTo(compute));
        let output = copy.forward(x.cast(compute));
        // The square of 256 is beyond float16.
        let loss = mean_squared_error(output.cast(FloatDType::F32), target);

        // Gradients below 6e-8 would be zero in float16.
        let scale = scaler.as_ref().map_or(1.0, LossScaler::scale);
        let grads = loss.clone().mul_scalar(scale).backward();
        let mut unscale = Unscale {
            grads: GradientsParams::from_grads(grads, &net),
            scale,
            finite: true,
        };
        net.visit(&mut unscale);

        // An update with a gradient that is not finite is left out, and the scale shrinks.
        if unscale.finite {
            net = optimizer.step(RATE, net, unscale.grads);
            global_step += 1;
        }
        match &mut scaler {
            Some(scaler) => scaler.update(unscale.finite)?,
            None if unscale.finite => {}
            None => return Err(format!("a gradient is not finite at global step {global_step}").into()),
        }
        if unscale.finite && global_step % EVERY == 0 {
            let scale = scaler.as_ref().map(LossScaler::scale);
            println!("{}", report(global_step, loss.into_scalar::<f64>(), scale));
        }
    }
    println!("{global_step} updates");
    Ok(())
}

/// Casts every weight, differentiably.
struct CastTo(FloatDType);

impl ModuleMapper for CastTo {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|weights| weights.cast(self.0))
    }
}

/// Divides every gradient by the scale, and sees whether all are finite.
struct Unscale {
    grads: GradientsParams,
    scale: f64,
    finite: bool,
}

impl ModuleVisitor for Unscale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.grads.remove::<D>(param.id) {
            self.finite &= gradient.clone().is_finite().all().into_scalar::<bool>();
            self.grads.register(param.id, gradient.div_scalar(self.scale));
        }
    }
}
