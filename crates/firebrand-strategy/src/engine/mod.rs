//! The one engine that does an optimizer step for every strategy, and its manual twin.

mod anomaly;
mod manual;
mod state;
mod twin;
mod update;

use std::sync::Arc;

use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrand_core::{
    AnyBatch, ErasedModule, OptimizerSetup, ParamEntry, ParamTable, PathPattern, StepContext, StepInfo,
};
use serde::{Deserialize, Serialize};

use anomaly::Watch;
pub use manual::Manual;
pub use state::EngineState;
use twin::used;
pub use update::Update;

use crate::{
    Error, GradientClip, GradientExchange, GradientSpec, GradientSpecs, LearningRate, LossScaler,
    LossScalerOptions, Optimizers, Precision, PrecisionPolicy, PrepareOptions, Turns, prepare_parameters,
};

/// What happens when a loss or gradient is not finite and no loss scaler is there to expect it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NonFinite {
    /// Training stops with an error that names the step.
    #[default]
    Stop,
    /// The update is left out: neither `global_step` nor the schedules move.
    Skip,
}

/// How updates are done.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineOptions {
    /// How gradients are kept from exploding; default: not at all.
    pub clip: Option<GradientClip>,
    /// What a value that is not finite does; default: it stops the training.
    pub non_finite: NonFinite,
    /// Whether the loss and the gradients of every micro-batch are checked; default: only those of every update.
    ///
    /// The first gradient of the backward pass that is not finite is named, which is nearest to where it went wrong. This is
    /// slow: gradients are read in every micro-batch.
    pub detect_anomaly: bool,
    /// How the loss is scaled; default: as [`LossScalerOptions`] say in `F16Mixed`, and not at all otherwise.
    pub loss_scaler: Option<LossScalerOptions>,
}

/// What one micro-batch gave.
#[derive(Debug)]
pub struct MicroBatch {
    /// The loss as the step returned it, without autodiff.
    pub loss: Tensor<1>,
    /// Its weight among the micro-batches of the update.
    pub weight: f64,
}

/// The losses and weights of the micro-batches since the last update of one optimizer.
#[derive(Default)]
struct Group {
    weight: f64,
    /// Without those of weight zero: the mean over no items is not a number.
    losses: Vec<(Tensor<1>, StepInfo)>,
    info: Option<StepInfo>,
    /// Whether the steps gave weights.
    weighted: Option<bool>,
    /// What the losses were multiplied by: it stays the same for all micro-batches of the group.
    loss_scale: Option<f64>,
}

/// Does optimizer steps: forward and backward of micro-batches, reduce, check, clip, update, schedule.
pub struct Engine {
    table: ParamTable,
    trained: Vec<bool>,
    optimizers: Optimizers,
    exchange: Box<dyn GradientExchange>,
    /// When the gradients of the parameters arrive, if that is during the backward pass.
    turns: Option<Turns>,
    options: EngineOptions,
    precision: PrecisionPolicy,
    /// The dtype in which steps use each entry of the table.
    compute: Vec<FloatDType>,
    scaler: Option<LossScaler>,
    /// What the losses of manual steps were multiplied by whose gradients no optimizer has used yet.
    manual_scale: Option<f64>,
    device: Device,
    loss_reference: Option<f64>,
    groups: Vec<Group>,
    /// What this rank says with its next update.
    said: Vec<f64>,
    /// The sums over all ranks of what was said since the last time.
    heard: Vec<f64>,
    /// Whether other parameters are trained than the exchange expects.
    respecify: bool,
}

