use std::{env, process::Command};

use super::{name, snapshot};
use crate::checkpoint::CheckpointDir;

/// The interpreter to try: this variable's, else `python3`.
const PYTHON: &str = "FIREBRAND_TEST_PYTHON";

const SCRIPT: &str = r#"
import json, struct, sys
from pathlib import Path
from safetensors import safe_open
import numpy as np

root = Path(sys.argv[1])
step = json.loads((root / "state.json").read_text())["global_step"]
value = step + 0.5
with safe_open(root / "model.safetensors", framework="numpy") as file:
    assert file.metadata() == {"format": "pt"}, file.metadata()
    assert sorted(file.keys()) == ["bn.running_mean", "empty", "net.fc.bias", "net.fc.weight", "scalar"]
    weight = file.get_tensor("net.fc.weight")
    assert weight.dtype == np.float32 and weight.shape == (16, 32) and (weight == value).all()
    mean = file.get_tensor("bn.running_mean")
    assert mean.dtype == np.float64 and (mean == value).all()
    scalar = file.get_tensor("scalar")
    assert scalar.dtype == np.float16 and scalar.shape == () and scalar == value
    assert file.get_tensor("empty").shape == (0, 3)
    bias = file.get_slice("net.fc.bias")
    assert bias.get_dtype() == "BF16" and bias.get_shape() == [32]
with safe_open(root / "optimizer.safetensors", framework="numpy") as file:
    time = file.get_tensor("net.fc.weight.time")
    assert time.dtype == np.int64 and time.tolist() == [step]
with safe_open(root / "mask.safetensors", framework="numpy") as file:
    assert file.get_tensor("m").tolist() == [True, False]
print("python read it")
"#;

#[test]
fn the_safetensors_package_opens_a_checkpoint() {
    let python = env::var(PYTHON).unwrap_or_else(|_| "python3".into());
    let probe = Command::new(&python)
        .args(["-c", "import safetensors, numpy"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("skipped: '{python}' has no safetensors and numpy; name another interpreter in {PYTHON}");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let path = CheckpointDir::new(temp.path())
        .write(&name(21), &snapshot(21))
        .unwrap()
        .path;
    let output = Command::new(python)
        .args(["-c", SCRIPT])
        .arg(path)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("python read it"));
}
