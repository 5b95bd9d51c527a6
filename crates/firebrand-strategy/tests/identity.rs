//! Parameters go by their paths: identities, clones of layers, tied weights.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use firebrand_core::{
    AnyTensor, ErasedModule, FitInfo, LightningModule, OptimizerSetup, ParamInfo, ParamKind, ParamTable,
    ParamVisitor, Result, StepContext, erase, path_id, restore_type,
};
use firebrand_strategy::{EngineOptions, Error};
use support::*;

fn identities(module: &dyn ErasedModule) -> BTreeMap<String, ParamId> {
    struct Ids(BTreeMap<String, ParamId>);

    impl ParamVisitor for Ids {
        fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
            self.0.insert(info.path.to_owned(), info.id);
            false
        }

        fn visit(&mut self, _: &ParamInfo<'_>, _: AnyTensor, _: bool) {}
    }

    let mut ids = Ids(BTreeMap::new());
    module.visit_params(&mut ids);
    ids.0
}

#[test]
fn parameters_get_the_identity_of_their_path_and_buffers_keep_theirs() {
    let _alone = alone();
    let mut first = erase(Cnn::new(&device()));
    let before = identities(&*first);
    let table = ParamTable::take_over(&mut *first).unwrap();
    let mut second = erase(Cnn::new(&device()));
    ParamTable::take_over(&mut *second).unwrap();
    let (first, second) = (identities(&*first), identities(&*second));
    let mut buffers = Vec::new();
    for entry in table.entries() {
        let path = &entry.path;
        match entry.kind {
            ParamKind::Parameter => {
                assert_eq!(first[path], path_id(path));
                assert_eq!(first[path], second[path], "the same in every process");
            }
            ParamKind::Buffer => {
                assert_eq!(first[path], before[path]);
                buffers.push(path.as_str());
            }
        }
    }
    assert_eq!(buffers, ["norm.running_mean", "norm.running_var"]);
    assert_eq!(table.parameters().count(), 6);
}

/// The order of the table is that of the fields, which is the same on every rank and in every run.
#[test]
fn the_table_is_in_the_order_of_the_fields() {
    let mut module = erase(Mlp::new(&device()));
    let table = ParamTable::take_over(&mut *module).unwrap();
    let paths: Vec<&str> = table.entries().iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
    let shapes: Vec<Vec<usize>> = table.entries().iter().map(|entry| entry.shape.to_vec()).collect();
    assert_eq!(shapes, [vec![6, 16], vec![16], vec![16, 3], vec![3]]);
}

#[derive(Module, Debug)]
struct Twins {
    left: Linear,
    right: Linear,
    tied: bool,
}

impl LightningModule for Twins {
    type Batch = Tensor<2>;

    fn training_step(&self, x: Tensor<2>, _: &mut StepContext) -> Result<Tensor<1>> {
        Ok(self
            .right
            .forward(self.left.forward(x).tanh())
            .powf_scalar(2.0)
            .mean())
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 0.1)
    }

    fn tied_parameters(&self) -> Vec<Vec<String>> {
        if self.tied {
            vec![vec!["right.weight".to_owned(), "left.weight".to_owned()]]
        } else {
            Vec::new()
        }
    }
}

fn twins(tied: bool) -> Twins {
    Twins {
        left: LinearConfig::new(4, 4).init(&device()),
        right: LinearConfig::new(4, 4).init(&device()),
        tied,
    }
}

#[test]
fn a_cloned_layer_is_an_error_that_names_both_paths() {
    let _alone = alone();
    let mut layers = twins(false);
    layers.right = layers.left.clone();
    let mut module = erase(layers);
    let error = ParamTable::take_over(&mut *module).unwrap_err().to_string();
    assert!(error.contains("'left.weight' and 'right.weight'"), "{error}");
    assert!(error.contains("tied_parameters"), "{error}");
    assert!(
        initialized(&*module).values().all(|initialized| !initialized),
        "nothing was drawn"
    );

    // Also when the clone was made from a module that had been trained, under other paths.
    let mut trained = erase(twins(false));
    ParamTable::take_over(&mut *trained).unwrap();
    let trained: Twins = restore_type(trained).unwrap();
    let mut layers = twins(false);
    layers.left = trained.left.clone();
    layers.right = trained.left;
    let error = ParamTable::take_over(&mut *erase(layers))
        .unwrap_err()
        .to_string();
    assert!(error.contains("'left.weight' and 'right.weight'"), "{error}");
}

