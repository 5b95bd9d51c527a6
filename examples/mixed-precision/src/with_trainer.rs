//! With the trainer: the same network and the same steps, and a precision as an option.

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use firebrand::prelude::*;
use firebrand::progress::ProgressMode;
use firebrand::strategy::Update;

use crate::model::{BATCH, EPOCHS, EVERY, Net, RATE, SAMPLES, collate, mean_squared_error, report, sample};

#[derive(Module, Debug)]
struct LitNet {
    net: Net,
}

impl LightningModule for LitNet {
    type Batch = (Tensor<2>, Tensor<2>);

    fn training_step(&self, (x, target): Self::Batch, step: &mut StepContext) -> Result<Tensor<1>> {
        let output = step.full_precision(self.net.forward(x));
        let loss = mean_squared_error(output, step.full_precision(target));
        step.log("train_loss", &loss);
        Ok(loss)
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(AdamWConfig::new(), RATE)
    }
}

/// Trains in the precision, and whatever else, that the arguments say.
pub fn train(args: &TrainerArgs) -> Result<()> {
    let print = Lambda::new("print").on_train_batch_end(|view, _| {
        let due =
            matches!(view.update, Some(Update::Stepped { .. })) && view.global_step.is_multiple_of(EVERY);
        if let (true, true, Some(loss)) = (due, view.is_global_zero, view.metrics.get("train_loss")) {
            let scale = view.metrics.get("loss_scale").copied();
            println!("{}", report(view.global_step, *loss, scale));
        }
        Ok(())
    });
    let mut trainer = Trainer::builder()
        .precision(Precision::F16Mixed)
        .max_epochs(EPOCHS)
        .log_every_n_steps(EVERY)
        .progress(ProgressMode::Off)
        .enable_checkpointing(false)
        .enable_model_summary(false)
        .no_logger()
        .callback(print)
        .args(args)?
        .build()?;
    let samples = InMemDataset::new((0..SAMPLES).map(sample).collect());
    let loader = DataLoader::from_fn(samples, |samples, device: &Device| Ok(collate(samples, device)))
        .batch_size(BATCH);
    let lit = LitNet {
        net: Net::new(&Device::flex()),
    };
    let fitted = trainer.fit(lit, Data::new().train(loader))?;
    trainer.print(format!("{} updates", fitted.report.global_step));
    Ok(())
}
