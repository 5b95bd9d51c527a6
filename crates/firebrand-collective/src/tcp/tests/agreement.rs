use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::reduce_into;

/// What a rank has, from a seed.
fn buffer(dtype: DType, len: usize, op: ReduceOp, seed: u64) -> Buffer {
    let mut numbers = Numbers::new(seed);
    let mut float = || {
        let unit = (numbers.next() >> 40) as f64 / (1u64 << 24) as f64;
        // Products stay within the range of 16-bit floats.
        if op == ReduceOp::Product {
            0.7 + 0.6 * unit
        } else {
            200.0 * unit - 100.0
        }
    };
    match dtype {
        DType::F64 => Buffer::from_slice(&(0..len).map(|_| float()).collect::<Vec<f64>>()),
        DType::F32 => Buffer::from_slice(&(0..len).map(|_| float() as f32).collect::<Vec<f32>>()),
        DType::F16 => Buffer::from_slice(&(0..len).map(|_| f16::from_f64(float())).collect::<Vec<f16>>()),
        DType::BF16 => Buffer::from_slice(&(0..len).map(|_| bf16::from_f64(float())).collect::<Vec<bf16>>()),
        _ => {
            let mut buffer = Buffer::zeros(dtype, len);
            for byte in buffer.bytes_mut() {
                *byte = (numbers.next() >> 32) as u8;
            }
            buffer
        }
    }
}

/// The elements of floats, and how far apart two neighbours near 1 are.
fn floats(bytes: &[u8], dtype: DType) -> Option<(Vec<f64>, f64)> {
    fn all<E: crate::Element>(bytes: &[u8], wide: fn(E) -> f64) -> Vec<f64> {
        let elements: &[E] = bytemuck::cast_slice(bytes);
        elements.iter().map(|element| wide(*element)).collect()
    }
    match dtype {
        DType::F64 => Some((all::<f64>(bytes, |value| value), f64::EPSILON)),
        DType::F32 => Some((all::<f32>(bytes, f64::from), f64::from(f32::EPSILON))),
        DType::F16 => Some((all::<f16>(bytes, f64::from), f16::EPSILON.to_f64())),
        DType::BF16 => Some((all::<bf16>(bytes, f64::from), bf16::EPSILON.to_f64())),
        _ => None,
    }
}

/// Compares a result with what one rank alone would compute. A 16-bit float may be rounded once, not once per rank.
fn check_reduced(found: &[u8], parts: &[&[u8]], dtype: DType, op: ReduceOp) {
    let mut expected = Buffer::zeros(DType::U8, found.len());
    expected.bytes_mut().copy_from_slice(parts[0]);
    reduce_into(expected.bytes_mut(), 0, &parts[1..], dtype, op).unwrap();
    let is_exact = matches!(op, ReduceOp::Min | ReduceOp::Max);
    let Some((found_values, epsilon)) = floats(found, dtype).filter(|_| !is_exact) else {
        assert!(found == expected.bytes(), "{dtype} {op}");
        return;
    };
    let parts: Vec<Vec<f64>> = parts.iter().map(|part| floats(part, dtype).unwrap().0).collect();
    let count = parts.len() as f64;
    let partial_epsilon = if dtype == DType::F64 {
        f64::EPSILON
    } else {
        f64::from(f32::EPSILON)
    };
    for (index, found) in found_values.iter().enumerate() {
        let values = || parts.iter().map(|part| part[index]);
        let magnitude: f64 = values().map(f64::abs).sum();
        let (exact, magnitude) = match op {
            ReduceOp::Product => (values().product::<f64>(), values().product()),
            ReduceOp::Mean => (values().sum::<f64>() / count, magnitude / count),
            _ => (values().sum::<f64>(), magnitude),
        };
        let tolerance = exact.abs() * epsilon / 2.0 * 1.01 + 2.0 * count * partial_epsilon * magnitude;
        let tolerance = tolerance.max(1e-7);
        assert!(
            (found - exact).abs() <= tolerance,
            "{dtype} {op} [{index}]: {found}, not {exact}"
        );
    }
}

#[derive(Clone, Debug)]
struct Case {
    ranks: usize,
    len: usize,
    dtype: DType,
    op: ReduceOp,
    root: usize,
    seed: u64,
}