#[test]
fn a_module_may_be_taken_over_again_and_rearranged() {
    let _alone = alone();
    let mut module = erase(twins(false));
    ParamTable::take_over(&mut *module).unwrap();
    ParamTable::take_over(&mut *module).unwrap();
    let mut swapped: Twins = restore_type(module).unwrap();
    std::mem::swap(&mut swapped.left, &mut swapped.right);
    let mut module = erase(swapped);
    ParamTable::take_over(&mut *module).unwrap();
    assert_eq!(identities(&*module)["left.weight"], path_id("left.weight"));
}

/// One matrix used twice, which is what tied parameters are to be like.
#[derive(Module, Debug)]
struct Shared {
    weight: Param<Tensor<2>>,
    left: Param<Tensor<1>>,
    right: Param<Tensor<1>>,
}

impl Shared {
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let hidden = x.matmul(self.weight.val()) + self.left.val().unsqueeze();
        let out = hidden.tanh().matmul(self.weight.val()) + self.right.val().unsqueeze();
        out.powf_scalar(2.0).mean()
    }
}

fn batch(number: u64) -> Tensor<2> {
    tensor(number, [5, 4], DType::F32, &device())
}

#[test]
fn tied_parameters_are_one_parameter() {
    let _alone = alone();
    let momentum = || Some(MomentumConfig::new().with_momentum(0.9));
    let setups: [(OptimizerSetup, burn::optim::ModuleOptimizer); 2] = [
        (
            OptimizerSetup::new(SgdConfig::new().with_momentum(momentum()), 0.1),
            SgdConfig::new().with_momentum(momentum()).init(),
        ),
        (
            OptimizerSetup::new(AdamWConfig::new(), 0.1),
            AdamWConfig::new().init(),
        ),
    ];
    for (setup, mut optimizer) in setups {
        let layers = twins(true);
        materialize(&layers);
        assert_ne!(
            layers.left.weight.val().into_data(),
            layers.right.weight.val().into_data()
        );
        let vector =
            |layer: &Linear| Tensor::from_data(layer.bias.as_ref().unwrap().val().into_data(), &device());
        let mut shared = Shared {
            weight: Param::from_tensor(Tensor::from_data(layers.left.weight.val().into_data(), &device())),
            left: Param::from_tensor(vector(&layers.left)),
            right: Param::from_tensor(vector(&layers.right)),
        };
        let mut module = erase(layers);
        let mut engine = engine(&mut *module, &setup, EngineOptions::default()).unwrap();
        assert_eq!(
            values(&*module)["left.weight"],
            values(&*module)["right.weight"],
            "the first gives the value"
        );
        for number in 0..30 {
            step(&mut engine, &mut *module, batch(number), number).unwrap();
            let gradients = GradientsParams::from_grads(shared.loss(batch(number)).backward(), &shared);
            shared = optimizer.step(0.1, shared, gradients);
            let values = values(&*module);
            assert_eq!(values["left.weight"], values["right.weight"], "step {number}");
            assert_eq!(
                values["left.weight"],
                shared.weight.val().into_data(),
                "step {number}"
            );
            assert_eq!(
                values["left.bias"],
                shared.left.val().into_data(),
                "step {number}"
            );
        }
        let state = engine.state();
        assert!(state.tensors.keys().any(|name| name.starts_with("left.weight.")));
        assert!(
            !state.tensors.keys().any(|name| name.starts_with("right.weight.")),
            "one state for one parameter"
        );
    }
}

