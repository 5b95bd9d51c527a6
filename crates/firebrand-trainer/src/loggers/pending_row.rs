use super::{LogRow, LoggerError};

/// The columns that every row has.
pub(super) const STEP: &str = "step";
pub(super) const EPOCH: &str = "epoch";

/// Whether a metric may not have this name.
pub(super) fn is_reserved(name: &str) -> bool {
    name == STEP || name == EPOCH
}

/// The row of the latest step, which gathers all that is logged at that step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PendingRow {
    pub(super) step: u64,
    /// The epoch of the first values of the step.
    pub(super) epoch: u64,
    /// The values in the order in which their names were first logged.
    pub(super) values: Vec<(String, f64)>,
    /// Whether the file lacks some of this.
    pub(super) dirty: bool,
}

impl PendingRow {
    pub(super) fn new(step: u64, epoch: u64) -> Self {
        Self {
            step,
            epoch,
            values: Vec::new(),
            dirty: false,
        }
    }

    /// Takes the values of `row`; a value that was logged before at this step is replaced.
    ///
    /// Names that no metric may have are left out and reported.
    pub(super) fn merge(&mut self, row: &LogRow<'_>) -> Result<(), LoggerError> {
        let mut outcome = Ok(());
        for (name, value) in row.values {
            if is_reserved(name) {
                outcome = Err(LoggerError::ReservedMetric { name: name.clone() });
                continue;
            }
            self.dirty = true;
            match self.values.iter_mut().find(|(known, _)| known == name) {
                Some((_, slot)) => *slot = *value,
                None => self.values.push((name.clone(), *value)),
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_values_of_a_step_join_or_replace() {
        let mut row = PendingRow::new(3, 1);
        let first = [("loss".to_owned(), 1.0), ("lr".to_owned(), 0.1)];
        let second = [
            ("epoch".to_owned(), 9.0),
            ("lr".to_owned(), 0.2),
            ("val_loss".to_owned(), 2.0),
        ];
        row.merge(&LogRow {
            step: 3,
            epoch: 1,
            values: &first,
        })
        .unwrap();
        let refused = row
            .merge(&LogRow {
                step: 3,
                epoch: 2,
                values: &second,
            })
            .unwrap_err();
        assert!(refused.to_string().contains("'epoch'"));
        let expected = [("loss", 1.0), ("lr", 0.2), ("val_loss", 2.0)].map(|(n, v)| (n.to_owned(), v));
        assert_eq!(row.values, expected);
        assert_eq!(row.epoch, 1);
    }
}
