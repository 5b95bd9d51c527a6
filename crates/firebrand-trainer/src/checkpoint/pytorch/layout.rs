use burn::tensor::{DType, TensorData};

use crate::checkpoint::{CheckpointError, tensor_file::allocate};

/// Swaps the two dimensions of a matrix: `[in, out]` ⇄ `[out, in]`.
pub(super) fn transpose(name: &str, data: TensorData) -> Result<TensorData, CheckpointError> {
    let refuse = |reason: String| CheckpointError::Mapping {
        reason: format!("'{name}' {reason}"),
    };
    let &[rows, cols] = data.shape().as_slice() else {
        return Err(refuse(format!(
            "has the shape {:?}, and only matrices are transposed; check its layer's rule",
            data.shape().as_slice()
        )));
    };
    let dtype = data.dtype();
    if matches!(dtype, DType::QFloat(_)) {
        return Err(refuse("is quantised; dequantise it first".into()));
    }
    let access = |error: &dyn std::fmt::Display| CheckpointError::TensorAccess {
        tensor: name.to_owned(),
        reason: error.to_string(),
    };
    let source = data
        .bytes()
        .read(Default::default())
        .map_err(|error| access(&error))?;
    let mut target = allocate(dtype, source.len())
        .ok_or_else(|| refuse(format!("needs {} bytes more memory than there is", source.len())))?;
    match dtype.size() {
        1 => transpose_elements::<1>(source, &mut target, rows, cols),
        2 => transpose_elements::<2>(source, &mut target, rows, cols),
        4 => transpose_elements::<4>(source, &mut target, rows, cols),
        _ => transpose_elements::<8>(source, &mut target, rows, cols),
    }
    TensorData::try_from_bytes(target, [cols, rows], dtype).map_err(|error| access(&error))
}

fn transpose_elements<const WIDTH: usize>(source: &[u8], target: &mut [u8], rows: usize, cols: usize) {
    // Square blocks of this size keep both sides in the cache.
    const BLOCK: usize = 32;
    let (source, _) = source.as_chunks::<WIDTH>();
    let (target, _) = target.as_chunks_mut::<WIDTH>();
    for row_block in (0..rows).step_by(BLOCK) {
        for col_block in (0..cols).step_by(BLOCK) {
            for row in row_block..(row_block + BLOCK).min(rows) {
                for col in col_block..(col_block + BLOCK).min(cols) {
                    target[col * rows + row] = source[row * cols + col];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{BoolStore, bf16};

    #[test]
    fn elements_keep_their_width() {
        assert_eq!(
            transpose("w", TensorData::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]])).unwrap(),
            TensorData::from([[1.0f32, 4.0], [2.0, 5.0], [3.0, 6.0]])
        );
        let half = [1.0, 2.0].map(bf16::from_f32);
        assert_eq!(
            transpose("w", TensorData::new(half.to_vec(), [1, 2])).unwrap(),
            TensorData::new(half.to_vec(), [2, 1])
        );
        let wide = |shape| {
            TensorData::from_bytes_vec(vec![1, 0, 0, 0, 0, 0, 0, 0], shape, DType::Bool(BoolStore::U32))
        };
        assert_eq!(transpose("w", wide([1, 2])).unwrap(), wide([2, 1]));
        let empty = TensorData::new(Vec::<f64>::new(), [0, 3]);
        assert_eq!(transpose("w", empty).unwrap().shape().as_slice(), [3, 0]);
    }

    #[test]
    fn blocks_meet_at_their_edges() {
        let (rows, cols) = (65, 33);
        let data = TensorData::new((0..(rows * cols) as i64).collect(), [rows, cols]);
        let transposed = transpose("w", data.clone()).unwrap();
        let values = transposed.as_slice::<i64>().unwrap();
        assert!((0..rows * cols).all(|i| values[i] == ((i % rows) * cols + i / rows) as i64));
        assert_eq!(transpose("w", transposed).unwrap(), data);
    }

    #[test]
    fn other_ranks_are_refused_by_name() {
        let error = transpose("conv.weight", TensorData::new(vec![0f32; 8], [2, 2, 2]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("'conv.weight' has the shape [2, 2, 2]"), "{error}");
    }
}
