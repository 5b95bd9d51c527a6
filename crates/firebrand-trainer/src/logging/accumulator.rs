use burn::tensor::Tensor;
use firebrand_core::{ErasedMetric, Error, LogEntry, LogValue, Stage};
use serde::{Deserialize, Serialize};

use super::sums::{SavedSums, Sums};
use super::{epoch_name, read_scalars, shown_on_bar};

/// The epoch's values: sums in float64, and metric states that merge.
#[derive(Default)]
pub(crate) struct Accumulators {
    entries: Vec<(String, Accumulator)>,
}

/// One value of an epoch.
struct Accumulator {
    shown: bool,
    state: State,
}

enum State {
    Scalar(Scalar),
    Metric(Box<dyn ErasedMetric>),
    /// The state of a metric from a checkpoint, which waits for the metric to be logged again.
    SavedMetric(Vec<f64>),
}

/// Sums of values; the newest are still on their device.
struct Scalar {
    sums: Sums,
    pending: Vec<(Tensor<1>, f64)>,
}

/// What a checkpoint keeps of an epoch that is under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedAccumulators {
    entries: Vec<(String, bool, SavedState)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SavedState {
    Scalar(SavedSums),
    Metric(Vec<u64>),
}

impl Scalar {
    /// So many values may wait on their device.
    const MAX_PENDING: usize = 64;

    fn drain(&mut self) {
        let (tensors, weights): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending).into_iter().unzip();
        for (value, weight) in read_scalars(tensors).into_iter().zip(weights) {
            self.sums.add(value, weight);
        }
    }
}

impl Accumulators {
    /// Adds what a step logged for the epoch. `suffix` is put behind the names, to tell evaluation loaders apart.
    ///
    /// # Errors
    ///
    /// If one name stands for different metrics, or for a metric and a number.
    pub(crate) fn add(
        &mut self,
        logs: Vec<LogEntry>,
        stage: Stage,
        num_samples: f64,
        suffix: &str,
    ) -> Result<(), Error> {
        for log in logs {
            let Some(mut name) = epoch_name(&log.name, &log.options, stage) else {
                continue;
            };
            name.push_str(suffix);
            let weight = log.options.weight.unwrap_or(num_samples);
            let position = self.entries.iter().position(|(known, _)| *known == name);
            let position = position.unwrap_or_else(|| {
                let state = match &log.value {
                    LogValue::Metric(_) => State::SavedMetric(Vec::new()),
                    _ => State::Scalar(Scalar {
                        sums: Sums::new(log.options.reduce),
                        pending: Vec::new(),
                    }),
                };
                let shown = shown_on_bar(&log.name, &log.options);
                self.entries.push((name.clone(), Accumulator { shown, state }));
                self.entries.len() - 1
            });
            let accumulator = &mut self.entries[position].1;
            accumulator.add(&name, log.value, weight)?;
        }
        Ok(())
    }

    /// The values, in the order in which they were first logged, and whether each is shown.
    pub(crate) fn values(&mut self) -> Vec<(String, f64, bool)> {
        let mut values = Vec::new();
        for (name, accumulator) in &mut self.entries {
            match &mut accumulator.state {
                State::Scalar(scalar) => {
                    scalar.drain();
                    values.push((name.clone(), scalar.sums.value(), accumulator.shown));
                }
                State::Metric(metric) => {
                    values.push((name.clone(), metric.compute(), accumulator.shown));
                    let components = metric.components().into_iter();
                    values.extend(components.map(|(part, value)| (format!("{name}/{part}"), value, false)));
                }
                State::SavedMetric(_) => {
                    tracing::warn!(
                        name,
                        "a metric of the checkpoint was not logged again in its epoch and is left out"
                    );
                }
            }
        }
        values
    }

