use super::Workload;
use crate::numbers::Numbers;
use crate::table::{self, Limit, load, mark};

/// How much faster bfloat16 should be, and how much of float32's peak memory it may take at most.
const FASTER: Limit = Limit::AtLeast(2.0);
const MEMORY: Limit = Limit::AtMost(0.65);

pub(super) fn title() {
    println!(
        "mixed precision on LibTorch, AdamW, one thread, one process per run; the load on the machine is {}\n",
        load()
    );
}

/// Prints times and peaks.
pub(super) fn times(numbers: &Numbers) {
    println!(
        "milliseconds per step, median; peak of the resident memory in MiB; load {}",
        load()
    );
    let mut rows = table::table(["model", "f32", "bf16-mixed", "torch f32", "torch autocast"]);
    for workload in Workload::ALL {
        for (what, keys) in [
            ("ms", ["f32_ms", "bf16_ms", "torch_f32_ms", "torch_bf16_ms"]),
            (
                "MiB",
                [
                    "f32_peak_mib",
                    "bf16_peak_mib",
                    "torch_f32_peak_mib",
                    "torch_bf16_peak_mib",
                ],
            ),
        ] {
            let number = |key: &str| {
                let value = numbers.get(&workload.key(key));
                value.map_or_else(String::new, |value| format!("{value:.1}"))
            };
            let [a, b, c, d] = keys.map(number);
            rows.add_row([format!("{}, {what}", workload.name()), a, b, c, d]);
        }
    }
    println!("{rows}\n");
}

/// Prints the ratios, and which targets are met.
pub(super) fn targets(numbers: &Numbers) {
    println!("f32 / bf16-mixed: time per step, and peak memory the other way round");
    let mut rows = table::table(["model", "what", "Firebrand", "PyTorch", "target", ""]);
    for workload in Workload::ALL {
        let ratio = |over: &str, under: &str| {
            Some(numbers.get(&workload.key(over))? / numbers.get(&workload.key(under))?)
        };
        let text = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
        let (ours, theirs) = (ratio("f32_ms", "bf16_ms"), ratio("torch_f32_ms", "torch_bf16_ms"));
        let is_target = matches!(workload, Workload::Gpt | Workload::Mlp);
        let verdict = |holds: Option<bool>| holds.filter(|_| is_target).map_or("", mark).to_owned();
        let goal = |limit: Limit| if is_target { limit.text() } else { String::new() };
        rows.add_row([
            workload.name().to_owned(),
            "times faster".to_owned(),
            text(ours),
            text(theirs),
            goal(FASTER),
            verdict(ours.map(|ours| FASTER.holds(ours))),
        ]);
        if theirs.is_some() {
            rows.add_row([
                String::new(),
                "not behind PyTorch".to_owned(),
                String::new(),
                String::new(),
                if is_target {
                    "≥ PyTorch's".to_owned()
                } else {
                    String::new()
                },
                verdict(ours.zip(theirs).map(|(ours, theirs)| ours >= theirs)),
            ]);
        }
        let (ours, theirs) = (
            ratio("bf16_peak_mib", "f32_peak_mib"),
            ratio("torch_bf16_peak_mib", "torch_f32_peak_mib"),
        );
        let is_gpt = workload == Workload::Gpt;
        rows.add_row([
            String::new(),
            "share of the memory".to_owned(),
            text(ours),
            text(theirs),
            if is_gpt { MEMORY.text() } else { String::new() },
            ours.filter(|_| is_gpt)
                .map_or("", |ours| mark(MEMORY.holds(ours)))
                .to_owned(),
        ]);
    }
    println!("{rows}\n");
}
