//! A small model with everything that is hard to resume, and its data: what the tests in `tests/` train.

pub mod runs;

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use firebrand::data::Samples;
use firebrand::metrics::Accuracy;
use firebrand::prelude::*;

/// The number of values of a sample.
pub const NUM_FEATURES: usize = 8;
/// The number of classes.
pub const NUM_CLASSES: usize = 3;

/// Points with a class that depends on them.
#[derive(Batch, Clone, Debug)]
pub struct Points {
    /// `[samples, NUM_FEATURES]`.
    pub features: Tensor<2>,
    /// `[samples]`.
    pub classes: Tensor<1, Int>,
}

/// Burn's batch norm, or Firebrand's, which takes 16-bit inputs too.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a model has one")]
enum Norm {
    Burn(BatchNorm),
    Wide(firebrand::nn::BatchNorm),
}

/// Linear, batch norm, dropout, linear.
#[derive(Module, Debug)]
pub struct Classifier {
    hidden: Linear,
    norm: Norm,
    dropout: Dropout,
    output: Linear,
}

impl Classifier {
    /// A classifier on a device, its weights not drawn yet.
    pub fn new(device: &Device) -> Self {
        Self::with_norm(Norm::Burn(BatchNormConfig::new(16).init(device)), device)
    }

    /// The same with the batch norm of Firebrand.
    ///
    /// # Errors
    ///
    /// If the layer cannot be made.
    pub fn wide(device: &Device) -> Result<Self> {
        let norm = firebrand::nn::BatchNormConfig::new(16).init(device)?;
        Ok(Self::with_norm(Norm::Wide(norm), device))
    }

    fn with_norm(norm: Norm, device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(NUM_FEATURES, 16).init(device),
            norm,
            dropout: DropoutConfig::new(0.2).init(),
            output: LinearConfig::new(16, NUM_CLASSES).init(device),
        }
    }

    /// The logits, `[samples, NUM_CLASSES]`.
    ///
    /// # Errors
    ///
    /// If the batch norm refuses its input.
    pub fn forward(&self, features: Tensor<2>, step: &StepContext) -> Result<Tensor<2>> {
        let hidden = self.hidden.forward(features);
        let hidden = match &self.norm {
            Norm::Burn(norm) => norm.forward(hidden),
            Norm::Wide(norm) => norm.forward(hidden, step)?,
        };
        let logits = self.output.forward(self.dropout.forward(relu(hidden)));
        Ok(step.full_precision(logits))
    }
}

impl LightningModule for Classifier {
    type Batch = Points;

    fn training_step(&self, batch: Points, step: &mut StepContext) -> Result<Tensor<1>> {
        let logits = self.forward(batch.features, step)?;
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.classes.clone());
        step.log("train_loss", &loss);
        step.log_with("train_loss_mean", &loss, LogOptions::new().on_epoch(true));
        step.log_metric("train_accuracy", Accuracy::new().update(&logits, &batch.classes)?);
        Ok(loss)
    }

    fn validation_step(&self, batch: Points, step: &mut StepContext) -> Result<()> {
        let logits = self.forward(batch.features, step)?;
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.classes.clone());
        step.log("val_loss", loss);
        step.log_metric("val_acc", Accuracy::new().update(&logits, &batch.classes)?);
        Ok(())
    }

    fn test_step(&self, batch: Points, step: &mut StepContext) -> Result<()> {
        let logits = self.forward(batch.features, step)?;
        step.log_metric("test_acc", Accuracy::new().update(&logits, &batch.classes)?);
        Ok(())
    }

    fn predict_step(&self, batch: Points, step: &mut StepContext) -> Result<Prediction> {
        let classes: Tensor<1, Int> = self.forward(batch.features, step)?.argmax(1).squeeze_dim(1);
        Ok(Prediction::from(classes))
    }

    fn configure_optimizers(&self, fit: &FitInfo) -> OptimizerSetup {
        let total = fit.estimated_stepping_batches().unwrap_or(100);
        OptimizerSetup::new(AdamWConfig::new(), 1e-2).schedule(Schedule::warmup_cosine(5, total))
    }
}

/// A point as the dataset holds it.
#[derive(Clone, Debug)]
pub struct Point {
    features: [f32; NUM_FEATURES],
    class: i32,
}

/// `count` points; the same for equal arguments.
pub fn points(count: usize, salt: u32) -> Vec<Point> {
    (0..count as u32)
        .map(|index| {
            let value = |feature: u32| {
                let mixed = (index * 8 + feature)
                    .wrapping_mul(2_654_435_761)
                    .wrapping_add(salt * 97);
                f64::from(mixed % 1000) as f32 / 500.0 - 1.0
            };
            let features = std::array::from_fn(|feature| value(feature as u32));
            let class = if features[0] + features[1] > 0.4 {
                2
            } else {
                i32::from(features[2] > 0.0)
            };
            Point { features, class }
        })
        .collect()
}

/// Makes a batch of points.
pub fn collate(points: Vec<Point>, device: &Device) -> Result<Points> {
    let features: Vec<f32> = points.iter().flat_map(|point| point.features).collect();
    let classes: Vec<i32> = points.iter().map(|point| point.class).collect();
    Ok(Points {
        features: Tensor::<1>::from_floats(features.as_slice(), device).reshape([points.len(), NUM_FEATURES]),
        classes: Tensor::from_ints(classes.as_slice(), device),
    })
}

/// Shuffled, augmented training data loaded by several workers, and validation, test and prediction data.
pub fn data(num_workers: usize) -> Data<Points> {
    let augmented = Samples::new(InMemDataset::new(points(200, 1))).map(|mut point: Point, rng| {
        point.features[3] += rng.uniform(0.0, 0.1) as f32;
        Ok(point)
    });
    let evaluation = |salt| DataLoader::from_fn(points(50, salt), collate).batch_size(16);
    Data::new()
        .train(
            DataLoader::from_fn(augmented, collate)
                .batch_size(16)
                .shuffle(true)
                .num_workers(num_workers),
        )
        .validation(evaluation(2))
        .test(evaluation(3))
        .predict(evaluation(4))
}