    /// Adds what another rank has.
    ///
    /// # Errors
    ///
    /// If a name stands for different metrics, or this rank has not logged a metric of the other's.
    pub(crate) fn merge(&mut self, other: SavedAccumulators) -> Result<(), Error> {
        for (name, shown, saved) in other.entries {
            let Some((_, mine)) = self.entries.iter_mut().find(|(known, _)| *known == name) else {
                let SavedState::Scalar(sums) = saved else {
                    return Err(Error::MetricKind {
                        name,
                        first: "nothing on this rank".to_owned(),
                        second: "a metric on another; every rank must log it".to_owned(),
                    });
                };
                let state = State::Scalar(Scalar {
                    sums: sums.into(),
                    pending: Vec::new(),
                });
                self.entries.push((name, Accumulator { shown, state }));
                continue;
            };
            match (&mut mine.state, saved) {
                (State::Scalar(scalar), SavedState::Scalar(sums)) => {
                    scalar.drain();
                    scalar.sums.merge(sums.into());
                }
                (State::Metric(metric), SavedState::Metric(bits)) => {
                    let state: Vec<f64> = bits.into_iter().map(f64::from_bits).collect();
                    let mut other = metric.clone_box();
                    other.load_state(&state)?;
                    metric.merge(&name, other)?;
                }
                (State::SavedMetric(_), SavedState::Metric(bits)) if bits.is_empty() => {}
                _ => {
                    return Err(Error::MetricKind {
                        name,
                        first: "one kind of value on this rank".to_owned(),
                        second: "another kind on another rank".to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Forgets everything: the epoch is over.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// What a checkpoint keeps.
    pub(crate) fn save(&mut self) -> SavedAccumulators {
        let entries = self.entries.iter_mut().map(|(name, accumulator)| {
            let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect();
            let state = match &mut accumulator.state {
                State::Scalar(scalar) => {
                    scalar.drain();
                    SavedState::Scalar(scalar.sums.into())
                }
                State::Metric(metric) => SavedState::Metric(bits(&metric.state())),
                State::SavedMetric(state) => SavedState::Metric(bits(state)),
            };
            (name.clone(), accumulator.shown, state)
        });
        SavedAccumulators {
            entries: entries.collect(),
        }
    }

    /// A copy, with values that wait on their device read.
    pub(super) fn copied(&mut self) -> Self {
        let entries = self.entries.iter_mut().map(|(name, accumulator)| {
            let state = match &mut accumulator.state {
                State::Scalar(scalar) => {
                    scalar.drain();
                    State::Scalar(Scalar {
                        sums: scalar.sums,
                        pending: Vec::new(),
                    })
                }
                State::Metric(metric) => State::Metric(metric.clone_box()),
                State::SavedMetric(state) => State::SavedMetric(state.clone()),
            };
            let shown = accumulator.shown;
            (name.clone(), Accumulator { shown, state })
        });
        Self {
            entries: entries.collect(),
        }
    }

    /// Goes on from what a checkpoint kept.
    pub(crate) fn restore(saved: SavedAccumulators) -> Self {
        let entries = saved.entries.into_iter().map(|(name, shown, state)| {
            let state = match state {
                SavedState::Scalar(sums) => State::Scalar(Scalar {
                    sums: sums.into(),
                    pending: Vec::new(),
                }),
                SavedState::Metric(bits) => {
                    State::SavedMetric(bits.into_iter().map(f64::from_bits).collect())
                }
            };
            (name, Accumulator { shown, state })
        });
        Self {
            entries: entries.collect(),
        }
    }
}

impl Accumulator {
    fn add(&mut self, name: &str, value: LogValue, weight: f64) -> Result<(), Error> {
        let kinds = |first: &str, second: &str| Error::MetricKind {
            name: name.to_owned(),
            first: first.to_owned(),
            second: second.to_owned(),
        };
        match (&mut self.state, value) {
            (State::Scalar(scalar), LogValue::Number(number)) => {
                scalar.drain();
                scalar.sums.add(number, weight);
            }
            (State::Scalar(scalar), LogValue::Tensor(tensor)) => {
                scalar.pending.push((tensor, weight));
                if scalar.pending.len() >= Scalar::MAX_PENDING {
                    scalar.drain();
                }
            }
            (State::Metric(metric), LogValue::Metric(other)) => metric.merge(name, other)?,
            (State::SavedMetric(saved), LogValue::Metric(metric)) => {
                let metric = if saved.is_empty() {
                    metric
                } else {
                    let mut whole = metric.clone_box();
                    whole.load_state(saved)?;
                    whole.merge(name, metric)?;
                    whole
                };
                self.state = State::Metric(metric);
            }
            (State::Scalar(_), LogValue::Metric(metric)) => return Err(kinds("a number", metric.kind())),
            (State::Metric(metric), _) => return Err(kinds(metric.kind(), "a number")),
            (State::SavedMetric(_), _) => return Err(kinds("a metric", "a number")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MeanSquaredError;
    use burn::tensor::Device;
    use firebrand_core::{LogOptions, Reduce};

    fn log(name: &str, value: impl Into<LogValue>, options: LogOptions) -> LogEntry {
        LogEntry {
            name: name.into(),
            value: value.into(),
            options,
        }
    }

    fn tensor(value: f32) -> Tensor<1> {
        Tensor::from_floats([value], &Device::flex())
    }

    fn error(value: f32) -> LogValue {
        let metric = MeanSquaredError::new()
            .update(&tensor(value), &tensor(0.0))
            .unwrap();
        LogValue::Metric(Box::new(metric))
    }

    /// Three batches, with a save and a restore in between or not.
    fn run(restore_after: Option<usize>) -> Vec<(String, f64, bool)> {
        let mut sums = Accumulators::default();
        for (batch, (value, samples)) in [(0.1f32, 3.0), (0.7, 3.0), (1e-3, 1.0)].into_iter().enumerate() {
            let logs = vec![
                log("val_loss", tensor(value), LogOptions::new()),
                log(
                    "worst",
                    tensor(value),
                    LogOptions::new().on_epoch(true).reduce(Reduce::Max),
                ),
                log("mse", error(value), LogOptions::new().on_epoch(true)),
                log("step_only", 1.0, LogOptions::new().on_step(true)),
            ];
            sums.add(logs, Stage::Validate, samples, "").unwrap();
            if restore_after == Some(batch) {
                let text = serde_json::to_string(&sums.save()).unwrap();
                sums = Accumulators::restore(serde_json::from_str(&text).unwrap());
            }
        }
        sums.values()
    }

    #[test]
    fn a_restored_epoch_is_bit_equal() {
        let whole = run(None);
        let names: Vec<&str> = whole.iter().map(|(name, _, _)| name.as_str()).collect();
        assert_eq!(names, ["val_loss", "worst", "mse"]);
        let expected = (0.1f32 as f64 * 3.0 + 0.7f32 as f64 * 3.0 + 1e-3f32 as f64) / 7.0;
        assert_eq!(whole[0].1, expected);
        assert_eq!(whole[1].1, f64::from(0.7f32));
        assert_eq!(run(Some(0)), whole);
        assert_eq!(run(Some(1)), whole);
    }

    #[test]
    fn one_name_is_one_kind() {
        let mut sums = Accumulators::default();
        sums.add(vec![log("x", 1.0, LogOptions::new())], Stage::Test, 1.0, "")
            .unwrap();
        let failure = sums
            .add(
                vec![log("x", error(1.0), LogOptions::new())],
                Stage::Test,
                1.0,
                "",
            )
            .unwrap_err();
        assert!(failure.to_string().contains("'x'"), "{failure}");
    }

    #[test]
    fn many_values_do_not_wait_on_the_device() {
        let mut sums = Accumulators::default();
        for _ in 0..1000 {
            sums.add(
                vec![log("a", tensor(0.5), LogOptions::new())],
                Stage::Test,
                2.0,
                "",
            )
            .unwrap();
        }
        assert_eq!(sums.values()[0].1, 0.5);
    }
}
