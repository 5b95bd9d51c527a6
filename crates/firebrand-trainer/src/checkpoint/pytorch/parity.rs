use std::{collections::BTreeMap, env, process::Command};

use burn::{
    module::{Param, RunningState},
    nn::{
        BatchNormConfig, EmbeddingConfig, GroupNormConfig, LayerNormConfig, LinearConfig, RmsNormConfig,
        conv::{Conv2dConfig, ConvTranspose2dConfig},
    },
    tensor::{Device, Distribution, Int, Tensor, TensorData},
};

use super::{LayerKind, NameMap, export_file};
use crate::checkpoint::write_tensor_file;

/// PyTorch loads the exported file strictly, and its layers must give what Burn's gave.
const SCRIPT: &str = r#"
import sys
import torch
from torch import nn
from safetensors.torch import load_file

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.embedding = nn.Embedding(10, 4)
        self.layer_norm = nn.LayerNorm(6)
        self.rms_norm = nn.RMSNorm(6, eps=1e-5)
        self.group_norm = nn.GroupNorm(2, 6)
        self.batch_norm = nn.BatchNorm2d(6)
        self.conv = nn.Conv2d(4, 6, (3, 2), groups=2)
        self.conv_transpose = nn.ConvTranspose2d(4, 6, (3, 2))

net = Net().eval()
print(net.load_state_dict(load_file(sys.argv[1]), strict=True))
data = load_file(sys.argv[2])
with torch.no_grad():
    for name, layer in net.named_children():
        found = layer(data[name + ".input"])
        expected = data[name + ".output"]
        assert found.shape == expected.shape, (name, found.shape, expected.shape)
        difference = (found - expected).abs().max().item()
        assert difference < 1e-5, (name, difference)
        print(name, difference)
"#;

/// The elements of a parameter or a buffer.
trait HostData {
    fn data(&self) -> TensorData;
}

impl<const D: usize> HostData for Param<Tensor<D>> {
    fn data(&self) -> TensorData {
        self.val().into_data()
    }
}

impl<const D: usize> HostData for Option<Param<Tensor<D>>> {
    fn data(&self) -> TensorData {
        self.as_ref().unwrap().data()
    }
}

impl HostData for RunningState<Tensor<1>> {
    fn data(&self) -> TensorData {
        self.value().into_data()
    }
}

#[test]
fn pytorch_computes_the_same_with_exported_weights() {
    let python = env::var("FIREBRAND_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = Command::new(&python)
        .args(["-c", "import safetensors.torch"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("skipped: '{python}' has no torch and safetensors");
        return;
    }
    let device = Device::flex();
    let mut weights = BTreeMap::new();
    let mut data = BTreeMap::new();
    let random = |shape: [usize; 4]| Tensor::<4>::random(shape, Distribution::Default, &device);
    macro_rules! layer {
        ($name:literal, $layer:expr, $input:expr, [$($field:ident),*]) => {{
            let (layer, input) = ($layer, $input);
            data.insert(concat!($name, ".output").to_owned(), layer.forward(input.clone()).into_data());
            data.insert(concat!($name, ".input").to_owned(), input.into_data());
            $(weights.insert(concat!("net.", $name, ".", stringify!($field)).to_owned(), layer.$field.data());)*
        }};
    }

    layer!(
        "linear",
        LinearConfig::new(4, 6).init(&device),
        random([2, 3, 5, 4]),
        [weight, bias]
    );
    let indices = Tensor::<2, Int>::from_ints([[1, 9, 0], [3, 3, 2]], &device);
    layer!(
        "embedding",
        EmbeddingConfig::new(10, 4).init(&device),
        indices,
        [weight]
    );
    let mut layer_norm = LayerNormConfig::new(6).init(&device);
    layer_norm.gamma = layer_norm
        .gamma
        .map(|gamma| gamma.random_like(Distribution::Default));
    layer!("layer_norm", layer_norm, random([2, 3, 5, 6]), [gamma, beta]);
    let mut rms_norm = RmsNormConfig::new(6).init(&device);
    rms_norm.gamma = rms_norm
        .gamma
        .map(|gamma| gamma.random_like(Distribution::Default));
    layer!("rms_norm", rms_norm, random([2, 3, 5, 6]), [gamma]);
    layer!(
        "group_norm",
        GroupNormConfig::new(2, 6).init(&device),
        random([2, 6, 5, 3]),
        [gamma, beta]
    );
    let mut batch_norm = BatchNormConfig::new(6).init(&device);
    let statistics = |low, high| Tensor::<1>::random([6], Distribution::Uniform(low, high), &device);
    batch_norm.running_mean = RunningState::new(statistics(-1.0, 1.0));
    batch_norm.running_var = RunningState::new(statistics(0.5, 2.0));
    layer!(
        "batch_norm",
        batch_norm,
        random([2, 6, 5, 3]),
        [gamma, beta, running_mean, running_var]
    );
    let conv = Conv2dConfig::new([4, 6], [3, 2]).with_groups(2).init(&device);
    layer!("conv", conv, random([2, 4, 5, 5]), [weight, bias]);
    let conv_transpose = ConvTranspose2dConfig::new([4, 6], [3, 2]).init(&device);
    layer!(
        "conv_transpose",
        conv_transpose,
        random([2, 4, 5, 5]),
        [weight, bias]
    );

    let map = NameMap::layers([
        ("net.linear", LayerKind::Linear),
        ("net.embedding", LayerKind::Embedding),
        ("net.layer_norm", LayerKind::LayerNorm),
        ("net.rms_norm", LayerKind::RmsNorm),
        ("net.group_norm", LayerKind::GroupNorm),
        ("net.batch_norm", LayerKind::BatchNorm),
        ("net.conv*", LayerKind::Conv),
    ])
    .rename_prefix("net.", "");
    let temp = tempfile::tempdir().unwrap();
    let (exported, expected) = (
        temp.path().join("net.safetensors"),
        temp.path().join("data.safetensors"),
    );
    export_file(&exported, weights, &map).unwrap();
    write_tensor_file(&expected, &data).unwrap();
    let output = Command::new(python)
        .args(["-c", SCRIPT])
        .args([exported, expected])
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
