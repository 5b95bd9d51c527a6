use firebrand_core::AnyTensor;

use super::*;
use crate::callbacks::test_fixture::{Fixture, commands};

fn started(mut ema: EmaWeights) -> EmaWeights {
    ema.on_fit_start(&Fixture::new().view(), &mut Commands::default())
        .unwrap();
    ema
}

fn step(ema: &mut EmaWeights, fixture: &mut Fixture) {
    fixture.step();
    ema.on_train_batch_end(&fixture.view(), &mut Commands::default())
        .unwrap();
}

fn validation(ema: &mut EmaWeights, fixture: &mut Fixture) -> Option<BTreeMap<String, AnyTensor>> {
    commands(|commands| ema.on_evaluation_start(&fixture.view(), commands)).weights
}

fn floats(tensor: &AnyTensor) -> Vec<f32> {
    tensor.clone().into_data().iter::<f32>().collect()
}

#[test]
fn parameters_are_averaged_as_the_formula_says() {
    let mut fixture = Fixture::new();
    let mut ema = started(EmaWeights::new(0.75).update_every_n_steps(2).starting_at_step(3));
    let mut expected = None;
    for global_step in 1..=8_u8 {
        let value = f64::from(global_step);
        fixture.fill_parameters(value);
        step(&mut ema, &mut fixture);
        if global_step >= 3 && global_step % 2 == 0 {
            expected = Some(expected.map_or(value, |average: f64| 0.75 * average + 0.25 * value));
        }
        let weights = validation(&mut ema, &mut fixture);
        let found = weights.map(|weights| floats(&weights["head.weight"])[0]);
        assert_eq!(found, expected.map(|average| average as f32), "{global_step}");
    }
    // 4, then 0.75·4 + 0.25·6, then 0.75·4.5 + 0.25·8.
    assert_eq!(expected, Some(5.375));
    assert_eq!(ema.state.num_updates, 3);
}

#[test]
fn buffers_are_copied_and_the_module_is_left_alone() {
    let mut fixture = Fixture::new();
    let mut ema = started(EmaWeights::new(0.5));
    fixture.forward();
    let before = fixture.evaluation_values();
    step(&mut ema, &mut fixture);
    assert_eq!(fixture.evaluation_values(), before);
    let weights = validation(&mut ema, &mut fixture).unwrap();
    assert_eq!(weights.len(), before.len());
    for (path, value) in &weights {
        assert_eq!(floats(value), before[path], "{path}");
    }
    assert_ne!(
        before["norm.running_mean"], [0.0; 3],
        "the update of the forward pass is in it"
    );

    // The module goes on; the copies stay.
    fixture.forward();
    fixture.fill_parameters(9.0);
    let later = fixture.evaluation_values();
    assert_ne!(later["norm.running_mean"], before["norm.running_mean"]);
    for (path, data) in ema.tensors() {
        assert_eq!(data.iter::<f32>().collect::<Vec<_>>(), before[&path], "{path}");
    }
}

#[test]
fn frozen_parameters_have_no_average_until_they_are_trained() {
    let mut fixture = Fixture::new();
    fixture.frozen = vec![fixture.table.index_of_path("body.weight").unwrap()];
    let mut ema = started(EmaWeights::new(0.5));
    step(&mut ema, &mut fixture);
    assert!(!ema.tensors().contains_key("body.weight") && ema.tensors().contains_key("body.bias"));
    fixture.frozen.clear();
    fixture.fill_parameters(2.0);
    step(&mut ema, &mut fixture);
    assert_eq!(ema.tensors()["body.weight"].iter::<f32>().next(), Some(2.0));
}

#[test]
fn updates_that_did_not_happen_do_not_count() {
    let mut fixture = Fixture::new();
    let mut ema = started(EmaWeights::new(0.5));
    for update in [None, Some(Update::Skipped)] {
        fixture.update = update;
        ema.on_train_batch_end(&fixture.view(), &mut Commands::default())
            .unwrap();
    }
    assert_eq!((ema.tensors().len(), ema.state.num_updates), (0, 0));
    assert!(validation(&mut ema, &mut fixture).is_none());
}

#[test]
fn averages_are_used_where_they_are_wanted() {
    let mut fixture = Fixture::new();
    for wanted in [true, false] {
        let mut ema = started(EmaWeights::new(0.5).use_in_validation(wanted).use_at_end(!wanted));
        step(&mut ema, &mut fixture);
        assert_eq!(validation(&mut ema, &mut fixture).is_some(), wanted);
        let end = commands(|commands| ema.on_fit_end(&fixture.view(), commands));
        assert_eq!(end.weights.is_some(), !wanted);
        // Another fit starts anew.
        assert!(started(ema).tensors().is_empty());
    }
}

#[test]
fn a_resumed_run_goes_on_bit_for_bit() {
    let mut fixture = Fixture::new();
    let mut ema = started(EmaWeights::new(0.9));
    for value in [0.1, 0.7, 1.3] {
        fixture.fill_parameters(value);
        step(&mut ema, &mut fixture);
    }
    let (text, tensors) = (ema.state().unwrap().to_string(), ema.tensors());
    let mut resumed = EmaWeights::new(0.9);
    resumed
        .load_state(&serde_json::from_str(&text).unwrap(), tensors.clone())
        .unwrap();
    assert_eq!(resumed.tensors(), tensors, "saved again before it was used");
    let mut resumed = started(resumed);
    for value in [0.3, 0.4] {
        fixture.fill_parameters(value);
        step(&mut ema, &mut fixture);
        step(&mut resumed, &mut fixture);
    }
    assert_eq!(resumed.tensors(), ema.tensors());
    assert_eq!(resumed.state.num_updates, 5);
}

#[test]
fn foreign_states_and_impossible_options_are_refused() {
    let mut fixture = Fixture::new();
    let mut ema = started(EmaWeights::new(0.9));
    step(&mut ema, &mut fixture);
    let (state, tensors) = (ema.state().unwrap(), ema.tensors());
    assert!(EmaWeights::new(0.9).load_state(&state, BTreeMap::new()).is_err());

    for (path, data) in [
        ("head.weight", TensorData::from([1.0_f32])),
        ("tail", TensorData::from([1.0_f32])),
    ] {
        let mut tensors = tensors.clone();
        tensors.insert(path.to_owned(), data);
        let mut ema = EmaWeights::new(0.9);
        ema.load_state(&state, tensors).unwrap();
        let error = ema
            .on_fit_start(&fixture.view(), &mut Commands::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("'{path}'")), "{error}");
    }
    for (ema, option) in [
        (EmaWeights::new(1.0), "decay"),
        (EmaWeights::new(f64::NAN), "decay"),
        (
            EmaWeights::new(0.5).update_every_n_steps(0),
            "update_every_n_steps",
        ),
    ] {
        let mut ema = ema;
        let error = ema
            .on_fit_start(&fixture.view(), &mut Commands::default())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(option), "{error}");
    }
}
