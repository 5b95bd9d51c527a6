use super::*;
use crate::callbacks::test_fixture::{Fixture, commands};

/// The reasons after looks at these values, until one stops.
fn looks(stopping: &mut EarlyStopping, values: &[f64]) -> (usize, Option<String>) {
    let mut fixture = Fixture::new();
    for (number, value) in values.iter().enumerate() {
        fixture.metrics.insert("m".to_owned(), *value);
        let commands = commands(|commands| stopping.on_evaluation_end(&fixture.view(), commands));
        if commands.stop.is_some() {
            return (number + 1, commands.stop);
        }
    }
    (values.len(), None)
}

fn started(mut stopping: EarlyStopping) -> EarlyStopping {
    stopping
        .on_fit_start(&Fixture::new().view(), &mut Commands::default())
        .unwrap();
    stopping
}

#[test]
fn patience_counts_looks_in_a_row() {
    let mut stopping = started(EarlyStopping::monitor("m").patience(2));
    let (number, reason) = looks(&mut stopping, &[3.0, 4.0, 2.0, 2.0, 2.0, 1.0]);
    assert_eq!(number, 5);
    let reason = reason.unwrap();
    assert!(
        reason.contains("m = 2") && reason.contains("2 looks") && reason.contains("best was 2"),
        "{reason}"
    );
    let mut stopping = started(EarlyStopping::monitor("m").mode(Mode::Max).patience(1));
    assert_eq!(looks(&mut stopping, &[1.0, 2.0, 3.0]), (3, None));
}

#[test]
fn small_improvements_do_not_count() {
    let stopping = || started(EarlyStopping::monitor("m").patience(2).min_delta(0.5));
    assert_eq!(looks(&mut stopping(), &[3.0, 2.5, 2.5]).0, 3);
    assert_eq!(looks(&mut stopping(), &[3.0, 2.4, 1.8, 1.2]), (4, None));
    let max = started(
        EarlyStopping::monitor("m")
            .mode(Mode::Max)
            .patience(2)
            .min_delta(0.5),
    );
    assert_eq!(looks(&mut { max }, &[1.0, 1.5, 1.4]).0, 3);
}

#[test]
fn thresholds_and_values_that_are_not_finite_stop_at_once() {
    for (stopping, values, word) in [
        (
            EarlyStopping::monitor("m").stopping_threshold(1.0),
            [2.0, 1.0, 0.9],
            "stopping threshold",
        ),
        (
            EarlyStopping::monitor("m").divergence_threshold(5.0),
            [2.0, 5.0, 5.1],
            "divergence threshold",
        ),
        (
            EarlyStopping::monitor("m")
                .mode(Mode::Max)
                .divergence_threshold(0.1),
            [0.5, 0.1, 0.0],
            "divergence",
        ),
        (EarlyStopping::monitor("m"), [2.0, 1.0, f64::NAN], "not finite"),
        (
            EarlyStopping::monitor("m"),
            [2.0, 1.0, f64::NEG_INFINITY],
            "not finite",
        ),
    ] {
        let (number, reason) = looks(&mut started(stopping), &values);
        assert!(
            number == 3 && reason.as_ref().unwrap().contains(word),
            "{number} {reason:?}"
        );
    }
    let mut stopping = started(EarlyStopping::monitor("m").check_finite(false).patience(3));
    assert_eq!(
        looks(&mut stopping, &[f64::NAN, 1.0, f64::NAN, f64::INFINITY, f64::NAN]).0,
        5
    );
}

#[test]
fn a_resumed_run_waits_on() {
    let mut stopping = started(EarlyStopping::monitor("m").check_finite(false));
    looks(&mut stopping, &[f64::NEG_INFINITY, 3.0, 2.0]);
    let text = stopping.state().unwrap().to_string();
    let mut resumed = EarlyStopping::monitor("m").check_finite(false);
    resumed
        .load_state(&serde_json::from_str(&text).unwrap(), BTreeMap::new())
        .unwrap();
    let mut resumed = started(resumed);
    assert_eq!(
        (resumed.state.wait_count, resumed.state.best),
        (2, Some(f64::NEG_INFINITY))
    );
    assert_eq!(looks(&mut resumed, &[1.0]).0, 1);
    assert!(resumed.state.wait_count == 3);
    // Another fit starts anew.
    assert_eq!(started(resumed).state.best, None);
    assert!(
        EarlyStopping::monitor("m")
            .load_state(&serde_json::json!(1), BTreeMap::new())
            .is_err()
    );
}

#[test]
fn epochs_of_training_are_looked_at_on_demand() {
    let mut fixture = Fixture::new();
    fixture.metrics.insert("m".to_owned(), 1.0);
    let mut stopping = started(
        EarlyStopping::monitor("m")
            .patience(1)
            .check_on_train_epoch_end(true),
    );
    for stops in [false, true] {
        let validation = commands(|commands| stopping.on_evaluation_end(&fixture.view(), commands));
        assert!(validation.stop.is_none());
        let end = commands(|commands| stopping.on_train_epoch_end(&fixture.view(), commands));
        assert_eq!(end.stop.is_some(), stops);
    }
}

#[test]
fn a_metric_that_is_missing_is_an_error_with_names() {
    let mut stopping = started(EarlyStopping::monitor("n"));
    let mut fixture = Fixture::new();
    fixture.metrics.insert("m".to_owned(), 1.0);
    let error = stopping
        .on_evaluation_end(&fixture.view(), &mut Commands::default())
        .unwrap_err();
    assert!(
        error.to_string().contains("'n'") && error.to_string().contains("were: m"),
        "{error}"
    );
    let mut stopping = EarlyStopping::monitor("n").min_delta(f64::NAN);
    assert!(
        stopping
            .on_fit_start(&fixture.view(), &mut Commands::default())
            .is_err()
    );
}