/// Does every operation once and the all-reduce twice, and compares.
fn check(case: &Case) {
    let Case {
        ranks,
        len,
        dtype,
        op,
        root,
        seed,
    } = *case;
    let divisible = len - len % ranks;
    let own = |rank: usize, len| buffer(dtype, len, op, seed + 7 * rank as u64);
    let results = as_ranks(contexts(ranks), |context| {
        let number = context.rank;
        let mut numbers = Numbers::new(seed ^ number as u64);
        let mut rank = Rank::connect(context).unwrap();
        let mut run = |operation, len| {
            std::thread::sleep(Duration::from_micros(numbers.below(3000) as u64));
            rank.run(operation, own(number, len)).unwrap()
        };
        [
            run(Operation::AllReduce(op), len),
            run(Operation::Barrier, 0),
            run(Operation::ReduceScatter(op), divisible),
            run(Operation::Broadcast { root }, len),
            run(Operation::AllGather, len),
            run(Operation::AllReduce(op), len),
        ]
    });
    let all: Vec<Buffer> = (0..ranks).map(|rank| own(rank, len)).collect();
    let parts: Vec<&[u8]> = all.iter().map(Buffer::bytes).collect();
    let gathered = parts.concat();
    for (rank, [reduced, _, scattered, broadcast, gather, again]) in results.iter().enumerate() {
        assert!(reduced.bytes() == results[0][0].bytes(), "rank {rank} differs");
        assert!(
            reduced.bytes() == again.bytes(),
            "rank {rank} is not deterministic"
        );
        assert_eq!((broadcast.len(), broadcast.dtype()), (len, dtype));
        assert!(broadcast.bytes() == parts[root]);
        assert_eq!((gather.len(), gather.dtype()), (len * ranks, dtype));
        assert!(gather.bytes() == gathered);
        assert_eq!((scattered.len(), scattered.dtype()), (divisible / ranks, dtype));
        let shares: Vec<Buffer> = (0..ranks)
            .map(|other| share(&own(other, divisible), rank, scattered.size()))
            .collect();
        let shares: Vec<&[u8]> = shares.iter().map(Buffer::bytes).collect();
        check_reduced(scattered.bytes(), &shares, dtype, op);
    }
    check_reduced(results[0][0].bytes(), &parts, dtype, op);
}

/// The bytes of one rank's part, aligned.
fn share(buffer: &Buffer, rank: usize, size: usize) -> Buffer {
    Buffer::from_slice(&buffer.bytes()[rank * size..][..size])
}

fn cases() -> impl Strategy<Value = Case> {
    let len = prop_oneof![0usize..40, 0usize..5000, 20_000usize..80_000];
    let index = any::<prop::sample::Index>;
    (1usize..=9, len, index(), index(), index(), any::<u32>()).prop_filter_map(
        "a mean of integers",
        |(ranks, len, dtype, op, root, seed)| {
            let case = Case {
                ranks,
                len,
                dtype: *dtype.get(&DType::ALL),
                op: *op.get(&ReduceOp::ALL),
                root: root.index(ranks),
                seed: u64::from(seed),
            };
            case.op.check(case.dtype).is_ok().then_some(case)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_has_the_result_of_one_rank_alone(case in cases()) {
        check(&case);
    }
}

/// Each way in which elements travel, in one part and in several, for each type of which sums are kept differently.
#[test]
fn rings_of_all_float_types() {
    for (ranks, len) in [(2, 850_001), (3, 850_001), (8, 150_001)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                check(&Case {
                    ranks,
                    len,
                    dtype,
                    op,
                    root: ranks - 1,
                    seed: 3,
                });
            }
        }
    }
}

/// The bits of a not-a-number depend on the order of the operands.
#[test]
fn not_a_number_has_the_same_bits_everywhere() {
    for len in [10, 200_000] {
        let results = as_ranks(contexts(3), |context| {
            let bits = 0x7fc0_0000 + context.rank as u32;
            let mut rank = Rank::connect(context).unwrap();
            let sum = rank.sum(&vec![f32::from_bits(bits); len]).unwrap();
            assert!(sum.iter().all(|value| value.is_nan()));
            sum.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
        });
        assert!(results.iter().all(|result| *result == results[0]));
    }
}

/// One that leaves at once has given all it had to give.
#[test]
fn who_leaves_after_the_last_operation_harms_nobody() {
    for ranks in [2, 3, 5] {
        for len in [1, 1 << 20] {
            as_ranks(contexts(ranks), |context| {
                let number = context.rank;
                let mut rank = Rank::connect(context).unwrap();
                // The others come late to the last operation, and are slow.
                for _ in 0..2 {
                    std::thread::sleep(Duration::from_millis(10 * number as u64));
                    let sum = rank.sum(&vec![1.0; len]).unwrap();
                    assert_eq!(sum[len - 1], ranks as f32);
                }
            });
        }
    }
}
