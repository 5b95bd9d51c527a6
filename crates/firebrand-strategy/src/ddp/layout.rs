use crate::GradientSpec;

/// Where a gradient lies in a bucket, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The position of the gradient in the specification.
    pub gradient: usize,
    pub offset: usize,
    pub len: usize,
}

impl Member {
    /// Where its bytes lie, with elements of so many bytes.
    pub(super) fn bytes(self, element: usize) -> std::ops::Range<usize> {
        self.offset * element..(self.offset + self.len) * element
    }
}

/// The gradients of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BucketPlan {
    pub members: Vec<Member>,
    /// The number of elements, with the gaps that keep each gradient aligned.
    pub len: usize,
}

/// Gradients begin at multiples of so many elements: 64 bytes for the smallest type.
const ALIGN: usize = 32;

/// Divides gradients among buckets in an order: `first_bytes` go into the first, so that communication starts early, and `bytes`
/// into each of the others; a gradient that is larger has one of its own.
pub(super) fn divide(
    order: &[usize],
    specs: &[GradientSpec],
    element: usize,
    first_bytes: usize,
    bytes: usize,
) -> Vec<BucketPlan> {
    let mut plans: Vec<BucketPlan> = Vec::new();
    let mut current = BucketPlan::default();
    for gradient in order.iter().copied() {
        let Some(spec) = specs.get(gradient) else { continue };
        let len = spec.shape.num_elements();
        let limit = if plans.is_empty() { first_bytes } else { bytes };
        if !current.members.is_empty() && (current.len + len) * element > limit {
            plans.push(std::mem::take(&mut current));
        }
        current.members.push(Member {
            gradient,
            offset: current.len,
            len,
        });
        current.len += len.next_multiple_of(ALIGN);
    }
    if !current.members.is_empty() {
        plans.push(current);
    }
    plans
}

#[cfg(test)]
mod tests {
    use burn::tensor::Shape;
    use proptest::prelude::*;

    use super::*;

    fn specs(lens: &[usize]) -> Vec<GradientSpec> {
        let spec = |(parameter, len): (usize, &usize)| GradientSpec {
            parameter,
            path: format!("p{parameter}"),
            shape: Shape::new([*len]),
            uses: 1,
        };
        lens.iter().enumerate().map(spec).collect()
    }

    #[test]
    fn the_first_bucket_is_small_and_a_large_gradient_is_alone() {
        let plans = divide(&[3, 2, 1, 0], &specs(&[10, 1000, 64, 64]), 4, 256, 1024);
        let members: Vec<Vec<usize>> = plans
            .iter()
            .map(|plan| plan.members.iter().map(|member| member.gradient).collect())
            .collect();
        assert_eq!(members, [vec![3], vec![2], vec![1], vec![0]]);
        assert_eq!(plans[3].len, 32);
    }

    proptest! {
        #[test]
        fn every_gradient_is_in_one_bucket_and_none_overlap(
            lens in prop::collection::vec(0usize..500, 1..40), first in 1usize..2000, bytes in 1usize..4000
        ) {
            let order: Vec<usize> = (0..lens.len()).rev().collect();
            let plans = divide(&order, &specs(&lens), 4, first, bytes);
            let found: Vec<usize> = plans
                .iter()
                .flat_map(|plan| plan.members.iter().map(|member| member.gradient))
                .collect();
            prop_assert_eq!(found, order);
            for plan in &plans {
                let mut end = 0;
                for member in &plan.members {
                    prop_assert!(member.offset >= end && member.offset % ALIGN == 0);
                    prop_assert_eq!(member.len, lens[member.gradient]);
                    end = member.offset + member.len;
                }
                prop_assert!(end <= plan.len);
            }
        }
    }
}
