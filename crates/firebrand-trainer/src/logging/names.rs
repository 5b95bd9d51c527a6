use firebrand_core::{LogOptions, Stage};

/// The name of a step's value, if it is logged: with both kinds of values on, Lightning's suffix tells them apart.
pub(crate) fn step_name(name: &str, options: &LogOptions, stage: Stage) -> Option<String> {
    let (on_step, on_epoch) = resolved(options, stage);
    on_step.then(|| {
        if on_epoch {
            format!("{name}_step")
        } else {
            name.to_owned()
        }
    })
}

/// The name of an epoch's value, if it is logged.
pub(crate) fn epoch_name(name: &str, options: &LogOptions, stage: Stage) -> Option<String> {
    let (on_step, on_epoch) = resolved(options, stage);
    on_epoch.then(|| {
        if on_step {
            format!("{name}_epoch")
        } else {
            name.to_owned()
        }
    })
}

fn resolved(options: &LogOptions, stage: Stage) -> (bool, bool) {
    let training = stage == Stage::Train;
    // One that was chosen turns the other's default off, as in Lightning; two that were chosen both hold.
    match (options.on_step, options.on_epoch) {
        (None, None) => (training, !training),
        (on_step, on_epoch) => (on_step.unwrap_or(false), on_epoch.unwrap_or(false)),
    }
}

/// Whether a value is shown on the progress bar.
pub(crate) fn shown_on_bar(name: &str, options: &LogOptions) -> bool {
    options
        .progress_bar
        .unwrap_or_else(|| name.ends_with("loss") || name.ends_with("acc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_follow_the_stage() {
        let options = LogOptions::new();
        assert_eq!(step_name("a", &options, Stage::Train).as_deref(), Some("a"));
        assert_eq!(epoch_name("a", &options, Stage::Train), None);
        assert_eq!(step_name("a", &options, Stage::Validate), None);
        assert_eq!(epoch_name("a", &options, Stage::Validate).as_deref(), Some("a"));
    }

    #[test]
    fn both_get_suffixes() {
        let options = LogOptions::new().on_step(true).on_epoch(true);
        assert_eq!(step_name("a", &options, Stage::Train).as_deref(), Some("a_step"));
        assert_eq!(
            epoch_name("a", &options, Stage::Train).as_deref(),
            Some("a_epoch")
        );
        let options = LogOptions::new().on_epoch(true);
        assert_eq!(step_name("a", &options, Stage::Train), None);
        assert_eq!(epoch_name("a", &options, Stage::Train).as_deref(), Some("a"));
    }
}
