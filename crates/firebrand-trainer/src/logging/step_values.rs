use firebrand_core::{LogEntry, LogValue, Reduce, Stage};
use serde::{Deserialize, Serialize};

use super::sums::{SavedSums, Sums};
use super::{read_scalars, shown_on_bar, step_name};

/// The values that the micro-batches of one update logged for the step: kept on their device, read when they are due.
#[derive(Default)]
pub(crate) struct StepValues {
    /// Name, reduction, whether it is shown, and the values with their weights.
    entries: Vec<Entry>,
}

/// What this rank has of one value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Partial {
    pub(super) name: String,
    pub(super) sums: SavedSums,
}

struct Entry {
    name: String,
    reduce: Reduce,
    shown: bool,
    values: Vec<(LogValue, f64)>,
}

impl StepValues {
    /// Adds what a micro-batch of `num_samples` logged; values that are not for the step are left to the epoch.
    pub(crate) fn add(&mut self, logs: &[LogEntry], num_samples: f64) {
        for log in logs {
            let Some(name) = step_name(&log.name, &log.options, Stage::Train) else {
                continue;
            };
            let weight = log.options.weight.unwrap_or(num_samples);
            let value = (log.value.clone(), weight);
            match self.entries.iter_mut().find(|entry| entry.name == name) {
                Some(entry) => entry.values.push(value),
                None => self.entries.push(Entry {
                    shown: shown_on_bar(&log.name, &log.options),
                    name,
                    reduce: log.options.reduce,
                    values: vec![value],
                }),
            }
        }
    }

    /// Forgets everything: the update is over.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Reads all values, in the order in which they were first logged.
    pub(crate) fn read(&self) -> Vec<(String, f64)> {
        self.read_if(|_| true)
    }

    /// Reads the values that are shown on the progress bar.
    pub(crate) fn read_shown(&self) -> Vec<(String, f64)> {
        self.read_if(|entry| entry.shown)
    }

    /// The sums of this rank's values.
    pub(super) fn partial(&self) -> Vec<Partial> {
        let (values, entries) = (self.entry_values(|_| true), &self.entries);
        let partials = entries.iter().zip(values).map(|(entry, values)| {
            let mut sums = Sums::new(entry.reduce);
            values
                .into_iter()
                .for_each(|(value, weight)| sums.add(value, weight));
            Partial {
                name: entry.name.clone(),
                sums: sums.into(),
            }
        });
        partials.collect()
    }

    fn read_if(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<(String, f64)> {
        let values = self.entry_values(&wanted).into_iter();
        let entries = self.entries.iter().filter(|entry| wanted(entry));
        entries
            .zip(values)
            .map(|(entry, values)| (entry.name.clone(), reduce(entry.reduce, values.into_iter())))
            .collect()
    }

    /// The values of each entry with their weights. This waits for the device.
    fn entry_values(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<Vec<(f64, f64)>> {
        let entries: Vec<&Entry> = self.entries.iter().filter(|entry| wanted(entry)).collect();
        let tensors = entries
            .iter()
            .flat_map(|entry| &entry.values)
            .filter_map(|(value, _)| match value {
                LogValue::Tensor(tensor) => Some(tensor.clone()),
                _ => None,
            });
        let mut read = read_scalars(tensors.collect()).into_iter();
        entries
            .into_iter()
            .map(|entry| {
                let values = entry.values.iter().map(|(value, weight)| {
                    let value = match value {
                        LogValue::Number(number) => *number,
                        LogValue::Tensor(_) => read.next().unwrap_or(f64::NAN),
                        LogValue::Metric(metric) => metric.compute(),
                    };
                    (value, *weight)
                });
                values.collect()
            })
            .collect()
    }
}

fn reduce(how: Reduce, values: impl Iterator<Item = (f64, f64)>) -> f64 {
    match how {
        Reduce::Sum => values.map(|(value, _)| value).sum(),
        Reduce::Min => values.map(|(value, _)| value).fold(f64::INFINITY, f64::min),
        Reduce::Max => values.map(|(value, _)| value).fold(f64::NEG_INFINITY, f64::max),
        Reduce::Mean => {
            // A value that does not count may be anything, also not a number.
            let values: Vec<_> = values.filter(|(_, weight)| *weight != 0.0).collect();
            if let [(value, _)] = values.as_slice() {
                return *value;
            }
            let weight: f64 = values.iter().map(|(_, weight)| weight).sum();
            values.iter().map(|(value, weight)| value * weight).sum::<f64>() / weight
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firebrand_core::LogOptions;

    fn log(name: &str, value: f64, options: LogOptions) -> LogEntry {
        LogEntry {
            name: name.into(),
            value: LogValue::Number(value),
            options,
        }
    }

    #[test]
    fn means_are_weighted_by_samples() {
        let mut values = StepValues::default();
        values.add(
            &[
                log("loss", 1.0, LogOptions::new()),
                log("n", 3.0, LogOptions::new().reduce(Reduce::Sum)),
            ],
            3.0,
        );
        values.add(
            &[
                log("loss", 5.0, LogOptions::new()),
                log("n", 1.0, LogOptions::new().reduce(Reduce::Sum)),
            ],
            1.0,
        );
        assert_eq!(values.read(), [("loss".to_owned(), 2.0), ("n".to_owned(), 4.0)]);
        assert_eq!(values.read_shown(), [("loss".to_owned(), 2.0)]);
        values.clear();
        assert!(values.read().is_empty());
    }
}
