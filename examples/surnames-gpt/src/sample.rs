//! Names that the network makes up.

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use firebrand::Result;
use firebrand::data::SampleRng;

use crate::data::MAX_PLACES;
use crate::gpt::Gpt;
use crate::surnames::{BOUNDARY, NUM_TOKENS};

/// Draws names letter by letter, all of them side by side. The same network, temperature and seed give the same names.
///
/// A name has at least one letter, and ends where the longest of the data does.
///
/// # Errors
///
/// If the logits are not finite.
pub fn names(gpt: &Gpt, count: usize, temperature: f64, seed: u64, device: &Device) -> Result<Vec<Vec<u8>>> {
    let mut generators: Vec<SampleRng> = (0..count).map(|name| SampleRng::new(seed, 0, name)).collect();
    // Each begins with the boundary before it, and is over with the next one.
    let mut names = vec![vec![BOUNDARY]; count];
    for places in 1..MAX_PLACES {
        let over = |name: &[u8]| places > 1 && name.last() == Some(&BOUNDARY);
        if names.iter().all(|name| over(name)) {
            break;
        }
        let logits = next(gpt, &names, device)?;
        for ((name, logits), rng) in names
            .iter_mut()
            .zip(logits.chunks(NUM_TOKENS))
            .zip(&mut generators)
        {
            let token = match over(name) {
                true => BOUNDARY,
                false => draw(logits, places == 1, temperature, rng)?,
            };
            name.push(token);
        }
    }
    for name in &mut names {
        name.retain(|token| *token != BOUNDARY);
    }
    Ok(names)
}

/// The logits of what follows each name, one name after the other.
fn next(gpt: &Gpt, names: &[Vec<u8>], device: &Device) -> Result<Vec<f64>> {
    let (rows, places) = (names.len(), names.first().map_or(0, Vec::len));
    let tensor =
        |values: Vec<i32>| Tensor::<2, Int>::from_data(TensorData::new(values, [rows, places]), device);
    let tokens = tensor(names.iter().flatten().map(|token| i32::from(*token)).collect());
    let positions = tensor((0..rows).flat_map(|_| 0..places as i32).collect());
    let logits = gpt.forward(tokens, positions, tensor(vec![1; rows * places]), |x| x)?;
    let last = logits.slice([0..rows, places - 1..places, 0..NUM_TOKENS]);
    Ok(last.cast(FloatDType::F32).into_data().iter().collect())
}

/// A token, with the probability that the network gives it at a temperature.
fn draw(logits: &[f64], first: bool, temperature: f64, rng: &mut SampleRng) -> Result<u8> {
    let allowed = || logits.iter().enumerate().skip(usize::from(first));
    let largest = allowed().fold(f64::NEG_INFINITY, |largest, (_, logit)| largest.max(*logit));
    let weight = |logit: f64| ((logit - largest) / temperature).exp();
    let total: f64 = allowed().map(|(_, logit)| weight(*logit)).sum();
    if !total.is_finite() {
        return Err(format!("the logits of the network are not finite: {logits:?}").into());
    }
    let mut left = rng.uniform(0.0, total);
    let mut drawn = BOUNDARY;
    for (token, logit) in allowed() {
        // Rounding may leave something over after the last one.
        drawn = token as u8;
        left -= weight(*logit);
        if left < 0.0 {
            break;
        }
    }
    Ok(drawn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Settings, Size};

    #[test]
    fn names_end_are_letters_and_are_the_same_again() {
        let device = Device::flex();
        device.seed(1);
        // Untrained: every token is about as probable as any other, and few names end by themselves.
        let gpt = Gpt::new(&Settings::of(Size::Tiny), &device).unwrap();
        let of = |seed| names(&gpt, 64, 1.0, seed, &device).unwrap();
        let first = of(7);
        assert_eq!(first, of(7));
        assert_ne!(first, of(8));
        let lengths: Vec<usize> = first.iter().map(Vec::len).collect();
        assert!(
            lengths.iter().all(|length| (1..MAX_PLACES).contains(length)),
            "{lengths:?}"
        );
        assert_eq!(lengths.iter().max(), Some(&(MAX_PLACES - 1)));
        assert!(first.iter().flatten().all(|token| (1..=26).contains(token)));
        // A name is its own: that more are drawn beside it changes nothing.
        assert_eq!(names(&gpt, 3, 1.0, 7, &device).unwrap(), first[..3]);
    }

    #[test]
    fn the_temperature_decides_how_far_the_draws_go_from_the_likeliest() {
        let mut logits = vec![0.0; NUM_TOKENS];
        (logits[0], logits[4], logits[9]) = (9.0, 3.0, 2.0);
        let count = |first, temperature, wanted| {
            let draws =
                (0..1000).map(|n| draw(&logits, first, temperature, &mut SampleRng::new(1, 0, n)).unwrap());
            draws.filter(|token| *token == wanted).count()
        };
        assert_eq!(count(false, 0.1, BOUNDARY), 1000);
        // The first token is a letter.
        assert_eq!(count(true, 1.0, BOUNDARY), 0);
        assert_eq!(count(true, 0.01, 4), 1000);
        // e³ ÷ (e³ + e² + 24).
        let expected = 1000.0 * 3f64.exp() / (3f64.exp() + 2f64.exp() + 24.0);
        assert!((count(true, 1.0, 4) as f64 - expected).abs() < 50.0);
        assert!(draw(&[f64::NAN; NUM_TOKENS], true, 1.0, &mut SampleRng::new(1, 0, 0)).is_err());
    }
}
