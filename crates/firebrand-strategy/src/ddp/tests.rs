//! Ranks as threads, which push gradients by hand.
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::{Device, FloatDType, Shape, Tensor};
use firebrand_collective::{Backend, GroupContext, Health, MemoryStore, ProcessGroup, Store, connect};
use firebrand_core::AnyTensor;
use proptest::prelude::*;

use super::reducer::Reducer;
use super::{DdpOptions, GradientCompression};
use crate::{GradientSink, GradientSpec, GradientSpecs, Reduced, Share};

/// The shapes of the parameters: vectors and matrices, of a few and of many elements.
const SHAPES: [&[usize]; 5] = [&[3], &[40, 5], &[1], &[7, 64], &[1000]];

/// How a gradient reaches the reducer.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// As the only handle of its memory.
    Unique,
    /// Somebody else has a handle of its memory, and must not see it change.
    Shared,
    /// Its elements do not lie in the order of its shape.
    Transposed,
}

/// What every rank does in an update.
#[derive(Clone, Debug)]
struct Plan {
    ranks: usize,
    micro_batches: usize,
    form: Form,
    options: DdpOptions,
    /// The parameter that only rank 0 uses.
    unused: Option<usize>,
}

/// Small whole numbers, whose sums are exact in every type on the wire.
fn value(rank: usize, micro_batch: usize, parameter: usize, element: usize) -> f32 {
    ((rank * 3 + micro_batch * 5 + parameter * 7 + element) % 11) as f32
}

fn specs() -> GradientSpecs {
    let spec = |(parameter, shape): (usize, &&[usize])| GradientSpec {
        parameter,
        path: format!("p{parameter}"),
        shape: Shape::from(shape.to_vec()),
        uses: 1,
    };
    GradientSpecs {
        parameters: SHAPES.iter().enumerate().map(spec).collect(),
        dtype: FloatDType::F32,
        device: Device::flex(),
    }
}

fn group(store: Arc<dyn Store>, rank: usize, ranks: usize) -> Arc<dyn ProcessGroup> {
    let context = GroupContext {
        store,
        rank,
        global_ranks: (0..ranks).collect(),
        health: Arc::new(Health::new()),
        address: Ipv4Addr::LOCALHOST.into(),
        secret: Arc::from(&b"secret"[..]),
        timeout: Duration::from_secs(60),
    };
    connect(context, Backend::Shm).unwrap()
}

