use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

use super::Loop;
use super::feed::Source;
use super::model::Size;
use crate::memory::resident_mib;

/// The name of the growth among the numbers.
pub(super) const KEY: &str = "overhead.small.rss_growth_mib";

const FIRST: usize = 1_000;
const LAST: usize = 10_000;

/// By how many MiB the process grows from step 1,000 to step 10,000 of the small model in the trainer; `None` where the system
/// does not say.
pub(super) fn growth_mib() -> Result<Option<f64>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let found = Arc::clone(&seen);
    let source = Source::new(Size::Small, LAST + 2, move |step| {
        if step == FIRST || step == LAST {
            found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(resident_mib());
        }
    });
    drop(Loop::Trainer.train(Size::Small, source)?);
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let &[first, last] = seen.as_slice() else {
        println!("memory: this system does not tell how much is resident\n");
        return Ok(None);
    };
    println!(
        "memory: {first:.1} MiB resident at step {FIRST} of the trainer, {last:.1} MiB at step {LAST} (small model)\n"
    );
    Ok(Some(last - first))
}
