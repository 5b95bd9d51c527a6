use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use firebrand_collective::{Buffer, DType, ProcessGroup, ReduceOp};
use firebrand_core::AnyTensor;

use super::bucket::Bucket;
use super::data_parallel::DdpOptions;
use super::header::Header;
use super::layout::{Sizes, divide};
use crate::host::collective_dtype;
use crate::{Error, Gradient, GradientSink, GradientSpecs, Reduced, Share};

/// Fills buckets in the order in which gradients become ready, and starts the reduction of each as soon as it is full and those
/// before it are under way, so that every rank reduces them in the same order.
pub(super) struct Reducer {
    group: Arc<dyn ProcessGroup>,
    options: DdpOptions,
    state: Mutex<State>,
}

struct State {
    specs: GradientSpecs,
    /// The bucket of each gradient and its number there, by the index of the parameter.
    places: HashMap<usize, (usize, usize)>,
    buckets: Vec<Bucket>,
    /// The next bucket to reduce.
    next: usize,
    /// Whether the backward pass under way completes an update.
    last: bool,
    /// In which order gradients arrived, by their positions; recorded until the layout follows it.
    arrivals: Vec<usize>,
    /// Whether the layout follows the order of arrival.
    rebuilt: bool,
    order: Vec<usize>,
    problem: Option<String>,
}

