use std::collections::BTreeMap;

use burn::tensor::TensorData;
use firebrand_collective::{Buffer, ProcessGroup, broadcast_bytes};
use firebrand_core::{ParamKind, ParamTable};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Values travel in pieces of at most so many bytes.
const PIECE: usize = 16 << 20;

/// One value of a module, as ranks compare it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Described {
    path: String,
    shape: Vec<usize>,
    parameter: bool,
}

/// Checks that this rank's module is that of rank 0: the same paths with the same shapes, in the same order.
///
/// # Errors
///
/// [`Error::DifferentModule`] with the first value that differs, on every rank whose module does.
pub fn check_alike(group: &dyn ProcessGroup, table: &ParamTable) -> Result<(), Error> {
    let mine: Vec<Described> = table
        .entries()
        .iter()
        .map(|entry| Described {
            path: entry.path.clone(),
            shape: entry.shape.to_vec(),
            parameter: entry.kind == ParamKind::Parameter,
        })
        .collect();
    let theirs = broadcast_bytes(group, serde_json::json!(mine).to_string().into_bytes())?;
    let differ = |reason: String| Error::DifferentModule {
        rank: group
            .global_ranks()
            .get(group.rank())
            .copied()
            .unwrap_or_default(),
        reason,
    };
    let theirs: Vec<Described> =
        serde_json::from_slice(&theirs).map_err(|error| differ(format!("it cannot be read: {error}")))?;
    for (mine, theirs) in mine.iter().zip(&theirs) {
        if mine != theirs {
            return Err(differ(format!(
                "'{}' of the shape {:?} stands where rank 0 has '{}' of the shape {:?}",
                mine.path, mine.shape, theirs.path, theirs.shape
            )));
        }
    }
    if mine.len() != theirs.len() {
        return Err(differ(format!(
            "it has {} parameters and buffers, and rank 0 has {}",
            mine.len(),
            theirs.len()
        )));
    }
    Ok(())
}

/// Gives every rank the values that rank 0 has, by path: what `values` holds is sent by rank 0 and replaced on the others.
/// Every rank has the same paths, shapes and dtypes.
///
/// # Errors
///
/// What went wrong between ranks.
pub fn replicate(group: &dyn ProcessGroup, values: &mut BTreeMap<String, TensorData>) -> Result<(), Error> {
    TensorData::with_bytes_mut(values.values_mut(), |values| {
        for piece in values.into_iter().flat_map(|bytes| bytes.chunks_mut(PIECE)) {
            let sent = group.broadcast(Buffer::from_slice::<u8>(piece), 0).wait()?;
            piece.copy_from_slice(sent.as_slice::<u8>()?);
        }
        Ok(())
    })
}
