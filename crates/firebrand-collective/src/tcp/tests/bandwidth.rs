//! How fast it is: `cargo test --release -p firebrand-collective tcp::tests::bandwidth -- --ignored --nocapture`.

use std::fmt::Write;
use std::time::Instant;

use super::processes::Run;
use super::*;

const SIZES: [usize; 8] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

#[test]
#[ignore = "a measurement"]
fn all_reduce_of_two_processes() {
    let run = Run::start(2, "measure");
    println!("{}", run.outcome(0, Duration::from_secs(200)));
}

/// What one of the processes does.
pub(super) fn measure(context: GroupContext) -> String {
    let mut rank = Rank::connect(context).unwrap();
    let mut report = String::new();
    for size in SIZES {
        let mut buffer = Buffer::from_slice(&vec![1.0f32; size / 4]);
        let repeats = ((256 << 20) / size).clamp(5, 400);
        let mut seconds: Vec<f64> = Vec::with_capacity(repeats);
        for round in 0..repeats + 3 {
            buffer.as_mut_slice::<f32>().unwrap().fill(1.0);
            rank.barrier().unwrap();
            let start = Instant::now();
            buffer = rank.run(Operation::AllReduce(ReduceOp::Sum), buffer).unwrap();
            if round >= 3 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        let (best, median) = (seconds[0], seconds[seconds.len() / 2]);
        let speed = |seconds: f64| size as f64 / seconds / 1e9;
        writeln!(
            report,
            "{size:>10} B: best {:.2} GB/s, median {:.2} GB/s, {:.1} us",
            speed(best),
            speed(median),
            median * 1e6
        )
        .unwrap();
    }
    report
}
