//! Every operation, type and size gives what a reduction in the order of the ranks gives, the same bits on every rank.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;

/// One operation of all ranks.
#[derive(Clone, Debug)]
struct Step {
    operation: Operation,
    dtype: DType,
    /// Elements per rank; those of a `reduce_scatter` are so many times the ranks.
    len: usize,
    /// By rank, which buffers lie in the arena, and which ranks come late.
    arena: u16,
    late: u16,
}

fn step(ranks: usize) -> impl Strategy<Value = Step> {
    let op = || prop::sample::select(&ReduceOp::ALL[..]);
    let operation = prop_oneof![
        4 => op().prop_map(Operation::AllReduce),
        2 => op().prop_map(Operation::ReduceScatter),
        2 => Just(Operation::AllGather),
        2 => (0..ranks).prop_map(|root| Operation::Broadcast { root }),
        1 => Just(Operation::Barrier),
    ];
    let len = prop_oneof![3 => 0usize..70, 3 => 400usize..6000, 1 => 100_000usize..300_000];
    let dtype = prop::sample::select(&DType::ALL[..]);
    (operation, dtype, len, any::<u16>(), any::<u16>())
        .prop_filter(
            "integers have no mean",
            |(operation, dtype, ..)| match operation {
                Operation::AllReduce(op) | Operation::ReduceScatter(op) => op.check(*dtype).is_ok(),
                _ => true,
            },
        )
        .prop_map(move |(operation, dtype, len, arena, late)| {
            let len = match operation {
                Operation::ReduceScatter(_) => len.div_ceil(ranks) * ranks,
                Operation::Barrier => 0,
                _ => len,
            };
            Step {
                operation,
                dtype,
                len,
                arena,
                late,
            }
        })
}

/// What a rank has before a step: numbers that are not exact in any float type.
fn input(step: &Step, number: usize, rank: usize) -> Buffer {
    fn fill<E: Element>(len: usize, seed: usize, element: impl Fn(i64) -> E) -> Buffer {
        let elements: Vec<E> = (0..len)
            .map(|i| element(((i * 31 + seed * 7919) % 2003) as i64 - 1001))
            .collect();
        Buffer::from_slice(&elements)
    }
    let (len, seed) = (step.len, number * 17 + rank + 1);
    match step.dtype {
        DType::F64 => fill(len, seed, |value| value as f64 / 7.0),
        DType::F32 => fill(len, seed, |value| value as f32 / 7.0),
        DType::F16 => fill(len, seed, |value| f16::from_f32(value as f32 / 7.0)),
        DType::BF16 => fill(len, seed, |value| bf16::from_f32(value as f32 / 7.0)),
        DType::I64 => fill(len, seed, |value| value),
        DType::I32 => fill(len, seed, |value| value as i32),
        DType::I8 => fill(len, seed, |value| value as i8),
        DType::U64 => fill(len, seed, |value| value as u64),
        DType::U32 => fill(len, seed, |value| value as u32),
        DType::U8 => fill(len, seed, |value| value as u8),
    }
}

/// What a rank has after a step.
fn expected(step: &Step, number: usize, rank: usize, ranks: usize) -> Vec<u8> {
    let inputs: Vec<Buffer> = (0..ranks).map(|rank| input(step, number, rank)).collect();
    let reduced = |op| {
        let others: Vec<&[u8]> = inputs[1..].iter().map(Buffer::bytes).collect();
        let mut first = input(step, number, 0);
        reduce_into(first.bytes_mut(), 0, &others, step.dtype, op).unwrap();
        first
    };
    match step.operation {
        Operation::AllReduce(op) => reduced(op).bytes().to_vec(),
        Operation::ReduceScatter(op) => {
            let reduced = reduced(op);
            let part = reduced.size() / ranks;
            reduced.bytes()[rank * part..(rank + 1) * part].to_vec()
        }
        Operation::AllGather => inputs.iter().flat_map(Buffer::bytes).copied().collect(),
        Operation::Broadcast { root } => inputs[root].bytes().to_vec(),
        Operation::Barrier => Vec::new(),
    }
}