impl Reducer {
    pub(super) fn new(
        group: Arc<dyn ProcessGroup>,
        options: DdpOptions,
        specs: GradientSpecs,
    ) -> Result<Self, Error> {
        // Late layers are ready first. After the first update the true order is known.
        let order = (0..specs.parameters.len()).rev().collect();
        let state = State::new(&*group, &options, specs, order, false)?;
        Ok(Self {
            group,
            options,
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_backward(&self, last: bool) {
        let mut state = self.state();
        state.last = last;
        if last {
            state.await_all();
        }
    }

    /// The order of the buckets, by the paths of their parameters, once it is the one that stays.
    pub(super) fn order(&self) -> Option<Vec<String>> {
        let state = self.state();
        let path = |gradient: &usize| {
            state
                .specs
                .parameters
                .get(*gradient)
                .map(|spec| spec.path.clone())
        };
        state
            .rebuilt
            .then(|| state.order.iter().filter_map(path).collect())
    }

    /// Takes an order over, if it is one of these parameters.
    pub(super) fn set_order(&self, paths: &[String]) -> Result<bool, Error> {
        let mut state = self.state();
        let position = |path: &String| state.specs.parameters.iter().position(|spec| spec.path == *path);
        let order: Vec<usize> = paths.iter().filter_map(position).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != state.specs.parameters.len() || order.len() != sorted.len() {
            return Ok(false);
        }
        let specs = state.specs.clone();
        *state = State::new(&*self.group, &self.options, specs, order, true)?;
        Ok(true)
    }

    pub(super) fn finish(&self, share: Share) -> Result<Reduced, Error> {
        let mut state = self.state();
        if let Some(problem) = state.problem.take() {
            return Err(Error::Ranks(firebrand_collective::Error::Argument(problem)));
        }
        while state.next < state.buckets.len() {
            state.launch_next(&*self.group);
        }
        let num_gradients = state.specs.parameters.len();
        let used = state.used();
        let (rank, world_size) = (self.group.rank(), self.group.size());
        let header = Header::of(share, &used, rank, world_size).encode();
        let header = self.group.all_reduce(Buffer::from_slice(&header), ReduceOp::Sum);
        for bucket in &mut state.buckets {
            bucket.wait()?;
        }
        let header = header.wait()?;
        let header = Header::decode(header.as_slice::<f64>()?, world_size, num_gradients);
        self.check_used(&state, &header, &used)?;
        let gradients = state.take_sums(&header);
        if !state.rebuilt {
            self.rebuild(&mut state)?;
        }
        state.clear();
        Ok(Reduced {
            gradients,
            weight: header.weight,
            failed: header.first_failed().map(|(rank, loss)| {
                let global = self.group.global_ranks().get(rank).copied();
                (global.unwrap_or(rank), loss)
            }),
            notes: header.notes,
        })
    }

    /// Every rank must have used the same parameters, unless it is said that they may differ.
    fn check_used(&self, state: &State, header: &Header, used: &[bool]) -> Result<(), Error> {
        if self.options.find_unused_parameters {
            return Ok(());
        }
        let differs = |count: f64| count > 0.0 && count < header.participants;
        let Some(gradient) = header.used.iter().position(|count| differs(*count)) else {
            return Ok(());
        };
        let path = state.specs.parameters.get(gradient).map(|spec| spec.path.clone());
        Err(Error::UnusedParameter {
            path: path.unwrap_or_default(),
            ranks: header.used[gradient] as usize,
            world_size: self.group.size(),
            here: used.get(gradient).copied().unwrap_or_default(),
        })
    }

    /// Lays the buckets out in the order in which gradients arrived on the first rank.
    fn rebuild(&self, state: &mut State) -> Result<(), Error> {
        let mut order: Vec<u32> = state.arrivals.iter().map(|gradient| *gradient as u32).collect();
        let arrived: Vec<bool> = (0..state.specs.parameters.len())
            .map(|gradient| state.arrivals.contains(&gradient))
            .collect();
        let missing = (0..arrived.len()).rev().filter(|gradient| !arrived[*gradient]);
        order.extend(missing.map(|gradient| gradient as u32));
        let order = self.group.broadcast(Buffer::from_slice(&order), 0).wait()?;
        let order = order
            .as_slice::<u32>()?
            .iter()
            .map(|gradient| *gradient as usize)
            .collect();
        let specs = state.specs.clone();
        *state = State::new(&*self.group, &self.options, specs, order, true)?;
        Ok(())
    }

    pub(super) fn discard(&self) -> Result<(), Error> {
        let mut state = self.state();
        // What has begun on one rank has begun on all.
        for bucket in &mut state.buckets {
            bucket.wait()?;
        }
        state.problem = None;
        state.clear();
        Ok(())
    }
}

impl GradientSink for Reducer {
    fn push(&self, parameter: usize, gradient: AnyTensor) {
        let mut state = self.state();
        state.push(&*self.group, parameter, gradient);
    }
}

impl State {
    fn new(
        group: &dyn ProcessGroup,
        options: &DdpOptions,
        specs: GradientSpecs,
        order: Vec<usize>,
        rebuilt: bool,
    ) -> Result<Self, Error> {
        let dtype = collective_dtype(specs.dtype.into()).unwrap_or(DType::F32);
        let wire = options.compression.map(|compression| compression.dtype());
        let wire = wire.filter(|_| dtype == DType::F32);
        let element = wire.unwrap_or(dtype).size();
        let sizes = Sizes {
            first: options.first_bucket_bytes,
            others: options.bucket_bytes,
            in_place: options.in_place_bytes,
        };
        let plans = divide(&order, &specs.parameters, element, sizes);
        let mut places = HashMap::new();
        let mut buckets = Vec::with_capacity(plans.len());
        for (bucket, plan) in plans.into_iter().enumerate() {
            for (number, member) in plan.members.iter().enumerate() {
                if let Some(spec) = specs.parameters.get(member.gradient) {
                    places.insert(spec.parameter, (bucket, number));
                }
            }
            buckets.push(Bucket::new(group, plan, dtype, wire)?);
        }
        Ok(Self {
            specs,
            places,
            buckets,
            next: 0,
            last: false,
            arrivals: Vec::new(),
            rebuilt,
            order,
            problem: None,
        })
    }

    /// Every gradient of every bucket is to arrive once more.
    fn await_all(&mut self) {
        for bucket in &mut self.buckets {
            let uses = bucket.plan.members.iter().map(|member| {
                self.specs
                    .parameters
                    .get(member.gradient)
                    .map_or(0, |spec| spec.uses)
            });
            bucket.pending = uses.sum();
        }
        self.arrivals.clear();
    }

    fn push(&mut self, group: &dyn ProcessGroup, parameter: usize, gradient: AnyTensor) {
        // A parameter that was thawed within a group is trained from the next one on.
        let Some((bucket_number, number)) = self.places.get(&parameter).copied() else {
            return;
        };
        let bucket = &mut self.buckets[bucket_number];
        let position = bucket.plan.members[number].gradient;
        let (dtype, shape) = (gradient.dtype(), gradient.shape());
        if !bucket.add(number, gradient) {
            let path = self.specs.parameters.get(position).map(|spec| spec.path.as_str());
            self.problem = Some(format!(
                "the gradient of '{}' came too late or does not fit: {dtype:?} {shape:?}",
                path.unwrap_or_default(),
            ));
            return;
        }
        if !self.last {
            return;
        }
        bucket.pending = bucket.pending.saturating_sub(1);
        if !self.rebuilt && !self.arrivals.contains(&position) {
            self.arrivals.push(position);
        }
        while self
            .buckets
            .get(self.next)
            .is_some_and(|bucket| bucket.pending == 0)
        {
            self.launch_next(group);
        }
    }

    fn launch_next(&mut self, group: &dyn ProcessGroup) {
        if let Some(bucket) = self.buckets.get_mut(self.next)
            && !bucket.is_launched()
        {
            bucket.launch(group);
        }
        self.next += 1;
    }

    /// Which gradients this rank has, by their positions.
    fn used(&self) -> Vec<bool> {
        let mut used = vec![false; self.specs.parameters.len()];
        for bucket in &self.buckets {
            for (number, member) in bucket.plan.members.iter().enumerate() {
                used[member.gradient] = bucket.is_filled(number);
            }
        }
        used
    }

    /// The sums of the gradients that were used on some rank, in the order of the parameters.
    fn take_sums(&mut self, header: &Header) -> Vec<Gradient> {
        let used = |gradient: usize| header.used.get(gradient).is_some_and(|count| *count > 0.0);
        let (buckets, specs) = (&mut self.buckets, &self.specs);
        let mut gradients: Vec<Gradient> = buckets
            .iter_mut()
            .flat_map(|bucket| bucket.take_sums(specs, used))
            .collect();
        gradients.sort_by_key(|gradient| gradient.parameter);
        gradients
    }

    fn clear(&mut self) {
        self.buckets.iter_mut().for_each(Bucket::clear);
        self.arrivals.clear();
        self.next = 0;
        self.last = false;
    }
}
