//! The handwritten digits: read from the file that is part of the program, and split once and for all.

use std::error::Error;

use burn::data::dataset::InMemDataset;

/// See `data/README.md` for where it comes from.
const FILE: &str = "data/digits.csv";
const CSV: &str = include_str!("../data/digits.csv");

/// The width and the height of an image.
pub const SIDE: usize = 8;
/// The number of pixels of an image.
pub const NUM_PIXELS: usize = SIDE * SIDE;
/// The number of different digits.
pub const NUM_CLASSES: usize = 10;
/// The value of a black pixel in the file.
const BLACK: u8 = 16;

/// An image and the digit that it shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Digit {
    /// 8×8 pixels, row by row, from 0 (white) to 1 (black).
    pub pixels: [f32; NUM_PIXELS],
    /// The digit, from 0 to 9.
    pub label: u8,
}

/// The digits in three parts that share no image.
pub struct DigitSplits {
    /// 60 %, to train on.
    pub train: InMemDataset<Digit>,
    /// 20 %, to choose a model and to stop by.
    pub val: InMemDataset<Digit>,
    /// 20 %, to be looked at once.
    pub test: InMemDataset<Digit>,
}

impl DigitSplits {
    /// Reads and splits the digits: of each digit, in the order of the file, images 1, 2 and 3 are for training, 4 for validation,
    /// 5 for test, 6 for training again. No seed is involved, so results of different runs, seeds and programs can be
    /// compared; and since images of one hand seem to follow one another in the file, each part has some of every hand.
    ///
    /// # Errors
    ///
    /// If a line is not 64 pixels from 0 to 16 and a digit; it names the line.
    pub fn load() -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self::of(parse(CSV)?))
    }

    fn of(digits: Vec<Digit>) -> Self {
        let (mut train, mut val, mut test) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = [0_usize; NUM_CLASSES];
        for digit in digits {
            let nth = &mut seen[usize::from(digit.label)];
            match *nth % 5 {
                3 => val.push(digit),
                4 => test.push(digit),
                _ => train.push(digit),
            }
            *nth += 1;
        }
        Self {
            train: InMemDataset::new(train),
            val: InMemDataset::new(val),
            test: InMemDataset::new(test),
        }
    }
}

fn parse(csv: &str) -> Result<Vec<Digit>, Box<dyn Error + Send + Sync>> {
    // Rows of another length are looked at below, for a message that says what is expected.
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(csv.as_bytes());
    let mut digits = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| format!("{FILE}: {error}"))?;
        let line = record.position().map_or(0, csv::Position::line);
        digits.push(digit(&record).map_err(|reason| format!("{FILE}, line {line}: {reason}"))?);
    }
    Ok(digits)
}

fn digit(record: &csv::StringRecord) -> Result<Digit, String> {
    if record.len() != NUM_PIXELS + 1 {
        return Err(format!(
            "{} fields instead of {NUM_PIXELS} pixels and a digit",
            record.len()
        ));
    }
    let number = |field: usize, name: &str, max: u8| match record[field].parse::<u8>() {
        Ok(number) if number <= max => Ok(number),
        _ => Err(format!(
            "the {name} is '{}', not a whole number from 0 to {max}",
            &record[field]
        )),
    };
    let mut pixels = [0.0; NUM_PIXELS];
    for (field, pixel) in pixels.iter_mut().enumerate() {
        *pixel = f32::from(number(field, &format!("pixel {field}"), BLACK)?) / f32::from(BLACK);
    }
    Ok(Digit {
        pixels,
        label: number(NUM_PIXELS, "digit", NUM_CLASSES as u8 - 1)?,
    })
}

#[cfg(test)]
mod tests {
    use burn::data::dataset::Dataset;

    use super::*;

    fn all(part: &InMemDataset<Digit>) -> Vec<Digit> {
        part.iter().map(Result::unwrap).collect()
    }

    #[test]
    fn the_parts_are_fixed_disjoint_and_stratified() {
        let splits = DigitSplits::load().unwrap();
        let [train, val, test] = [&splits.train, &splits.val, &splits.test].map(all);
        assert_eq!((train.len(), val.len(), test.len()), (1085, 357, 355));
        for part in [&val, &test] {
            for other in [&train, &val, &test]
                .into_iter()
                .filter(|other| !std::ptr::eq(*other, part))
            {
                assert!(part.iter().all(|digit| !other.contains(digit)));
            }
            for label in 0..NUM_CLASSES as u8 {
                let of_label = part.iter().filter(|digit| digit.label == label).count();
                assert!((34..=37).contains(&of_label), "{of_label} of {label}");
            }
        }
        // The first images of 0, their fourth and fifth, as in the file.
        let zeros: Vec<Digit> = parse(CSV)
            .unwrap()
            .into_iter()
            .filter(|digit| digit.label == 0)
            .collect();
        assert_eq!(
            (&train[0], &val.iter().find(|d| d.label == 0).unwrap()),
            (&zeros[0], &&zeros[3])
        );
        assert_eq!(test.iter().find(|d| d.label == 0), Some(&zeros[4]));
    }

    #[test]
    fn pixels_are_from_white_to_black() {
        let digits = parse(CSV).unwrap();
        assert_eq!(digits.len(), 1797);
        // The first row of the first image: 0, 0, 5, 13, 9, 1, 0, 0.
        assert_eq!(
            digits[0].pixels[..SIDE],
            [0.0, 0.0, 0.3125, 0.8125, 0.5625, 0.0625, 0.0, 0.0]
        );
        let pixels = digits.iter().flat_map(|digit| digit.pixels);
        assert_eq!(
            pixels.fold((1.0, 0.0), |(min, max), p| (p.min(min), p.max(max))),
            (0.0_f32, 1.0_f32)
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = CSV.lines().next().unwrap();
        for (line, reason) in [
            (
                good.replacen('5', "17", 1),
                "the pixel 2 is '17', not a whole number from 0 to 16",
            ),
            (good.replacen("13", "x", 1), "the pixel 3 is 'x'"),
            (
                format!("{}10", &good[..good.len() - 1]),
                "the digit is '10', not a whole number from 0 to 9",
            ),
            ("1,2,3".to_owned(), "3 fields instead of 64 pixels and a digit"),
        ] {
            let error = parse(&format!("{good}\n{line}\n{good}\n"))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("data/digits.csv, line 2: ") && error.contains(reason),
                "{error}"
            );
        }
    }
}