impl Engine {
    /// Takes a module over and makes its parameters ready.
    ///
    /// # Errors
    ///
    /// What is wrong with the module's parameters, its optimizers or the options. Every parameter that is not frozen must have
    /// an optimizer: one that was forgotten would stay as it was drawn.
    pub fn new(
        module: &mut dyn ErasedModule,
        setup: &OptimizerSetup,
        prepare: &PrepareOptions,
        options: EngineOptions,
        exchange: Box<dyn GradientExchange>,
    ) -> Result<Self, Error> {
        if let Some(clip) = options.clip.filter(|clip| !clip.is_valid()) {
            return Err(Error::Clip { clip });
        }
        let scaler = loss_scaler(prepare.precision.precision, options.loss_scaler)?;
        let table = ParamTable::take_over(module)?;
        for pattern in &prepare.precision.keep_full {
            table.matching(pattern)?;
        }
        let optimizers = Optimizers::new(setup, &table)?;
        let trained = prepare_parameters(module, &table, prepare, &|_| true)?;
        optimizers.check_all_claimed(&table, &trained)?;
        let groups = (0..optimizers.len()).map(|_| Group::default()).collect();
        // An anomaly is looked for in the order in which it spreads.
        let turns = (exchange.overlaps() || options.detect_anomaly)
            .then(|| Turns::new(table.entries().len(), &prepare.device));
        let compute = table
            .entries()
            .iter()
            .map(|entry| prepare.precision.compute_of(&entry.path));
        let mut engine = Self {
            turns,
            compute: compute.collect(),
            scaler,
            manual_scale: None,
            table,
            trained,
            optimizers,
            exchange,
            options,
            precision: prepare.precision.clone(),
            device: prepare.device.clone(),
            loss_reference: None,
            groups,
            said: Vec::new(),
            heard: Vec::new(),
            respecify: false,
        };
        engine.expect_gradients()?;
        Ok(engine)
    }

    /// Tells the exchange that other parameters are trained, unless gradients are under way: then with the next group.
    fn respecify_between_groups(&mut self) -> Result<(), Error> {
        if self.respecify && self.groups.iter().all(|group| group.info.is_none()) {
            self.respecify = false;
            self.expect_gradients()?;
        }
        Ok(())
    }

    /// Tells the exchange which gradients the optimizers will get.
    fn expect_gradients(&mut self) -> Result<(), Error> {
        for optimizer in 0..self.optimizers.len() {
            let specs = self.gradient_specs(optimizer);
            self.exchange.expect(optimizer, specs)?;
        }
        Ok(())
    }

    fn gradient_specs(&self, optimizer: usize) -> GradientSpecs {
        let trained: Vec<(usize, &ParamEntry)> = self
            .table
            .parameters()
            .filter(|(index, entry)| {
                let first = entry.tied_to.unwrap_or(*index);
                self.is_trained(*index) && self.optimizers.optimizer_of(first) == Some(optimizer)
            })
            .collect();
        let mut parameters: Vec<GradientSpec> = Vec::new();
        for (index, entry) in trained {
            let first = entry.tied_to.unwrap_or(index);
            match parameters.iter_mut().find(|spec| spec.parameter == first) {
                Some(spec) => spec.uses += 1,
                None => parameters.push(GradientSpec {
                    parameter: first,
                    path: self.table.get(first).unwrap_or(entry).path.clone(),
                    shape: entry.shape.clone(),
                    uses: 1,
                }),
            }
        }
        GradientSpecs {
            parameters,
            dtype: self.precision.master(),
            device: self.device.clone().without_autodiff(),
        }
    }

    /// Says numbers to the other ranks with the next update; [`notes`](Self::notes) has their sums afterwards.
    pub fn say(&mut self, notes: Vec<f64>) {
        self.heard = vec![0.0; notes.len()];
        self.said = notes;
    }

    /// The sums over all ranks of what was said last, once an update was made.
    pub fn notes(&self) -> &[f64] {
        &self.heard
    }

    /// What is said with an update: a manual step may make several, and says it once.
    fn take_said(&mut self) -> Vec<f64> {
        let silence = vec![0.0; self.said.len()];
        std::mem::replace(&mut self.said, silence)
    }

    fn hear(&mut self, notes: &[f64]) {
        self.heard
            .iter_mut()
            .zip(notes)
            .for_each(|(sum, note)| *sum += note);
    }

    /// The module's parameters and buffers.
    pub fn table(&self) -> &ParamTable {
        &self.table
    }

    /// Whether the parameter with an index is trained now.
    pub fn is_trained(&self, parameter: usize) -> bool {
        self.trained.get(parameter).copied().unwrap_or_default()
    }

