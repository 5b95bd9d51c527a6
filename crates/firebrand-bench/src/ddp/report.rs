use super::{Run, Windows, Workload};
use crate::numbers::Numbers;
use crate::statistics::{median, range};
use crate::table::{Limit, load, mark, table};

const EFFICIENCY: &str = "efficiency";
const TORCH_EFFICIENCY: &str = "torch_efficiency";

/// Efficiencies, with the times of one rank and of two.
pub(super) const EFFICIENCIES: [(&str, &str, &str); 2] = [
    (EFFICIENCY, "one_rank_ms", "two_ranks_ms"),
    (TORCH_EFFICIENCY, "torch_one_rank_ms", "torch_two_ranks_ms"),
];

/// By how much Firebrand's efficiency should exceed PyTorch's, and what it should be at least.
const LEAD: (Workload, Limit) = (Workload::ALL[1], Limit::AtLeast(0.25));
const LEAST: (Workload, Limit) = (Workload::ALL[2], Limit::AtLeast(0.90));

pub(super) fn title() {
    println!(
        "data parallel training, MLP 784-h-h-10, float32, SGD, one thread per rank; the load on the machine is {}\n",
        load()
    );
}

/// Prints the times per step.
pub(super) fn times(times: &[(Workload, Windows)]) {
    println!("milliseconds per step; load {}", load());
    let mut table = table([
        "h, batch per rank",
        "loop",
        "ranks",
        "median",
        "fastest",
        "slowest",
    ]);
    for (workload, windows) in times {
        for run in Run::ALL {
            let Some((_, windows)) = windows.iter().find(|(known, _)| *known == run) else {
                continue;
            };
            let (fastest, slowest) = range(windows);
            table.add_row([
                format!("{}, {}", workload.width, workload.batch_size),
                if run.torch { "torch DDP" } else { "Firebrand" }.to_owned(),
                run.ranks.to_string(),
                format!("{:.2}", median(windows)),
                format!("{fastest:.2}"),
                format!("{slowest:.2}"),
            ]);
        }
    }
    println!("{table}\n");
}

/// Prints the efficiencies, and which targets are met.
pub(super) fn targets(numbers: &Numbers) {
    println!("efficiency: time per step of 1 rank / of 2 ranks at the same batch per rank");
    let mut table = table([
        "h, batch per rank",
        "Firebrand",
        "torch DDP",
        "lead",
        "target",
        "",
    ]);
    for workload in Workload::ALL {
        let efficiency = numbers.get(&workload.key(EFFICIENCY));
        let torch = numbers.get(&workload.key(TORCH_EFFICIENCY));
        let lead = efficiency.zip(torch).map(|(ours, theirs)| ours - theirs);
        let target = match workload {
            w if w == LEAD.0 => Some((format!("lead {}", LEAD.1.text()), lead, LEAD.1)),
            w if w == LEAST.0 => Some((LEAST.1.text(), efficiency, LEAST.1)),
            _ => None,
        };
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
        let (text, verdict) = match target {
            Some((text, Some(value), limit)) => (text, mark(limit.holds(value))),
            Some((text, None, _)) => (text, ""),
            None => Default::default(),
        };
        table.add_row([
            format!("{}, {}", workload.width, workload.batch_size),
            number(efficiency),
            number(torch),
            number(lead),
            text,
            verdict.to_owned(),
        ]);
    }
    println!("{table}\n");
}
