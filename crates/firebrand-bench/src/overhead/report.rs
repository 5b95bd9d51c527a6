use super::Loop;
use super::memory;
use super::model::Size;
use super::timing::Timings;
use crate::numbers::Numbers;
use crate::table::{Limit, load, mark, table};

/// Growth below this is the allocator's breath, not a leak: 117 bytes per step.
const GROWTH_LIMIT_MIB: f64 = 1.0;

/// The loops, with the names of their times and what they are called in a table.
const ROWS: [(&str, &str, Option<Loop>); 7] = [
    ("raw_us", "raw Burn loop", Some(Loop::Raw)),
    ("trainer_us", "Firebrand trainer", Some(Loop::Trainer)),
    ("burn_train_us", "burn-train", Some(Loop::BurnTrain)),
    ("pytorch_us", "raw PyTorch loop", None),
    ("lightning_us", "Lightning", None),
    ("raw_sgd_us", "raw Burn loop, SGD", Some(Loop::RawSgd)),
    ("trainer_sgd_us", "Firebrand trainer, SGD", Some(Loop::TrainerSgd)),
];

/// A ratio of two times, and what it should be.
struct Target {
    size: Size,
    over: (&'static str, &'static str),
    what: &'static str,
    limit: Limit,
}

const TRAINER_TO_RAW: (&str, &str) = ("trainer_us", "raw_us");
const TRAINER_TO_BURN_TRAIN: (&str, &str) = ("trainer_us", "burn_train_us");
const LIGHTNING_TO_TRAINER: (&str, &str) = ("lightning_us", "trainer_us");

const TARGETS: [Target; 5] = [
    Target {
        size: Size::Small,
        over: TRAINER_TO_RAW,
        what: "trainer / raw",
        limit: Limit::AtMost(1.20),
    },
    Target {
        size: Size::Large,
        over: TRAINER_TO_RAW,
        what: "trainer / raw",
        limit: Limit::AtMost(1.03),
    },
    Target {
        size: Size::Small,
        over: TRAINER_TO_BURN_TRAIN,
        what: "trainer / burn-train",
        limit: Limit::AtMost(1.0),
    },
    Target {
        size: Size::Large,
        over: TRAINER_TO_BURN_TRAIN,
        what: "trainer / burn-train",
        limit: Limit::AtMost(1.0),
    },
    Target {
        size: Size::Small,
        over: LIGHTNING_TO_TRAINER,
        what: "Lightning / trainer",
        limit: Limit::AtLeast(4.0),
    },
];

pub(super) fn title() {
    println!(
        "time per training step, Flex, one thread, float32, AdamW where nothing else is said; the load on the machine is {}\n",
        load()
    );
}

/// Prints the time of each loop.
pub(super) fn times(size: Size, timings: &Timings, numbers: &Numbers) {
    let widths: Vec<String> = size.widths().iter().map(usize::to_string).collect();
    println!(
        "{}: MLP {}, batch {}; load {}",
        size.name(),
        widths.join("-"),
        size.batch_size(),
        load()
    );
    let mut table = table(["loop", "median µs", "fastest", "slowest", "× raw"]);
    for (key, name, which) in ROWS {
        let Some(median) = numbers.get(&size.key(key)) else {
            continue;
        };
        let (fastest, slowest) = match which.map(|which| timings.range(which)) {
            Some((fastest, slowest)) => (format!("{fastest:.1}"), format!("{slowest:.1}")),
            None => Default::default(),
        };
        let raw = timings.median(which.map_or(Loop::Raw, Loop::baseline));
        let ratio = format!("{:.3}", median / raw);
        table.add_row([name.to_owned(), format!("{median:.1}"), fastest, slowest, ratio]);
    }
    println!("{table}\n");
}

/// Prints which targets are met.
pub(super) fn targets(numbers: &Numbers) {
    let mut table = table(["model", "what", "target", "measured", ""]);
    for Target {
        size,
        over: (numerator, denominator),
        what,
        limit,
    } in TARGETS
    {
        let (Some(numerator), Some(denominator)) = (
            numbers.get(&size.key(numerator)),
            numbers.get(&size.key(denominator)),
        ) else {
            continue;
        };
        let ratio = numerator / denominator;
        table.add_row([
            size.name(),
            what,
            &limit.text(),
            &format!("{ratio:.3}"),
            mark(limit.holds(ratio)),
        ]);
    }
    if let Some(growth) = numbers.get(memory::KEY) {
        let limit = format!("≤ {GROWTH_LIMIT_MIB} MiB");
        let measured = format!("{growth:.2} MiB");
        let mark = mark(growth <= GROWTH_LIMIT_MIB);
        table.add_row([
            Size::Small.name(),
            "growth in 9,000 steps",
            &limit,
            &measured,
            mark,
        ]);
    }
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_name_times_that_are_measured() {
        for target in &TARGETS {
            for key in [target.over.0, target.over.1] {
                assert!(ROWS.iter().any(|(known, _, _)| *known == key), "{key}");
            }
        }
    }
}