    /// The dtype in which steps compute.
    pub fn compute_dtype(&self) -> FloatDType {
        self.precision.compute()
    }

    /// In which dtype weights are kept and steps compute, and what is left out of it.
    pub fn precision(&self) -> &PrecisionPolicy {
        &self.precision
    }

    /// The dtype in which steps use an entry of the table.
    pub fn compute_dtype_of(&self, parameter: usize) -> FloatDType {
        let known = self.compute.get(parameter).copied();
        known.unwrap_or_else(|| self.precision.compute())
    }

    /// What the loss of the next group is multiplied by before its backward pass, if there is a loss scaler.
    pub fn loss_scale(&self) -> Option<f64> {
        self.scaler.as_ref().map(LossScaler::scale)
    }

    /// The dtype in which weights are kept.
    pub fn master_dtype(&self) -> FloatDType {
        self.precision.master()
    }

    /// The training device, with autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The optimizers.
    pub fn optimizers(&self) -> &Optimizers {
        &self.optimizers
    }

    /// The rates that the next update uses.
    pub fn learning_rates(&self) -> Vec<LearningRate> {
        self.optimizers.learning_rates()
    }

    /// Stops or resumes the training of the parameters that match, keeping their optimizer state. Parameters that the module
    /// froze itself can be trained too.
    ///
    /// # Errors
    ///
    /// If no parameter matches, or one has no optimizer.
    pub fn set_trained(&mut self, paths: &PathPattern, trained: bool) -> Result<(), Error> {
        let indices = self.table.matching(paths)?;
        let unclaimed = indices
            .iter()
            .filter_map(|index| self.table.get(*index).map(|entry| (*index, entry)));
        if let Some((_, entry)) = unclaimed.into_iter().find(|(index, entry)| {
            trained
                && self
                    .optimizers
                    .optimizer_of(entry.tied_to.unwrap_or(*index))
                    .is_none()
        }) {
            return Err(Error::optimizer(format!(
                "'{}' is to be trained and has no optimizer; add it to the `parameters` of one",
                entry.path
            )));
        }
        for index in indices {
            if let Some(flag) = self.trained.get_mut(index) {
                *flag = trained;
            }
        }
        self.respecify = true;
        self.respecify_between_groups()
    }

    /// Runs one micro-batch forward and backward for one optimizer; its gradients are added to those that are kept.
    ///
    /// `last` says that the micro-batch completes an update.
    ///
    /// # Errors
    ///
    /// What the user's step returned, or what is wrong with its loss.
    pub fn micro_batch(
        &mut self,
        module: &dyn ErasedModule,
        batch: AnyBatch,
        step: &mut StepContext,
        last: bool,
    ) -> Result<MicroBatch, Error> {
        let optimizer = step.optimizer_index();
        self.respecify_between_groups()?;
        let watch = self.options.detect_anomaly.then(Arc::<Watch>::default);
        let only = (self.optimizers.len() > 1).then_some(optimizer);
        let twin = used(self, module, only, watch.as_ref());
        let loss = self
            .precision
            .guard("training_step", || twin.training_step(batch, step))?
            .map_err(|source| Error::step("training_step", step, source))?;
        let plain = check_loss(&loss)?;
        let weight = self.loss_weight(step)?;
        // Also without weight, since every rank is to know the scale of the group.
        let current = self.loss_scale().unwrap_or(1.0);
        let group = self.groups.get_mut(optimizer);
        let scale = group.map_or(current, |group| *group.loss_scale.get_or_insert(current));
        if weight > 0.0 {
            self.exchange.begin_backward(optimizer, last);
            self.backward(loss, weight * scale);
        }
        drop(twin);
        check_ranks(step.info())?;
        if let Some(watch) = watch.filter(|_| weight > 0.0) {
            self.check_anomaly(&plain, &watch, step.info())?;
        }
        if let Some(group) = self.groups.get_mut(optimizer) {
            group.weight += weight;
            if weight > 0.0 {
                group.losses.push((plain.clone(), step.info().clone()));
            }
            group.info = Some(step.info().clone());
        }
        Ok(MicroBatch {
            loss: plain,
            weight: step.given_loss_weight().unwrap_or(1.0),
        })
    }

