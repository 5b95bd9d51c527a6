use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use firebrand::collective::{Backend, Buffer, DType, ProcessGroup, ReduceOp};
use firebrand::launch::{JoinOptions, Requested, Session, detect, environment_variable};

/// How long one size is measured.
const BUDGET: Duration = Duration::from_millis(300);
/// In how many windows.
const NUM_WINDOWS: u64 = 5;

/// Joins the other ranks and measures the sizes that the first one reads from its input, a number of bytes in each line. It answers
/// with the seconds that one all-reduce took in each window.
pub(crate) fn serve(backend: Backend, ranks: usize) -> Result<()> {
    let requested = Requested {
        devices: Some(ranks),
        num_nodes: None,
    };
    let launch = detect(&requested, &environment_variable)?;
    let options = JoinOptions {
        backend,
        ..JoinOptions::default()
    };
    let session = Session::join(&launch, options)?.context("an all-reduce takes several ranks")?;
    let group = session.group().as_ref();
    if group.rank() > 0 {
        while let Some(size) = told(group, 0)?.checked_sub(1) {
            measure(group, size)?;
        }
        return Ok(());
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let size: u64 = line
            .trim()
            .parse()
            .with_context(|| format!("'{line}' is no number of bytes"))?;
        told(group, size + 1)?;
        println!("{}", serde_json::to_string(&measure(group, size)?)?);
    }
    told(group, 0)?;
    Ok(())
}

/// The number that the first rank has.
fn told(group: &dyn ProcessGroup, number: u64) -> Result<u64> {
    let told = group.broadcast(Buffer::from_slice(&[number]), 0).wait()?;
    Ok(told.as_slice::<u64>()?[0])
}

/// Sums buffers of so many bytes, and returns the seconds of one all-reduce in each window.
fn measure(group: &dyn ProcessGroup, size: u64) -> Result<Vec<f64>> {
    let len = usize::try_from(size)? / DType::F32.size();
    let mut buffer = group.allocate(DType::F32, len)?;
    buffer.as_mut_slice::<f32>()?.fill((group.rank() + 1) as f32);
    buffer = sum(group, buffer)?;
    let expected = (group.size() * (group.size() + 1) / 2) as f32;
    ensure!(
        buffer.as_slice::<f32>()?.iter().all(|sum| *sum == expected),
        "the sum over {} ranks is wrong: every element should be {expected}",
        group.size()
    );
    // Zeros stay what they are, however often they are summed.
    buffer.as_mut_slice::<f32>()?.fill(0.0);

    // The first meet memory and connections that are not warm.
    let mut seconds = 0.0;
    for _ in 0..3 {
        let start = Instant::now();
        buffer = sum(group, buffer)?;
        seconds = start.elapsed().as_secs_f64();
    }
    let possible = (BUDGET.as_secs_f64() / seconds) as u64;
    let possible = told(group, possible.clamp(2, 100_000))?;
    let num_windows = possible.min(NUM_WINDOWS);
    let repeats = possible / num_windows;
    let mut windows = Vec::new();
    for _ in 0..num_windows {
        group.barrier().wait()?;
        let start = Instant::now();
        for _ in 0..repeats {
            buffer = sum(group, buffer)?;
        }
        windows.push(start.elapsed().as_secs_f64() / repeats as f64);
    }
    Ok(windows)
}

fn sum(group: &dyn ProcessGroup, buffer: Buffer) -> Result<Buffer> {
    Ok(group.all_reduce(buffer, ReduceOp::Sum).wait()?)
}
