//! With the trainer: the same network and the same steps, and nothing about ranks but their number.

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use firebrand::data::Samples;
use firebrand::prelude::*;

use crate::model::{BATCH, RATE, STEPS, Toy, mean_squared_error};

#[derive(Module, Debug)]
struct LitToy {
    net: Toy,
}

impl LightningModule for LitToy {
    type Batch = (Tensor<2>, Tensor<2>);

    fn training_step(&self, (x, target): Self::Batch, step: &mut StepContext) -> Result<Tensor<1>> {
        let loss = mean_squared_error(self.net.forward(x), target);
        step.log("train_loss", &loss);
        Ok(loss)
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), RATE)
    }
}

/// Ten steps on two ranks, or on as many as the arguments or a launcher say.
pub fn train(args: &TrainerArgs) -> Result<()> {
    // Each sample is drawn from its own generator, so that it is the same on any number of ranks.
    let samples = Samples::new(InMemDataset::new((0..1000).collect::<Vec<usize>>())).map(|_, rng| {
        let mut draw = |count| {
            (0..count)
                .map(|_| rng.uniform(-1.7, 1.7) as f32)
                .collect::<Vec<_>>()
        };
        Ok((draw(10), draw(5)))
    });
    let collate = |samples: Vec<(Vec<f32>, Vec<f32>)>, device: &Device| {
        let count = samples.len();
        let (xs, targets): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
        let tensor = |rows: Vec<Vec<f32>>, width| {
            Tensor::<1>::from_floats(rows.concat().as_slice(), device).reshape([count, width])
        };
        Ok((tensor(xs, 10), tensor(targets, 5)))
    };
    let mut trainer = Trainer::builder()
        .strategy(Strategy::ddp())
        .max_steps(STEPS as u64)
        .log_every_n_steps(1)
        .args(args)?
        .build()?;
    let loader = DataLoader::from_fn(samples, collate)
        .batch_size(BATCH)
        .shuffle(true);
    // Each rank makes a network of its own, so that ranks may be threads of one process as well: `--launcher thread`.
    let fitted = trainer.fit_with(move || {
        let lit = LitToy {
            net: Toy::new(&Device::flex()),
        };
        Ok((lit, Data::new().train(loader.clone())))
    })?;
    trainer.print(format!(
        "{} steps on {} ranks",
        fitted.report.global_step,
        trainer.topology().world_size
    ));
    Ok(())
}
