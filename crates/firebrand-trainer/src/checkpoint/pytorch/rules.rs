use super::pattern::Pattern;

/// A layer of Burn and the module of PyTorch whose names and layout its parameters take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LayerKind {
    /// `Linear`: `weight` is `[in, out]` in Burn and `[out, in]` in PyTorch; `bias` is equal.
    Linear,
    /// Convolutions, transposed or not, in any number of dimensions: equal in both.
    Conv,
    /// `Embedding`: `weight` is `[count, width]` in both.
    Embedding,
    /// `LayerNorm`: `gamma` and `beta` are `weight` and `bias` in PyTorch.
    LayerNorm,
    /// `GroupNorm` and `InstanceNorm`: `gamma` and `beta` are `weight` and `bias` in PyTorch.
    GroupNorm,
    /// `RmsNorm`: `gamma` is `weight` in PyTorch.
    RmsNorm,
    /// `BatchNorm`: `gamma` and `beta` are `weight` and `bias`, the running statistics have the same names, and
    /// PyTorch's `num_batches_tracked`, which Burn lacks, is not imported. On export it is left out, which
    /// `load_state_dict` accepts.
    BatchNorm,
}

impl LayerKind {
    /// PyTorch's name for a parameter of the layer.
    fn leaf(self, leaf: &str) -> &str {
        match (self, leaf) {
            (Self::LayerNorm | Self::GroupNorm | Self::RmsNorm | Self::BatchNorm, "gamma") => "weight",
            (Self::LayerNorm | Self::GroupNorm | Self::BatchNorm, "beta") => "bias",
            _ => leaf,
        }
    }
}

/// How a name changes on the way to PyTorch.
#[derive(Clone, Debug)]
pub(super) enum Rename {
    Exact { from: String, to: String },
    Prefix { from: String, to: String },
    Glob { from: Pattern, to: Pattern },
}

impl Rename {
    /// The new name, or `None` if the rule does not concern it.
    fn apply(&self, name: &str) -> Option<String> {
        match self {
            Self::Exact { from, to } => (name == from).then(|| to.clone()),
            Self::Prefix { from, to } => name.strip_prefix(from.as_str()).map(|rest| format!("{to}{rest}")),
            Self::Glob { from, to } => from.captures(name).map(|captures| to.fill(&captures)),
        }
    }

    /// What is wrong with the rule itself.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Glob { from, to } if from.num_wildcards() != to.num_wildcards() => Some(format!(
                "'{}' and '{}' have different numbers of wildcards",
                from.as_str(),
                to.as_str()
            )),
            _ => None,
        }
    }

    fn from(&self) -> &str {
        match self {
            Self::Exact { from, .. } | Self::Prefix { from, .. } => from,
            Self::Glob { from, .. } => from.as_str(),
        }
    }
}

/// The rules of a name map.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub layers: Vec<(Pattern, LayerKind)>,
    pub transposes: Vec<Pattern>,
    pub renames: Vec<Rename>,
}

/// Which rules took effect.
pub(super) struct Used {
    layers: Vec<bool>,
    transposes: Vec<bool>,
    renames: Vec<bool>,
}

/// A parameter on its way to PyTorch.
pub(super) struct Mapped {
    pub name: String,
    pub transposed: bool,
    /// The name of a tensor that PyTorch has beside this one and Burn has not.
    pub companion: Option<String>,
}

impl Rules {
    pub fn unused_yet(&self) -> Used {
        Used {
            layers: vec![false; self.layers.len()],
            transposes: vec![false; self.transposes.len()],
            renames: vec![false; self.renames.len()],
        }
    }

    /// What becomes of a parameter.
    pub fn map(&self, path: &str, used: &mut Used) -> Mapped {
        let (prefix, leaf) = path
            .rsplit_once('.')
            .map_or(("", path), |(prefix, leaf)| (prefix, leaf));
        let join = |leaf: &str| {
            if prefix.is_empty() {
                leaf.to_owned()
            } else {
                format!("{prefix}.{leaf}")
            }
        };
        let layer = self
            .layers
            .iter()
            .position(|(pattern, _)| pattern.matches(prefix));
        let kind = layer.map(|layer| {
            used.layers[layer] = true;
            self.layers[layer].1
        });
        let mut transposed = kind == Some(LayerKind::Linear) && leaf == "weight";
        for (pattern, used) in self.transposes.iter().zip(&mut used.transposes) {
            if pattern.matches(path) {
                transposed = true;
                *used = true;
            }
        }
        let name = self.rename(join(kind.map_or(leaf, |kind| kind.leaf(leaf))), Some(used));
        let companion =
            (kind == Some(LayerKind::BatchNorm)).then(|| self.rename(join("num_batches_tracked"), None));
        Mapped {
            name,
            transposed,
            companion,
        }
    }

    fn rename(&self, mut name: String, used: Option<&mut Used>) -> String {
        let mut ignored = vec![false; self.renames.len()];
        let used = used.map_or(&mut ignored, |used| &mut used.renames);
        for (rule, used) in self.renames.iter().zip(used) {
            if let Some(new) = rule.apply(&name) {
                name = new;
                *used = true;
            }
        }
        name
    }

    /// The rules that no parameter matched.
    pub fn unused(&self, used: &Used) -> Vec<String> {
        let layers = self
            .layers
            .iter()
            .map(|(pattern, _)| pattern.as_str())
            .zip(&used.layers);
        let transposes = self.transposes.iter().map(Pattern::as_str).zip(&used.transposes);
        let renames = self.renames.iter().map(Rename::from).zip(&used.renames);
        let all = layers.chain(transposes).chain(renames);
        all.filter(|(_, used)| !**used)
            .map(|(rule, _)| rule.to_owned())
            .collect()
    }
}
