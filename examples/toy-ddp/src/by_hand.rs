//! Without a trainer: join the ranks, start from the same weights, average every gradient, step.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use firebrand::collective::{Buffer, ProcessGroup, ReduceOp};
use firebrand::launch::{JoinOptions, Requested, Session, detect, environment_variable};
use firebrand::{BoxError, Result};

use crate::model::{BATCH, RATE, STEPS, Toy, mean_squared_error};

/// Ten steps on two ranks, or on as many as a launcher has started.
pub fn train() -> Result<()> {
    let launched = environment_variable("WORLD_SIZE").is_some();
    let requested = Requested {
        devices: (!launched).then_some(2),
        num_nodes: None,
    };
    let launch = detect(&requested, &environment_variable)?;
    let Some(session) = Session::join(&launch, JoinOptions::default())? else {
        return Err("this form is for several ranks".into());
    };
    let group = session.group();

    let device = Device::flex().autodiff();
    let mut broadcast = BroadcastWeights {
        group: group.as_ref(),
        error: None,
    };
    let mut model = Toy::new(&device).map(&mut broadcast);
    broadcast.error.map_or(Ok(()), Err)?;
    let mut optimizer = SgdConfig::new().init();
    // Each rank has data of its own.
    device.seed(group.rank() as u64);
    for step in 0..STEPS {
        let x = Tensor::random([BATCH, 10], Distribution::Normal(0.0, 1.0), &device);
        let target = Tensor::random([BATCH, 5], Distribution::Normal(0.0, 1.0), &device);
        let loss = mean_squared_error(model.forward(x), target);
        let shown = mean(group.as_ref(), &[loss.clone().into_scalar::<f32>()])?;

        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let mut average = AverageGradients {
            group: group.as_ref(),
            grads,
            error: None,
        };
        model.visit(&mut average);
        average.error.map_or(Ok(()), Err)?;
        model = optimizer.step(RATE, model, average.grads);

        if group.rank() == 0 {
            println!("step {step}: loss {:.4}", shown[0]);
        }
    }
    Ok(())
}

/// The mean over all ranks, element by element.
fn mean(group: &dyn ProcessGroup, values: &[f32]) -> Result<Vec<f32>> {
    let reduced = group
        .all_reduce(Buffer::from_slice(values), ReduceOp::Mean)
        .wait()?;
    Ok(reduced.as_slice::<f32>()?.to_vec())
}

/// Gives every rank the weights of rank 0.
struct BroadcastWeights<'a> {
    group: &'a dyn ProcessGroup,
    error: Option<BoxError>,
}

impl BroadcastWeights<'_> {
    fn of_zero<const D: usize>(&self, weights: &Tensor<D>) -> Result<Tensor<D>> {
        let values: Vec<f32> = weights.to_data().iter::<f32>().collect();
        let values = self.group.broadcast(Buffer::from_slice(&values), 0).wait()?;
        let data = TensorData::new(values.as_slice::<f32>()?.to_vec(), weights.shape());
        Ok(Tensor::from_data(data, &weights.device()).require_grad())
    }
}

impl ModuleMapper for BroadcastWeights<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|weights| {
            self.of_zero(&weights).unwrap_or_else(|error| {
                self.error = Some(error);
                weights
            })
        })
    }
}

/// Replaces every gradient by its mean over the ranks.
struct AverageGradients<'a> {
    group: &'a dyn ProcessGroup,
    grads: GradientsParams,
    error: Option<BoxError>,
}

impl ModuleVisitor for AverageGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.grads.remove::<D>(param.id) else {
            return;
        };
        let (shape, device) = (gradient.shape(), gradient.device());
        let values: Vec<f32> = gradient.into_data().iter::<f32>().collect();
        match mean(self.group, &values) {
            Ok(values) => {
                let data = TensorData::new(values, shape);
                self.grads
                    .register(param.id, Tensor::<D>::from_data(data, &device));
            }
            Err(error) => self.error = Some(error),
        }
    }
}
