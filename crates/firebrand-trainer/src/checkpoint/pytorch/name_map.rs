use std::collections::BTreeMap;

use burn::tensor::TensorData;

use super::{
    layout::transpose,
    pattern::Pattern,
    rules::{LayerKind, Mapped, Rename, Rules},
};
use crate::checkpoint::CheckpointError;

/// The way from Burn's paths and layouts to PyTorch's names and layouts, and back.
///
/// Rules are given from Burn to PyTorch. Import uses them the same way: it computes the name that each of the
/// module's paths has in PyTorch and takes that tensor, so no rule needs an inverse.
///
/// For each parameter, first the layer's rule renames its last part (`gamma` → `weight`); the first matching rule
/// counts. Then the renames apply, each to what the one before it made. In patterns `*` stands for any characters
/// but a dot and `**` for any characters. A rule that no parameter matches is an error, since it is a typing
/// mistake that would leave a weight untransposed.
///
/// ```
/// use burn::tensor::TensorData;
/// use firebrand_trainer::checkpoint::pytorch::{LayerKind, NameMap};
/// use std::collections::BTreeMap;
///
/// let map = NameMap::new()
///     .layer("blocks.*.fc*", LayerKind::Linear)
///     .layer("norm", LayerKind::LayerNorm)
///     .rename_glob("blocks.*.fc1.**", "layers.*.linear_in.**");
/// let weights = BTreeMap::from([
///     ("blocks.0.fc1.weight".to_owned(), TensorData::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]])),
///     ("norm.gamma".to_owned(), TensorData::from([1.0f32])),
/// ]);
/// let exported = map.export(weights.clone())?;
/// assert_eq!(exported["layers.0.linear_in.weight"].shape().as_slice(), [3, 2]);
/// assert_eq!(exported["norm.weight"], TensorData::from([1.0f32]));
/// assert_eq!(map.import(exported, weights.keys().cloned())?, weights);
/// # Ok::<(), firebrand_trainer::checkpoint::CheckpointError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a map does nothing until something is exported or imported with it"]
pub struct NameMap {
    rules: Rules,
    ignored: Vec<Pattern>,
}

impl NameMap {
    /// A map that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The default mapping for layers that are given as path patterns with their kinds.
    pub fn layers<P: Into<String>>(layers: impl IntoIterator<Item = (P, LayerKind)>) -> Self {
        layers
            .into_iter()
            .fold(Self::new(), |map, (path, kind)| map.layer(path, kind))
    }

    /// Says what the layers are whose paths match: the paths of their parameters without the last part.
    pub fn layer(mut self, path: impl Into<String>, kind: LayerKind) -> Self {
        self.rules.layers.push((Pattern::new(path), kind));
        self
    }

    /// Renames `gamma` to `weight` and `beta` to `bias` in the layers whose paths match. Running statistics have
    /// the same names in both; `num_batches_tracked` is not imported.
    pub fn norm(self, path: impl Into<String>) -> Self {
        self.layer(path, LayerKind::BatchNorm)
    }

    /// Swaps the dimensions of the matrices whose own paths match, as for a linear layer of one's own.
    pub fn transpose(mut self, path: impl Into<String>) -> Self {
        self.rules.transposes.push(Pattern::new(path));
        self
    }

    /// Renames one tensor.
    pub fn rename(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.rules.renames.push(Rename::Exact {
            from: from.into(),
            to: to.into(),
        });
        self
    }

    /// Replaces what names start with; `from` may be empty.
    pub fn rename_prefix(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.rules.renames.push(Rename::Prefix {
            from: from.into(),
            to: to.into(),
        });
        self
    }

    /// Renames what matches a pattern; the wildcards of `to` take what those of `from` stand for, in order.
    pub fn rename_glob(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.rules.renames.push(Rename::Glob {
            from: Pattern::new(from),
            to: Pattern::new(to),
        });
        self
    }

    /// Lets import leave out PyTorch's tensors whose names match, instead of reporting them as unknown.
    pub fn ignore(mut self, pytorch_name: impl Into<String>) -> Self {
        self.ignored.push(Pattern::new(pytorch_name));
        self
    }

    /// Weights by Burn's paths → weights by PyTorch's names.
    ///
    /// # Errors
    /// If two paths get one name, if a rule matches nothing, or if something is transposed that is no matrix.
    pub fn export(
        &self,
        weights: BTreeMap<String, TensorData>,
    ) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
        let plan = self.plan(weights.keys())?;
        let mut exported = BTreeMap::new();
        for (mapped, (path, data)) in plan.into_iter().zip(weights) {
            let data = if mapped.transposed {
                transpose(&path, data)?
            } else {
                data
            };
            exported.insert(mapped.name, data);
        }
        Ok(exported)
    }

    /// Weights by PyTorch's names → weights by Burn's paths, of which `paths` are the module's.
    ///
    /// Shapes and element types are not compared with the module's; what applies weights to one does that.
    ///
    /// # Errors
    /// [`CheckpointError::Names`] with everything that is missing, unknown or unused; the rest as for `export`.
    pub fn import<P: Into<String>>(
        &self,
        mut tensors: BTreeMap<String, TensorData>,
        paths: impl IntoIterator<Item = P>,
    ) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
        let paths: Vec<String> = paths.into_iter().map(Into::into).collect();
        let plan = self.plan(paths.iter())?;
        let mut imported = BTreeMap::new();
        let mut missing = Vec::new();
        for (mapped, path) in plan.iter().zip(paths) {
            match tensors.remove(&mapped.name) {
                Some(data) if mapped.transposed => imported.insert(path, transpose(&mapped.name, data)?),
                Some(data) => imported.insert(path, data),
                None => {
                    missing.push(mapped.name.clone());
                    None
                }
            };
        }
        for companion in plan.into_iter().filter_map(|mapped| mapped.companion) {
            tensors.remove(&companion);
        }
        tensors.retain(|name, _| !self.ignored.iter().any(|pattern| pattern.matches(name)));
        if missing.is_empty() && tensors.is_empty() {
            return Ok(imported);
        }
        Err(CheckpointError::Names {
            context: "the tensors do not fit the module".into(),
            missing,
            unknown: tensors.into_keys().collect(),
            unused: Vec::new(),
        })
    }

    /// What becomes of each path, in their order.
    fn plan<'p>(&self, paths: impl Iterator<Item = &'p String>) -> Result<Vec<Mapped>, CheckpointError> {
        if let Some(reason) = self.rules.renames.iter().find_map(Rename::problem) {
            return Err(CheckpointError::Mapping { reason });
        }
        let mut used = self.rules.unused_yet();
        let mut owners = BTreeMap::new();
        let mut plan = Vec::new();
        for path in paths {
            let mapped = self.rules.map(path, &mut used);
            if let Some(other) = owners.insert(mapped.name.clone(), path) {
                let reason = format!("'{other}' and '{path}' would both be named '{}'", mapped.name);
                return Err(CheckpointError::Mapping { reason });
            }
            plan.push(mapped);
        }
        let unused = self.rules.unused(&used);
        if unused.is_empty() {
            return Ok(plan);
        }
        let context = "some rules of the name map match nothing".into();
        Err(CheckpointError::Names {
            context,
            missing: vec![],
            unknown: vec![],
            unused,
        })
    }
}
