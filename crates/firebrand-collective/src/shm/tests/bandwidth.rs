//! How fast it is: `cargo test --release -p firebrand-collective shm::tests::bandwidth -- --ignored --nocapture`.

use std::time::Instant;

use super::processes::{Process, rank_of_process};
use super::*;

const SIZES: [usize; 9] = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
];

#[test]
#[ignore = "a measurement"]
fn all_reduce_of_processes() {
    for ranks in [2, 4] {
        let folder = tempfile::tempdir().unwrap();
        let processes: Vec<Process> = (0..ranks)
            .map(|rank| Process::start("shm::tests::bandwidth::measures", folder.path(), rank, ranks))
            .collect();
        for (rank, process) in processes.into_iter().enumerate() {
            let said = process.succeed();
            if rank == 0 {
                println!("{ranks} ranks\n{said}");
            }
        }
    }
}

#[test]
#[ignore = "a rank in a process of its own"]
fn measures() {
    let Some((context, _)) = rank_of_process(PATIENT) else {
        return;
    };
    let mut rank = Rank::new(&context).unwrap();
    for in_arena in [true, false] {
        for size in SIZES {
            let mut buffer = rank.buffer(&vec![1.0f32; size / 4], in_arena);
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
            let speed = |seconds: f64| size as f64 / seconds / 1e9;
            println!(
                "{} {size:>10} B: best {:.2} GB/s, median {:.2} GB/s, {:.1} us",
                if in_arena { "arena" } else { "heap " },
                speed(seconds[0]),
                speed(seconds[seconds.len() / 2]),
                seconds[seconds.len() / 2] * 1e6
            );
        }
    }
}
