use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::lr_scheduler::constant::ConstantLr;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn_train::metric::MetricDefinition;
use burn_train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};
use burn_train::{InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};

use super::feed::{Feed, Source};
use super::model::{Batch, LEARNING_RATE, Mlp, Optimizer, Size};

impl TrainStep for Mlp {
    type Input = Batch;
    /// No metric looks at it.
    type Output = ();

    fn step(&self, batch: Batch) -> TrainOutput<()> {
        TrainOutput::new(self, self.loss(batch).backward(), ())
    }
}

impl InferenceStep for Mlp {
    type Input = Batch;
    type Output = ();

    fn step(&self, _batch: Batch) {}
}

/// burn-train's learner without metrics, checkpoints and anything on the screen: the least that it can do.
pub(super) fn train(size: Size, source: Source, folder: &Path) -> Result<Mlp> {
    let device = Device::flex().autodiff();
    let module = Mlp::new(size, Optimizer::AdamW, &device);
    let num_steps = source.num_steps();
    let training = Loader {
        source,
        device: device.clone(),
    };
    let validation = Loader {
        source: Source::new(size, 0, |_| ()),
        device,
    };
    let result = SupervisedTraining::<Mlp>::new(folder, Arc::new(training), Arc::new(validation))
        .num_epochs(1)
        .renderer(Box::new(Silent))
        .with_application_logger(None)
        .launch(Learner::new(
            module,
            AdamWConfig::new().init(),
            ConstantLr::new(LEARNING_RATE),
        ));
    ensure!(
        result.error.is_none(),
        "burn-train stopped after fewer than {num_steps} steps: {:?}",
        result.error
    );
    Ok(result.model)
}

/// The feed as burn-train wants it.
struct Loader {
    source: Source,
    device: Device,
}

impl DataLoader<Batch> for Loader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch> + 'a> {
        Box::new(Batches {
            feed: self.source.open(&self.device),
            num_steps: self.source.num_steps(),
        })
    }

    fn num_items(&self) -> usize {
        self.source.num_steps()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Batch>> {
        Arc::new(Self {
            source: self.source.clone(),
            device: device.clone(),
        })
    }

    /// For several devices, which this benchmark does not have.
    fn slice(&self, _start: usize, _end: usize) -> Arc<dyn DataLoader<Batch>> {
        self.to_device(&self.device)
    }
}

struct Batches {
    feed: Feed,
    num_steps: usize,
}

impl Iterator for Batches {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.feed.next().map(Ok)
    }
}

impl DataLoaderIterator<Batch> for Batches {
    fn progress(&self) -> Progress {
        Progress::new(self.feed.step(), self.num_steps, None)
    }
}

/// Shows nothing; burn-train's own renderer without a terminal prints a line per step.
struct Silent;

impl MetricsRendererTraining for Silent {
    fn update_train(&mut self, _state: MetricState) {}
    fn update_valid(&mut self, _state: MetricState) {}
}

impl MetricsRendererEvaluation for Silent {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}
}

impl TrainingProgressLogger for Silent {
    fn start(&mut self, _epochs: usize, _first: usize, _items: Option<usize>, _label: Option<&str>) {}
    fn update_epoch(&mut self, _epoch: usize) {}
    fn start_split(&mut self, _split: &str, _items: usize) {}
    fn update_split(&mut self, _items: usize) {}
    fn end_split(&mut self) {}
    fn end(&mut self) {}
    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for Silent {
    fn start_global_progress(&mut self, _tests: usize) {}
    fn start_test(&mut self, _name: &str, _items: usize) {}
    fn update_test_progress(&mut self, _items: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricsRenderer for Silent {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _definition: MetricDefinition) {}
}
