//! Batches of surnames, and the loaders that give them.

use burn::data::dataset::InMemDataset;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebrand::prelude::*;

use crate::settings::Settings;
use crate::surnames::{BOUNDARY, MAX_LETTERS, Splits, Surname};

/// The number of places that a name takes: for each letter, and for the boundary that ends it.
pub const MAX_PLACES: usize = MAX_LETTERS + 1;

/// Rows of `context` places, each filled with as many whole names as fit.
#[derive(Batch, Clone, Debug)]
pub struct NameBatch {
    /// `[rows, context]`: the boundary and the letters of a name, those of the next one, …
    pub tokens: Tensor<2, Int>,
    /// `[rows, context]`: what follows each token: the letters, and the boundary that ends the name.
    pub targets: Tensor<2, Int>,
    /// `[rows, context]`: the place of each token in its name, from 0.
    pub positions: Tensor<2, Int>,
    /// `[rows, context]`: which name of the row a token belongs to, from 1; 0 where the row is empty.
    pub names: Tensor<2, Int>,
    /// The number of places of each row that are not empty. It is known here, and so never read back from a device.
    pub num_targets: Vec<usize>,
}

/// The loaders of the training, validation and test data.
pub fn loaders(splits: &Splits, settings: &Settings) -> Data<NameBatch> {
    let loader = |names: &[Surname]| {
        let context = settings.context;
        let rows = InMemDataset::new(pack(names, context));
        DataLoader::from_fn(rows, move |rows, device: &Device| {
            Ok(collate(&rows, context, device))
        })
    };
    Data::new()
        .train(
            loader(&splits.train)
                .batch_size(settings.batch_size)
                .shuffle(true),
        )
        .validation(loader(&splits.val).batch_size(settings.batch_size))
        .test(loader(&splits.test).batch_size(settings.batch_size))
}

/// Fills rows with names, in order.
fn pack(names: &[Surname], context: usize) -> Vec<Vec<Surname>> {
    let mut rows: Vec<Vec<Surname>> = Vec::new();
    let mut free = 0;
    for name in names {
        let places = name.tokens().len() + 1;
        match rows.last_mut() {
            Some(row) if places <= free => row.push(name.clone()),
            _ => {
                rows.push(vec![name.clone()]);
                free = context;
            }
        }
        free -= places;
    }
    rows
}

fn collate(rows: &[Vec<Surname>], context: usize, device: &Device) -> NameBatch {
    let mut num_targets = Vec::with_capacity(rows.len());
    let size = rows.len() * context;
    let mut places: [Vec<i32>; 4] = std::array::from_fn(|_| Vec::with_capacity(size));
    let [tokens, targets, positions, names] = &mut places;
    for (number, row) in rows.iter().enumerate() {
        for (name, letters) in row.iter().map(Surname::tokens).enumerate() {
            tokens.push(i32::from(BOUNDARY));
            tokens.extend(letters.iter().copied().map(i32::from));
            targets.extend(letters.iter().copied().map(i32::from));
            targets.push(i32::from(BOUNDARY));
            positions.extend(0..=letters.len() as i32);
            names.extend(std::iter::repeat_n(name as i32 + 1, letters.len() + 1));
        }
        num_targets.push(tokens.len() - number * context);
        for column in [&mut *tokens, targets, positions, names] {
            column.resize((number + 1) * context, 0);
        }
    }
    let [tokens, targets, positions, names] =
        places.map(|values| Tensor::from_data(TensorData::new(values, [rows.len(), context]), device));
    NameBatch {
        tokens,
        targets,
        positions,
        names,
        num_targets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surnames::spelled;

    fn names(letters: &[&str]) -> Vec<Surname> {
        letters
            .iter()
            .map(|letters| Surname::parse(letters).unwrap())
            .collect()
    }

    fn values(tensor: &Tensor<2, Int>) -> Vec<i64> {
        tensor.to_data().iter().collect()
    }

    #[test]
    fn names_stand_one_after_the_other() {
        let rows = pack(&names(&["AB", "C", "ABC", "D"]), 6);
        let batch = collate(&rows, 6, &Device::flex());
        assert_eq!(values(&batch.tokens), [0, 1, 2, 0, 3, 0, 0, 1, 2, 3, 0, 4]);
        assert_eq!(values(&batch.targets), [1, 2, 0, 3, 0, 0, 1, 2, 3, 0, 4, 0]);
        assert_eq!(values(&batch.positions), [0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 0, 1]);
        assert_eq!(values(&batch.names), [1, 1, 1, 2, 2, 0, 1, 1, 1, 1, 2, 2]);
        assert_eq!(batch.num_targets, [5, 6]);
    }

    #[test]
    fn no_name_is_lost_or_cut_in_any_context() {
        let all = &Splits::load().unwrap().test;
        for context in [MAX_PLACES, 32, 257] {
            let rows = pack(all, context);
            let batch = collate(&rows, context, &Device::flex());
            batch.check().unwrap();
            let (targets, owners) = (values(&batch.targets), values(&batch.names));
            let mut found = Vec::new();
            let mut name = Vec::new();
            for (token, owner) in targets.into_iter().zip(owners) {
                match token as u8 {
                    _ if owner == 0 => continue,
                    BOUNDARY => found.push(spelled(&std::mem::take(&mut name))),
                    letter => name.push(letter),
                }
            }
            let expected: Vec<String> = all.iter().map(|name| spelled(name.tokens())).collect();
            assert_eq!(found, expected);
            let filled: usize = batch.num_targets.iter().sum();
            assert_eq!(
                filled,
                all.iter().map(|name| name.tokens().len() + 1).sum::<usize>()
            );
        }
    }
}
