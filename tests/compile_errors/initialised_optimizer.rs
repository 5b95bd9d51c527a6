//! Burn's habit of calling `init` on the configuration of an optimizer.

use burn::optim::AdamWConfig;
use firebrand::prelude::*;

fn main() {
    let _setup = OptimizerSetup::new(AdamWConfig::new().init(), 1e-3);
}
