//! The surnames: read from the file that is part of the program, and split once and for all.

use std::error::Error;

/// See `data/README.md` for where it comes from.
const FILE: &str = "data/surnames.txt";
const TEXT: &str = include_str!("../data/surnames.txt");

/// The most letters that a surname of the data has.
pub const MAX_LETTERS: usize = 13;
/// The token that stands before a name and after it.
pub const BOUNDARY: u8 = 0;
/// The number of different tokens: the boundary, and A to Z as 1 to 26.
pub const NUM_TOKENS: usize = 27;

/// A surname as tokens from 1 (A) to 26 (Z).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Surname(Vec<u8>);

impl Surname {
    /// From capital letters.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn parse(letters: &str) -> Result<Self, String> {
        if !(1..=MAX_LETTERS).contains(&letters.len()) {
            return Err(format!(
                "'{letters}' has {} letters instead of 1 to {MAX_LETTERS}",
                letters.len()
            ));
        }
        match letters.bytes().all(|letter| letter.is_ascii_uppercase()) {
            true => Ok(Self(letters.bytes().map(|letter| letter - b'A' + 1).collect())),
            false => Err(format!("'{letters}' has other characters than A to Z")),
        }
    }

    /// Its tokens, without boundaries.
    pub fn tokens(&self) -> &[u8] {
        &self.0
    }
}

/// The letters of tokens, the first of them large; a boundary is none.
pub fn spelled(tokens: &[u8]) -> String {
    let letters = tokens.iter().filter(|token| **token != BOUNDARY);
    let letters = letters.map(|token| char::from(token - 1 + b'A'));
    letters
        .enumerate()
        .map(|(place, letter)| {
            if place == 0 {
                letter
            } else {
                letter.to_ascii_lowercase()
            }
        })
        .collect()
}

/// The surnames in three parts that share none.
pub struct Splits {
    /// 90 %, to learn from.
    pub train: Vec<Surname>,
    /// 5 %, to choose a model and to stop by.
    pub val: Vec<Surname>,
    /// 5 %, to be looked at once.
    pub test: Vec<Surname>,
}

impl Splits {
    /// Reads and splits the surnames. A hash of its letters says which part a name belongs to, and where in it: the file goes by
    /// frequency and then by alphabet, and names that resemble each other would come together. No seed is involved, so that
    /// results of different runs, seeds and programs can be compared.
    ///
    /// # Errors
    ///
    /// If a line is not a surname; it names the line.
    pub fn load() -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self::of(parse(TEXT)?))
    }

    fn of(mut surnames: Vec<Surname>) -> Self {
        surnames.sort_by_cached_key(|surname| (fnv1a(surname.tokens()), surname.0.clone()));
        let part = surnames.len() / 20;
        let test = surnames.split_off(surnames.len() - part);
        let val = surnames.split_off(surnames.len() - part);
        Self {
            train: surnames,
            val,
            test,
        }
    }
}

/// The 64-bit hash of Fowler, Noll and Vo, with the bits of its end mixed into those of its beginning.
fn fnv1a(bytes: &[u8]) -> u64 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn parse(text: &str) -> Result<Vec<Surname>, Box<dyn Error + Send + Sync>> {
    let lines = text.lines().enumerate();
    lines
        .map(|(line, letters)| {
            Surname::parse(letters).map_err(|reason| format!("{FILE}, line {}: {reason}", line + 1).into())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_name_is_in_one_part_and_the_parts_do_not_change() {
        let Splits { train, val, test } = Splits::load().unwrap();
        assert_eq!((train.len(), val.len(), test.len()), (79_921, 4_439, 4_439));
        let all: HashSet<&Surname> = train.iter().chain(&val).chain(&test).collect();
        assert_eq!(all.len(), 88_799);
        // As they were when the README was written.
        let first = |part: &[Surname]| spelled(part[0].tokens());
        assert_eq!(
            [first(&train), first(&val), first(&test)],
            ["Voit", "Farrish", "Cormican"]
        );
        // Each part has names of every initial but X, which is rare, and of every usual length.
        for part in [&train, &val, &test] {
            let initials: HashSet<u8> = part.iter().map(|name| name.tokens()[0]).collect();
            assert!(initials.len() >= 25);
            for letters in 3..=11 {
                assert!(part.iter().any(|name| name.tokens().len() == letters));
            }
        }
    }

    #[test]
    fn a_name_is_its_letters() {
        let name = Surname::parse("AZUL").unwrap();
        assert_eq!(name.tokens(), [1, 26, 21, 12]);
        assert_eq!(spelled(name.tokens()), "Azul");
        assert_eq!(spelled(&[2, 15, BOUNDARY]), "Bo");
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, reason) in [
            ("O'BRIEN", "'O'BRIEN' has other characters than A to Z"),
            ("smith", "'smith' has other characters"),
            ("", "'' has 0 letters instead of 1 to 13"),
            ("ABCDEFGHIJKLMN", "has 14 letters"),
        ] {
            let error = parse(&format!("SMITH\n{line}\nJONES\n")).unwrap_err().to_string();
            assert!(
                error.contains("data/surnames.txt, line 2: ") && error.contains(reason),
                "{error}"
            );
        }
    }
}