/// All ranks take all steps; what each had after each.
fn take(steps: &[Step], ranks: usize) -> Vec<Vec<Buffer>> {
    with_ranks(ranks, PATIENT, |mut rank| {
        steps
            .iter()
            .enumerate()
            .map(|(number, step)| {
                let plain = input(step, number, rank.rank);
                let buffer = if step.arena >> rank.rank & 1 == 1 {
                    let mut buffer = rank.arena.allocate(step.dtype, step.len).unwrap();
                    buffer.bytes_mut().copy_from_slice(plain.bytes());
                    buffer
                } else {
                    plain
                };
                if step.late >> rank.rank & 1 == 1 {
                    std::thread::sleep(Duration::from_micros(u64::from(step.late) % 2000));
                }
                rank.run(step.operation, buffer).unwrap()
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations(
        (ranks, steps) in (1usize..=9).prop_flat_map(|ranks| (Just(ranks), prop::collection::vec(step(ranks), 1..8)))
    ) {
        let found = take(&steps, ranks);
        for (number, step) in steps.iter().enumerate() {
            for (rank, found) in found.iter().enumerate() {
                let buffer = &found[number];
                prop_assert_eq!(buffer.dtype(), step.dtype);
                prop_assert!(
                    buffer.bytes() == expected(step, number, rank, ranks),
                    "rank {} of {}, step {} {:?}", rank, ranks, number, step
                );
            }
        }
    }
}

#[test]
fn sums_are_those_of_a_plain_loop_at_sizes_around_every_border() {
    let borders = [
        0,
        1,
        INLINE / 4,
        5000,
        exchange::slot_size(3) / 4,
        exchange::SLOTS * exchange::slot_size(3) / 4,
    ];
    let sizes: Vec<usize> = borders
        .iter()
        .flat_map(|border| [border.saturating_sub(1), *border, border + 1, border + 17])
        .collect();
    let value = |rank: usize, i: usize| ((i % 1000) as f32 + 0.1) * (rank as f32 + 0.7);
    with_ranks(3, PATIENT, |mut rank| {
        for (round, &size) in sizes.iter().enumerate() {
            let own: Vec<f32> = (0..size).map(|i| value(rank.rank, i)).collect();
            let buffer = rank.buffer(&own, (round + rank.rank) % 2 == 0);
            let found = rank.run(Operation::AllReduce(ReduceOp::Sum), buffer).unwrap();
            let expected = (0..size).map(|i| value(0, i) + value(1, i) + value(2, i));
            assert!(
                found.as_slice::<f32>().unwrap().iter().copied().eq(expected),
                "{size} elements"
            );
        }
    });
}

#[test]
fn the_bits_of_not_a_number_are_the_same_on_all_ranks() {
    for len in [100, 100_000] {
        let found = with_ranks(2, PATIENT, |mut rank| {
            let own = vec![f32::from_bits(0x7fc0_0001 + rank.rank as u32); len];
            let buffer = rank.buffer(&own, true);
            let found = rank.run(Operation::AllReduce(ReduceOp::Sum), buffer).unwrap();
            found.bytes().to_vec()
        });
        assert!(found[0] == found[1]);
    }
}

#[test]
fn all_reduce_and_broadcast_give_back_the_buffer_itself() {
    with_ranks(2, PATIENT, |mut rank| {
        for operation in [
            Operation::AllReduce(ReduceOp::Mean),
            Operation::Broadcast { root: 1 },
        ] {
            for (len, in_arena) in [(10, true), (10, false), (1 << 20, true), (1 << 20, false)] {
                let buffer = rank.buffer(&vec![rank.rank as f32; len], in_arena);
                let at = buffer.bytes().as_ptr();
                let found = rank.run(operation, buffer).unwrap();
                assert_eq!(found.bytes().as_ptr(), at);
                let value = if operation == (Operation::Broadcast { root: 1 }) {
                    1.0
                } else {
                    0.5
                };
                assert!(
                    found
                        .as_slice::<f32>()
                        .unwrap()
                        .iter()
                        .all(|found| *found == value)
                );
            }
        }
    });
}

#[test]
fn memory_of_another_group_is_ordinary_memory() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let alone = Rank::new(&context(&store, 0, 1, PATIENT)).unwrap();
    let other = std::sync::Mutex::new(alone);
    with_ranks(2, PATIENT, |mut rank| {
        let buffer = other.lock().unwrap().buffer(&vec![1.0f32; 50_000], true);
        let found = rank.run(Operation::AllReduce(ReduceOp::Sum), buffer).unwrap();
        assert!(found.as_slice::<f32>().unwrap().iter().all(|found| *found == 2.0));
    });
}

#[test]
fn more_ranks_than_cores_do_not_collapse() {
    let ranks = 3 * std::thread::available_parallelism().map_or(1, usize::from);
    let start = std::time::Instant::now();
    with_ranks(ranks.min(24), PATIENT, |mut rank| {
        for round in 0..300 {
            let len = if round % 30 == 0 { 300_000 } else { 200 };
            let buffer = rank.buffer(&vec![1.0f32; len], true);
            let found = rank.run(Operation::AllReduce(ReduceOp::Sum), buffer).unwrap();
            assert_eq!(found.as_slice::<f32>().unwrap()[len - 1], rank.ranks as f32);
        }
    });
    // It takes a tenth of a second; spinning ranks would take a time slice per wait: minutes.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