    /// Back-propagates this rank's share of a loss, multiplied by a factor.
    fn backward(&self, loss: Tensor<1>, factor: f64) {
        let factor = factor / self.exchange.num_ranks() as f64;
        let loss = match loss.dtype() {
            _ if factor == 1.0 => loss,
            // The product may leave the range of 16 bits.
            DType::F16 | DType::BF16 => loss.cast(FloatDType::F32).mul_scalar(factor),
            _ => loss.mul_scalar(factor),
        };
        drop(loss.backward());
    }

    /// The weight of a micro-batch among those of its update.
    fn loss_weight(&mut self, step: &StepContext) -> Result<f64, Error> {
        let count = step.given_loss_weight();
        let error = |text: String| Error::step("training_step", step, text.into());
        if let Some(count) = count.filter(|count| !(count.is_finite() && *count >= 0.0)) {
            return Err(error(format!(
                "loss_weight({count}) must be a finite count of at least 0"
            )));
        }
        if let Some(group) = self.groups.get_mut(step.optimizer_index()) {
            // A count and a whole micro-batch cannot be put in proportion.
            if *group.weighted.get_or_insert(count.is_some()) != count.is_some() {
                return Err(error(
                    "loss_weight was called for some micro-batches of this update and not for others; call it for each"
                        .to_owned(),
                ));
            }
        }
        match count {
            Some(count) => Ok(count / self.reference(count)?),
            None => Ok(1.0),
        }
    }

    /// The count to which loss weights are put in proportion, so that a 16-bit loss does not overflow: a power of two, so that
    /// the proportion is exact, near the first count of the fit.
    fn reference(&mut self, count: f64) -> Result<f64, Error> {
        if let Some(reference) = self.loss_reference {
            return Ok(reference);
        }
        let mine = if count > 0.0 {
            count.log2().round().exp2()
        } else {
            1.0
        };
        let reference = self.exchange.agree(mine)?;
        self.loss_reference = Some(reference);
        Ok(reference)
    }

    /// Forgets the gradients of unfinished groups, such as those of an epoch that was cut short.
    ///
    /// # Errors
    ///
    /// What the exchange returned.
    pub fn discard(&mut self) -> Result<(), Error> {
        self.manual_scale = None;
        for (optimizer, group) in self.groups.iter_mut().enumerate() {
            *group = Group::default();
            self.exchange.discard(optimizer)?;
        }
        Ok(())
    }

    /// Advances the schedules at the end of an epoch; a plateau looks at the metrics that were logged.
    ///
    /// # Errors
    ///
    /// If a plateau's metric was not logged.
    pub fn end_epoch(
        &mut self,
        metrics: &dyn Fn(&str) -> Option<f64>,
        logged: &[String],
    ) -> Result<(), Error> {
        self.optimizers.advance_epoch(metrics, logged)
    }
}

/// The loss scaler of a precision, if it has one.
fn loss_scaler(
    precision: Precision,
    options: Option<LossScalerOptions>,
) -> Result<Option<LossScaler>, Error> {
    let options = match precision {
        Precision::F16Mixed => Some(options.unwrap_or_default()),
        Precision::F16True => Some(options.ok_or(Error::UnscaledF16)?),
        _ => options,
    };
    options.map(LossScaler::new).transpose()
}

/// Fails with what has become of the ranks: a layer that communicates in a backward pass has no other way to say so, and its
/// gradients are not numbers then.
fn check_ranks(info: &StepInfo) -> Result<(), Error> {
    info.group
        .as_ref()
        .map_or(Ok(()), |group| Ok(group.health().check()?))
}

/// The loss without autodiff, if it is one number that can be back-propagated.
fn check_loss(loss: &Tensor<1>) -> Result<Tensor<1>, Error> {
    let elements = loss.shape().num_elements();
    if elements != 1 {
        return Err(Error::LossShape { elements });
    }
    if !loss.is_tracked() {
        return Err(Error::LossWithoutGraph);
    }
    Ok(loss.clone().inner())
}
