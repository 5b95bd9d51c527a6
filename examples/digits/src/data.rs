//! Batches of digits, and the loaders that give them.

use burn::tensor::{Device, Int, Tensor, TensorData};
use firebrand::data::{SampleRng, Samples};
use firebrand::prelude::*;

use crate::dataset::{Digit, DigitSplits, NUM_PIXELS, SIDE};
use crate::settings::{Architecture, Settings};

/// Images and the digits that they show.
#[derive(Batch, Clone, Debug)]
pub struct DigitBatch {
    /// `[samples, 64]`, from 0 (white) to 1 (black).
    pub images: Tensor<2>,
    /// `[samples]`, from 0 to 9.
    pub labels: Tensor<1, Int>,
}

/// The loaders of the training, validation and test data.
pub fn loaders(settings: &Settings) -> Result<Data<DigitBatch>> {
    let splits = DigitSplits::load()?;
    let mut train = Samples::new(splits.train);
    if settings.model == Architecture::Conv {
        train = train.map(|digit, rng| Ok(shifted(digit, rng)));
    }
    Ok(Data::new()
        .train(
            DataLoader::from_fn(train, collate)
                .batch_size(settings.batch_size)
                .shuffle(true),
        )
        .validation(DataLoader::from_fn(splits.val, collate).batch_size(128))
        .test(DataLoader::from_fn(splits.test, collate).batch_size(128)))
}

fn collate(digits: Vec<Digit>, device: &Device) -> Result<DigitBatch> {
    let num_samples = digits.len();
    let pixels: Vec<f32> = digits.iter().flat_map(|digit| digit.pixels).collect();
    let labels: Vec<i32> = digits.iter().map(|digit| i32::from(digit.label)).collect();
    Ok(DigitBatch {
        images: Tensor::from_data(TensorData::new(pixels, [num_samples, NUM_PIXELS]), device),
        labels: Tensor::from_data(TensorData::new(labels, [num_samples]), device),
    })
}

/// The image moved by up to one pixel to each side; white comes in at the border.
///
/// The generator belongs to the sample and the epoch, so a run that is repeated or resumed sees the same images.
fn shifted(digit: Digit, rng: &mut SampleRng) -> Digit {
    let (down, right) = (rng.below(3), rng.below(3));
    let mut pixels = [0.0; NUM_PIXELS];
    for row in 0..SIDE {
        for column in 0..SIDE {
            let (to_row, to_column) = (row + down, column + right);
            // One more than the place, so that it stays a `usize`.
            if (1..=SIDE).contains(&to_row) && (1..=SIDE).contains(&to_column) {
                pixels[(to_row - 1) * SIDE + to_column - 1] = digit.pixels[row * SIDE + column];
            }
        }
    }
    Digit { pixels, ..digit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digit() -> Digit {
        let mut pixels = [0.0; NUM_PIXELS];
        pixels
            .iter_mut()
            .enumerate()
            .for_each(|(place, pixel)| *pixel = place as f32);
        Digit { pixels, label: 3 }
    }

    #[test]
    fn a_batch_has_one_row_per_image() {
        let device = Device::flex();
        let batch = collate(vec![digit(), Digit { label: 9, ..digit() }], &device).unwrap();
        assert_eq!(batch.images.dims(), [2, NUM_PIXELS]);
        assert_eq!(batch.images.slice([1..2, 7..8]).into_scalar::<f32>(), 7.0);
        assert_eq!(batch.labels.into_data().iter::<i64>().collect::<Vec<_>>(), [3, 9]);
    }

    #[test]
    fn an_image_moves_by_at_most_one_pixel_and_the_same_way_again() {
        // Where the pixel of row 3, column 4 went.
        let place = |epoch| {
            let moved = shifted(digit(), &mut SampleRng::new(1, epoch, 0));
            assert_eq!(moved, shifted(digit(), &mut SampleRng::new(1, epoch, 0)));
            let place = moved.pixels.iter().position(|pixel| *pixel == 28.0).unwrap();
            (place / SIDE, place % SIDE)
        };
        let mut places: Vec<_> = (0..200).map(place).collect();
        places.sort();
        places.dedup();
        let expected: Vec<_> = (2..=4)
            .flat_map(|row| (3..=5).map(move |column| (row, column)))
            .collect();
        assert_eq!(places, expected);
    }
}