/// A clone is what a user ties first: then the two have one identity, and declaring them makes that right.
#[test]
fn a_declared_clone_is_tied() {
    let _alone = alone();
    let mut layers = twins(true);
    layers.right.weight = layers.left.weight.clone();
    let mut module = erase(layers);
    let setup = OptimizerSetup::new(SgdConfig::new(), 0.1);
    let mut engine = engine(&mut *module, &setup, EngineOptions::default()).unwrap();
    let before = values(&*module);
    step(&mut engine, &mut *module, batch(0), 0).unwrap();
    let after = values(&*module);
    assert_eq!(after["left.weight"], after["right.weight"]);
    assert_ne!(before["left.weight"], after["left.weight"]);
}

#[test]
fn tied_paths_that_do_not_fit_are_errors() {
    #[derive(Module, Debug)]
    struct Net {
        left: Linear,
        right: Linear,
        #[module(skip)]
        tied: Vec<String>,
    }

    impl LightningModule for Net {
        type Batch = Tensor<2>;

        fn training_step(&self, x: Tensor<2>, _: &mut StepContext) -> Result<Tensor<1>> {
            Ok(self.right.forward(self.left.forward(x)).mean())
        }

        fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
            OptimizerSetup::new(SgdConfig::new(), 0.1)
        }

        fn tied_parameters(&self) -> Vec<Vec<String>> {
            vec![self.tied.clone()]
        }
    }

    let error = |tied: [&str; 2]| {
        let mut module = erase(Net {
            left: LinearConfig::new(4, 6).init(&device()),
            right: LinearConfig::new(6, 4).init(&device()),
            tied: tied.map(str::to_owned).to_vec(),
        });
        ParamTable::take_over(&mut *module).unwrap_err().to_string()
    };
    let unknown = error(["left.weight", "rigth.weight"]);
    assert!(
        unknown.contains("'rigth.weight'") && unknown.contains("left.bias"),
        "{unknown}"
    );
    let shapes = error(["left.weight", "right.weight"]);
    assert!(shapes.contains("'right.weight' has the shape"), "{shapes}");
    assert!(shapes.contains("[4, 6]") && shapes.contains("[6, 4]"), "{shapes}");
}

/// The optimizer of a tied set is that of its first parameter, and freezing one use leaves the other.
#[test]
fn one_use_of_a_tied_parameter_may_be_frozen() {
    let _alone = alone();
    let run = |frozen: Option<&str>| {
        let mut module = erase(twins(true));
        let setup = OptimizerSetup::new(SgdConfig::new(), 1.0);
        let mut engine = engine(&mut *module, &setup, EngineOptions::default()).unwrap();
        if let Some(path) = frozen {
            engine.set_trained(&path.into(), false).unwrap();
        }
        let before = value(&*module, "left.weight");
        step(&mut engine, &mut *module, batch(0), 0).unwrap();
        let after = value(&*module, "left.weight");
        assert_eq!(after, value(&*module, "right.weight"));
        before
            .iter()
            .zip(after)
            .map(|(before, after)| before - after)
            .collect::<Vec<f64>>()
    };
    let (both, left, right) = (run(None), run(Some("right.weight")), run(Some("left.weight")));
    for ((both, left), right) in both.iter().zip(left).zip(right) {
        assert!(
            (both - (left + right)).abs() < 1e-6,
            "{both} is not {left} + {right}"
        );
    }
}

#[test]
fn an_unknown_path_is_an_error_that_lists_the_known_ones() {
    // The module is on a device without autodiff: that changes nothing about its table.
    let mut module = erase(Mlp::new(&Device::flex()));
    let table = ParamTable::take_over(&mut *module).unwrap();
    let error: Error = table.matching(&"fc3".into()).unwrap_err().into();
    let text = error.to_string();
    assert!(
        text.contains("'fc3'") && text.contains("fc1.weight, fc1.bias, fc2.weight, fc2.bias"),
        "{text}"
    );
}
