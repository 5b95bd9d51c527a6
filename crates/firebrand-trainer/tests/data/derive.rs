use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use firebrand_core::{AnyBatch, Batch, Error};
use firebrand_derive::Batch;

#[derive(Batch, Clone, Debug)]
#[batch(crate = "firebrand_core")]
struct Digits {
    images: Tensor<2>,
    labels: Tensor<1, Int>,
    names: Vec<String>,
    #[batch(shared)]
    class_weights: Tensor<1>,
    #[batch(skip)]
    file: String,
}

fn digits(num_samples: usize, num_labels: usize) -> Digits {
    let device = Device::flex();
    Digits {
        images: Tensor::<1>::ones([num_samples * 4], &device).reshape([num_samples, 4]),
        labels: Tensor::arange(0..num_labels as i64, &device),
        names: (0..num_samples).map(|n| n.to_string()).collect(),
        class_weights: Tensor::ones([10], &device),
        file: "digits.csv".to_owned(),
    }
}

#[test]
fn a_struct_is_counted_and_split_by_its_samples() {
    let batch = digits(6, 6);
    assert_eq!((batch.len(), batch.is_empty()), (6, false));
    batch.check().unwrap();
    let part = batch.slice(2..5);
    assert_eq!((part.len(), part.images.dims()), (3, [3, 4]));
    assert_eq!(part.labels.dims(), [3]);
    assert_eq!(part.labels.clone().min().into_scalar::<i64>(), 2);
    assert_eq!(part.names, ["2", "3", "4"]);
    assert_eq!(part.class_weights.dims(), [10]);
    assert_eq!(part.file, "digits.csv");
    let erased = AnyBatch::new(batch).slice(0..2).downcast::<Digits>().unwrap();
    assert_eq!(erased.len(), 2);
}

#[test]
fn a_struct_is_moved_and_cast_with_all_its_tensors() {
    let batch = digits(2, 2).to_device(&Device::flex().autodiff());
    assert!(batch.images.device().is_autodiff() && batch.labels.device().is_autodiff());
    assert!(batch.class_weights.device().is_autodiff());
    let batch = batch.to_dtype(FloatDType::F64);
    assert_eq!(
        (batch.images.dtype(), batch.class_weights.dtype()),
        (DType::F64, DType::F64)
    );
    assert_eq!(batch.labels.dtype(), digits(2, 2).labels.dtype());
}

#[test]
fn a_field_that_disagrees_is_named() {
    let error = digits(4, 3).check().unwrap_err();
    assert!(
        matches!(
            error,
            Error::BatchLength {
                field: "labels",
                expected: 4,
                found: 3
            }
        ),
        "{error}"
    );
}

#[derive(Batch, Clone)]
#[batch(crate = "firebrand_core")]
struct Pair<A, B>(#[batch(shared)] B, A, Vec<A>)
where
    A: PartialEq;

#[derive(Batch, Clone)]
#[batch(crate = "firebrand_core")]
struct Images<const D: usize, T> {
    images: Tensor<D>,
    #[batch(skip)]
    tag: T,
}

#[derive(Clone, Debug, PartialEq)]
struct Tag(u8);

#[test]
fn tuples_and_generics_are_batches() {
    let pair = Pair(vec![1.0, 2.0], vec!["a", "b", "c"], vec![vec!["x"]; 3]);
    assert_eq!(pair.len(), 3);
    pair.check().unwrap();
    let part = pair.slice(1..2);
    assert_eq!((part.0, part.1, part.2.len()), (vec![1.0, 2.0], vec!["b"], 1));
    let images = Images {
        images: Tensor::<3>::zeros([5, 2, 2], &Device::flex()),
        tag: Tag(7),
    };
    let part = images
        .slice(0..2)
        .to_device(&Device::flex())
        .to_dtype(FloatDType::F64);
    assert_eq!((part.images.dims(), part.tag), ([2, 2, 2], Tag(7)));
    // A batch within a batch: the nested field is the one that is named.
    let nested = (vec![0_u8; 3], Pair(vec![0_u8], vec![1, 2, 3], vec![vec![1]; 2]));
    assert!(matches!(
        nested.check(),
        Err(Error::BatchLength { field: "2", .. })
    ));
}

macro_rules! batch_of {
    ($name:ident { $($field:ident: $ty:ty),+ }) => {
        #[derive(Batch, Clone)]
        #[batch(crate = "firebrand_core")]
        struct $name {
            $($field: $ty,)+
        }
    };
}

batch_of!(Generated { first: Vec<u8>, second: Vec<u16> });

#[test]
fn a_struct_that_a_macro_wrote_is_a_batch() {
    let batch = Generated {
        first: vec![1, 2],
        second: vec![3],
    };
    assert_eq!(batch.slice(0..1).second.len(), 1);
    assert!(matches!(
        batch.check(),
        Err(Error::BatchLength { field: "second", .. })
    ));
}
