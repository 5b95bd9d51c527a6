use burn::tensor::{Device, Tensor};

/// Reads one-element tensors: where a read is cheap one by one, elsewhere with one synchronisation for all.
///
/// A tensor with several elements gives the first; logging names one number.
pub(crate) fn read_scalars(tensors: Vec<Tensor<1>>) -> Vec<f64> {
    let first = |tensor: Tensor<1>| tensor.into_data().iter::<f64>().next().unwrap_or(f64::NAN);
    let on_host = tensors
        .first()
        .is_none_or(|tensor| tensor.device() == Device::flex());
    let alike = tensors.windows(2).all(|pair| pair[0].dtype() == pair[1].dtype());
    let scalars = tensors.iter().all(|tensor| tensor.shape().num_elements() == 1);
    if on_host || !alike || !scalars {
        return tensors.into_iter().map(first).collect();
    }
    Tensor::cat(tensors, 0).into_data().iter::<f64>().collect()
}
