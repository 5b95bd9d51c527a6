use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{DType, Device, FloatDType};
use firebrand_core::{
    AnyTensor, ErasedModule, ParamInfo, ParamKind, ParamMapper, ParamTable, SeedStream, seed_from,
};

use crate::{Error, PrecisionPolicy};

/// Where and how the parameters of a rank are made ready.
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    /// The training device, with autodiff and its gradient-checkpointing strategy.
    pub device: Device,
    /// In which dtype weights are kept, and steps use them.
    pub precision: PrecisionPolicy,
    /// The user's seed.
    pub seed: u64,
}

/// Makes the owned parameters ready for training: seed, materialise, move, cast, autodiff, gradient requirement.
///
/// A lazy parameter is drawn after its device was seeded from (seed, path), so its value depends on nothing else. One that was
/// materialised before is the user's value and is kept. Parameters that `owned` refuses stay as they are; lazy ones stay lazy.
/// Tied parameters take the value of the first of their set. Returns which entries of the table are trained.
///
/// If the whole module is owned, its running statistics are parted from those of the user's clones, and tensors that
/// are no parameters (a table of positions) move to the device too; their dtype stays.
///
/// # Errors
///
/// [`Error::UnsupportedDType`] if the device cannot compute in the precision.
pub fn prepare_parameters(
    module: &mut dyn ErasedModule,
    table: &ParamTable,
    options: &PrepareOptions,
    owned: &dyn Fn(usize) -> bool,
) -> Result<Vec<bool>, Error> {
    let dtype = options.precision.master();
    for needed in [dtype, options.precision.compute()] {
        if !options.device.supports_dtype(needed) {
            return Err(Error::UnsupportedDType {
                device: format!("{:?}", options.device),
                dtype: format!("{:?}", DType::from(needed)),
            });
        }
    }
    if let Some(path) = narrow_batch_norm(module).filter(|_| is_narrow(options.precision.compute())) {
        return Err(Error::BatchNorm {
            path,
            precision: options.precision.precision.as_str(),
        });
    }
    let inner = options.device.clone().without_autodiff();
    let ours = |info: &ParamInfo<'_>| table.index_of(info.id).filter(|index| owned(*index));
    module.map_params(&mut Materialize {
        ours: &ours,
        seed: options.seed,
        drawing: None,
    });
    if (0..table.entries().len()).all(owned) {
        module.detach_to(&inner);
    }
    module.map_params(&mut Place {
        ours: &ours,
        table,
        device: &inner,
        dtype,
        first_of_set: Vec::new(),
    });
    module.train_params(&mut |info| is_parameter(table, ours(info)));
    let mut finish = Finish {
        ours: &ours,
        table,
        device: &options.device,
        trained: vec![false; table.entries().len()],
    };
    module.map_params(&mut finish);
    Ok(finish.trained)
}

/// Whether a dtype has 16 bits.
fn is_narrow(dtype: FloatDType) -> bool {
    matches!(dtype, FloatDType::F16 | FloatDType::BF16)
}

/// The path of a batch norm of Burn's: its statistics and its input must have one dtype.
fn narrow_batch_norm(module: &dyn ErasedModule) -> Option<String> {
    let (mut norms, mut marked) = (Vec::new(), Vec::new());
    module.visit_fields(&mut |path, container| {
        if let ("BatchNorm", Some((layer, field))) = (container, path.rsplit_once('.')) {
            match field {
                "running_mean" => norms.push(layer.to_owned()),
                // The mark of `firebrand_nn::BatchNorm`.
                "any_dtype" => marked.push(layer.to_owned()),
                _ => {}
            }
        }
    });
    norms.into_iter().find(|layer| !marked.contains(layer))
}

fn is_parameter(table: &ParamTable, index: Option<usize>) -> bool {
    index
        .and_then(|index| table.get(index))
        .is_some_and(|entry| entry.kind == ParamKind::Parameter)
}

/// Which entry of the table a value is, if this rank owns it.
type Ours<'a> = &'a dyn Fn(&ParamInfo<'_>) -> Option<usize>;

/// Burn's generators are those of the process: from seeding one to the end of drawing, nobody else may.
static DRAWING: Mutex<()> = Mutex::new(());

/// Draws lazy values where they were to be drawn.
struct Materialize<'a> {
    ours: Ours<'a>,
    seed: u64,
    drawing: Option<MutexGuard<'static, ()>>,
}

impl ParamMapper for Materialize<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        !info.initialized && (self.ours)(info).is_some()
    }

    fn before_materialize(&mut self, info: &ParamInfo<'_>, device: &Device) {
        self.drawing = None;
        self.drawing = Some(DRAWING.lock().unwrap_or_else(PoisonError::into_inner));
        device.seed(seed_from(self.seed, SeedStream::Weights, info.path, &[]));
    }

    fn map(&mut self, _: &ParamInfo<'_>, value: AnyTensor, _: bool) -> AnyTensor {
        self.drawing = None;
        value
    }
}

/// Puts values on the device in their dtype, without autodiff yet.
struct Place<'a> {
    ours: Ours<'a>,
    table: &'a ParamTable,
    device: &'a Device,
    dtype: FloatDType,
    first_of_set: Vec<(usize, AnyTensor)>,
}

impl ParamMapper for Place<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        (self.ours)(info).is_some()
    }

    fn map(&mut self, info: &ParamInfo<'_>, value: AnyTensor, _requires_grad: bool) -> AnyTensor {
        let index = (self.ours)(info);
        // Running statistics move by too little to be kept in 16 bits.
        let dtype = match is_parameter(self.table, index) || !is_narrow(self.dtype) {
            true => self.dtype,
            false => FloatDType::F32,
        };
        let placed = value.inner().to_device(self.device).cast(dtype);
        let Some(index) = index else {
            return placed;
        };
        match self.table.get(index).and_then(|entry| entry.tied_to) {
            Some(first) => match self.first_of_set.iter().find(|(known, _)| *known == first) {
                Some((_, value)) => value.clone(),
                None => placed,
            },
            None => {
                if self
                    .table
                    .entries()
                    .iter()
                    .any(|entry| entry.tied_to == Some(index))
                {
                    self.first_of_set.push((index, placed.clone()));
                }
                placed
            }
        }
    }
}

/// Gives every value the autodiff association and strategy of the training device.
struct Finish<'a> {
    ours: Ours<'a>,
    table: &'a ParamTable,
    device: &'a Device,
    trained: Vec<bool>,
}

impl ParamMapper for Finish<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        (self.ours)(info).is_some()
    }

    fn map(&mut self, info: &ParamInfo<'_>, value: AnyTensor, requires_grad: bool) -> AnyTensor {
        if let Some(index) = (self.ours)(info) {
            let float = value.is_float() && is_parameter(self.table, Some(index));
            if let Some(trained) = self.trained.get_mut(index) {
                *trained = requires_grad && float;
            }
        }
        value.inner().on_autodiff(self.device, requires_grad)
    }
}
