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
    /// Whether its one gradient is reduced where it lies.
    pub in_place: bool,
}

impl BucketPlan {
    fn of_one(gradient: usize, len: usize) -> Self {
        Self {
            members: vec![Member {
                gradient,
                offset: 0,
                len,
            }],
            len,
            in_place: true,
        }
    }
}

/// How large buckets are, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The first, so that communication starts early.
    pub first: usize,
    /// Each of the others.
    pub others: usize,
    /// A gradient of at least this has a bucket of its own, and is not copied into it.
    pub in_place: usize,
}

/// Gradients begin at multiples of so many elements: 64 bytes for the smallest type.
const ALIGN: usize = 32;

/// Divides gradients among buckets in an order, that of their completion: a bucket stands where its last gradient does. Small
/// gradients go on filling a bucket while large ones pass.
pub(super) fn divide(
    order: &[usize],
    specs: &[GradientSpec],
    element: usize,
    sizes: Sizes,
) -> Vec<BucketPlan> {
    // Each with the place of its last gradient in the order.
    let mut plans: Vec<(usize, BucketPlan)> = Vec::new();
    let (mut current, mut end) = (BucketPlan::default(), 0);
    let mut limit = sizes.first;
    for (place, gradient) in order.iter().copied().enumerate() {
        let Some(spec) = specs.get(gradient) else { continue };
        let len = spec.shape.num_elements();
        if len > 0 && len * element >= sizes.in_place {
            plans.push((place, BucketPlan::of_one(gradient, len)));
            continue;
        }
        if !current.members.is_empty() && (current.len + len) * element > limit {
            plans.push((end, std::mem::take(&mut current)));
            limit = sizes.others;
        }
        current.members.push(Member {
            gradient,
            offset: current.len,
            len,
        });
        current.len += len.next_multiple_of(ALIGN);
        end = place;
    }
    if !current.members.is_empty() {
        plans.push((end, current));
    }
    plans.sort_by_key(|(end, _)| *end);
    plans.into_iter().map(|(_, plan)| plan).collect()
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
    fn the_first_bucket_is_small_and_large_gradients_are_alone() {
        let sizes = Sizes {
            first: 256,
            others: 1024,
            in_place: 4000,
        };
        let plans = divide(
            &[5, 4, 3, 2, 1, 0],
            &specs(&[10, 64, 1000, 64, 600, 64]),
            4,
            sizes,
        );
        let members: Vec<Vec<usize>> = plans
            .iter()
            .map(|plan| plan.members.iter().map(|member| member.gradient).collect())
            .collect();
        assert_eq!(members, [vec![5], vec![4], vec![2], vec![3, 1, 0]]);
        let in_place: Vec<bool> = plans.iter().map(|plan| plan.in_place).collect();
        assert_eq!(in_place, [false, false, true, false]);
        assert_eq!((plans[2].len, plans[3].len), (1000, 64 + 64 + 32));
    }

    proptest! {
        #[test]
        fn every_gradient_is_in_one_bucket_and_none_overlap(
            lens in prop::collection::vec(0usize..500, 1..40),
            first in 1usize..2000, others in 1usize..4000, in_place in 1usize..2500
        ) {
            let order: Vec<usize> = (0..lens.len()).rev().collect();
            let plans = divide(&order, &specs(&lens), 4, Sizes { first, others, in_place });
            let found = |in_place: bool| -> Vec<usize> {
                plans
                    .iter()
                    .filter(|plan| plan.in_place == in_place)
                    .flat_map(|plan| plan.members.iter().map(|member| member.gradient))
                    .collect()
            };
            let is_large = |gradient: &usize| lens[*gradient] * 4 >= in_place && lens[*gradient] > 0;
            let (large, small): (Vec<usize>, Vec<usize>) = order.iter().partition(|gradient| is_large(gradient));
            prop_assert_eq!(found(true), large);
            prop_assert_eq!(found(false), small);
            let end = |plan: &BucketPlan| plan.members.iter().map(|member| lens.len() - member.gradient).max();
            prop_assert!(plans.is_sorted_by_key(end));
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