/// Calls a function on threads that stand for ranks; what each returned.
fn on_ranks<R: Send>(ranks: usize, function: impl Fn(Arc<dyn ProcessGroup>) -> R + Sync) -> Vec<R> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let (store, function) = (Arc::clone(&store), &function);
                scope.spawn(move || function(group(store, rank, ranks)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A gradient of these elements in a form, and what else holds on to it.
fn gradient(shape: &[usize], elements: &[f32], form: Form) -> (AnyTensor, Option<AnyTensor>) {
    let flat = Tensor::<1>::from_floats(elements, &Device::flex());
    let value: AnyTensor = match (shape, form) {
        (&[rows, columns], Form::Transposed) => flat
            .reshape([rows, columns])
            .transpose()
            .mul_scalar(1.0)
            .transpose()
            .into(),
        (&[rows, columns], _) => flat.reshape([rows, columns]).into(),
        _ => flat.into(),
    };
    let other = matches!(form, Form::Shared).then(|| value.clone());
    (value, other)
}

fn elements(value: &AnyTensor) -> Vec<f32> {
    value.clone().into_data().iter::<f32>().collect()
}

/// One update of one rank.
fn update(reducer: &Reducer, rank: usize, plan: &Plan) -> Reduced {
    for micro_batch in 0..plan.micro_batches {
        reducer.begin_backward(micro_batch + 1 == plan.micro_batches);
        for (parameter, shape) in SHAPES.iter().enumerate().rev() {
            if plan.unused == Some(parameter) && rank > 0 {
                continue;
            }
            let len = shape.iter().product();
            let mine: Vec<f32> = (0..len)
                .map(|element| value(rank, micro_batch, parameter, element))
                .collect();
            let (pushed, other) = gradient(shape, &mine, plan.form);
            reducer.push(parameter, pushed);
            if let Some(other) = other {
                assert_eq!(elements(&other), mine);
            }
        }
    }
    reducer
        .finish(Share {
            weight: plan.micro_batches as f64,
            ..Share::default()
        })
        .unwrap()
}

fn expected(plan: &Plan, parameter: usize) -> Vec<f32> {
    let users = if plan.unused == Some(parameter) {
        1
    } else {
        plan.ranks
    };
    let len = SHAPES[parameter].iter().product();
    (0..len)
        .map(|element| {
            (0..users)
                .flat_map(|rank| (0..plan.micro_batches).map(move |micro_batch| (rank, micro_batch)))
                .map(|(rank, micro_batch)| value(rank, micro_batch, parameter, element))
                .sum()
        })
        .collect()
}

fn plans() -> impl Strategy<Value = Plan> {
    let form = prop_oneof![Just(Form::Unique), Just(Form::Shared), Just(Form::Transposed)];
    let compression = prop_oneof![
        Just(None),
        Just(Some(GradientCompression::Bf16)),
        Just(Some(GradientCompression::F16))
    ];
    let sizes = (1usize..5000, 1usize..3000, 1usize..5000);
    let unused = prop::option::of(0..SHAPES.len());
    (1usize..4, 1usize..4, form, compression, sizes, unused).prop_map(
        |(ranks, micro_batches, form, compression, sizes, unused)| Plan {
            ranks,
            micro_batches,
            form,
            options: DdpOptions {
                bucket_bytes: sizes.0,
                first_bucket_bytes: sizes.1,
                in_place_bytes: sizes.2,
                find_unused_parameters: true,
                compression,
            },
            unused,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn gradients_are_summed_whatever_their_form_and_bucket(plan in plans()) {
        let updates = on_ranks(plan.ranks, |group| {
            let rank = group.rank();
            let reducer = Reducer::new(group, plan.options.clone(), specs()).unwrap();
            // The second has the order of arrival; the third meets the memory of the second again.
            (0..3).map(|_| update(&reducer, rank, &plan)).collect::<Vec<_>>()
        });
        for reduced in updates.iter().flatten() {
            prop_assert_eq!(reduced.weight, (plan.ranks * plan.micro_batches) as f64);
            prop_assert_eq!(reduced.gradients.len(), SHAPES.len());
            for gradient in &reduced.gradients {
                let spec = &specs().parameters[gradient.parameter];
                prop_assert_eq!(gradient.value.shape(), spec.shape.clone());
                prop_assert_eq!(elements(&gradient.value), expected(&plan, gradient.parameter));
            }
        }
    }
}

/// The address of the elements of a tensor in host memory.
fn address(value: &AnyTensor) -> usize {
    crate::host::with_elements(value, |_, bytes| bytes.as_ptr().addr())
}

#[test]
fn a_large_gradient_stays_where_it_is() {
    let options = DdpOptions {
        in_place_bytes: 4000,
        ..DdpOptions::default()
    };
    on_ranks(2, |group| {
        let reducer = Reducer::new(group, options.clone(), specs()).unwrap();
        reducer.begin_backward(true);
        let mut large = None;
        for (parameter, shape) in SHAPES.iter().enumerate().rev() {
            let (value, _) = gradient(shape, &vec![1.0; shape.iter().product()], Form::Unique);
            if parameter == 4 {
                large = Some(address(&value));
            }
            reducer.push(parameter, value);
        }
        let reduced = reducer.finish(Share::default()).unwrap();
        let found = &reduced.gradients[4].value;
        assert_eq!(elements(found), [2.0; 1000]);
        assert_eq!(Some(address(found)), large);
    });
}

#[test]
fn what_was_discarded_is_not_in_the_next_update() {
    for in_place_bytes in [1, usize::MAX] {
        let plan = Plan {
            ranks: 2,
            micro_batches: 1,
            form: Form::Unique,
            options: DdpOptions {
                in_place_bytes,
                ..DdpOptions::default()
            },
            unused: None,
        };
        on_ranks(plan.ranks, |group| {
            let rank = group.rank();
            let reducer = Reducer::new(group, plan.options.clone(), specs()).unwrap();
            for last in [false, true] {
                reducer.begin_backward(last);
                for (parameter, shape) in SHAPES.iter().enumerate().rev() {
                    let (value, _) = gradient(shape, &vec![9.0; shape.iter().product()], Form::Unique);
                    reducer.push(parameter, value);
                }
                reducer.discard().unwrap();
            }
            for found in update(&reducer, rank, &plan).gradients {
                assert_eq!(elements(&found.value), expected(&plan, found.parameter));
            }
        });
    }
}

#[test]
fn a_gradient_of_another_size_is_an_error_that_names_it() {
    for in_place_bytes in [1, usize::MAX] {
        let options = DdpOptions {
            in_place_bytes,
            ..DdpOptions::default()
        };
        let errors = on_ranks(1, |group| {
            let reducer = Reducer::new(group, options.clone(), specs()).unwrap();
            reducer.begin_backward(true);
            let (value, _) = gradient(&[4], &[1.0; 4], Form::Unique);
            reducer.push(0, value);
            reducer.finish(Share::default()).unwrap_err().to_string()
        });
        assert!(
            errors[0].contains("'p0'") && errors[0].contains('4'),
            "{}",
            errors[0]
        );
    }
}
