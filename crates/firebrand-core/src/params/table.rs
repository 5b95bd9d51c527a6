use std::collections::HashMap;

use burn::module::ParamId;
use burn::tensor::Shape;

use super::{AnyTensor, ParamInfo, ParamVisitor, PathPattern, path_id};
use crate::{ErasedModule, Error};

/// What a value of a module is to the trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// A float parameter: trained, unless it is frozen.
    Parameter,
    /// State that a module keeps by itself: running statistics, integers and booleans.
    Buffer,
}

/// One value of a module.
#[derive(Clone, Debug)]
pub struct ParamEntry {
    /// The fields from the root to the value, joined with dots.
    pub path: String,
    /// The identity in the module.
    pub id: ParamId,
    /// The shape.
    pub shape: Shape,
    /// Parameter or buffer.
    pub kind: ParamKind,
    /// For a tied parameter that is not the first of its set, the index of the first.
    pub tied_to: Option<usize>,
}

/// Every value of a module by path, in the order of its fields; made once, when the trainer takes the module over.
#[derive(Clone, Debug, Default)]
pub struct ParamTable {
    entries: Vec<ParamEntry>,
    by_id: HashMap<ParamId, usize>,
}

impl ParamTable {
    /// Takes a module over: every parameter gets the identity of its path, nothing is materialised.
    ///
    /// # Errors
    ///
    /// [`Error::DuplicatePath`], [`Error::SharedParameter`] for a cloned layer that is not declared tied, and
    /// [`Error::UnknownParameter`] for a declared path that does not exist.
    pub fn take_over(module: &mut dyn ErasedModule) -> Result<Self, Error> {
        let before = List::of(module);
        let tied = module.tied_parameters();
        let mut owners: HashMap<ParamId, &str> = HashMap::new();
        for entry in &before {
            let Some(first) = owners.insert(entry.id, &entry.path) else {
                continue;
            };
            let declared =
                |set: &Vec<String>| set.iter().any(|path| path == first) && set.contains(&entry.path);
            // A module that was trained before has path identities, which are unique unless paths are not.
            if first != entry.path && !tied.iter().any(declared) {
                return Err(Error::SharedParameter {
                    first: first.to_owned(),
                    second: entry.path.clone(),
                });
            }
        }
        module.assign_path_ids();
        let mut table = Self::default();
        for mut entry in List::of(module) {
            let is_parameter = entry.kind == ParamKind::Parameter && entry.id == path_id(&entry.path);
            entry.kind = if is_parameter {
                ParamKind::Parameter
            } else {
                ParamKind::Buffer
            };
            if table.entries.iter().any(|known| known.path == entry.path) {
                return Err(Error::DuplicatePath { path: entry.path });
            }
            table.by_id.insert(entry.id, table.entries.len());
            table.entries.push(entry);
        }
        for set in tied {
            table.tie(&set)?;
        }
        Ok(table)
    }

    fn tie(&mut self, set: &[String]) -> Result<(), Error> {
        let mut indices = Vec::with_capacity(set.len());
        for path in set {
            indices.push(self.index_of_path(path).ok_or_else(|| self.unknown(path))?);
        }
        let Some(first) = indices.iter().copied().min() else {
            return Ok(());
        };
        for index in indices.into_iter().filter(|index| *index != first) {
            let (expected, found) = (&self.entries[first].shape, &self.entries[index].shape);
            if expected != found {
                return Err(Error::ShapeMismatch {
                    path: self.entries[index].path.clone(),
                    expected: expected.to_vec(),
                    found: found.to_vec(),
                });
            }
            self.entries[index].tied_to = Some(first);
        }
        Ok(())
    }

    /// Every value, in the order of the module's fields.
    pub fn entries(&self) -> &[ParamEntry] {
        &self.entries
    }

    /// The entry with an index.
    pub fn get(&self, index: usize) -> Option<&ParamEntry> {
        self.entries.get(index)
    }

    /// The index of the value with an identity.
    pub fn index_of(&self, id: ParamId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// The index of the value with a path.
    pub fn index_of_path(&self, path: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.path == path)
    }

    /// The indices of the parameters that match a pattern.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownParameter`] if none does.
    pub fn matching(&self, pattern: &PathPattern) -> Result<Vec<usize>, Error> {
        let found: Vec<usize> = self
            .parameters()
            .filter(|(_, entry)| pattern.matches(&entry.path))
            .map(|(index, _)| index)
            .collect();
        if found.is_empty() {
            Err(self.unknown(&pattern.to_string()))
        } else {
            Ok(found)
        }
    }

    /// The parameters, without the buffers, with their indices.
    pub fn parameters(&self) -> impl Iterator<Item = (usize, &ParamEntry)> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.kind == ParamKind::Parameter)
    }

    fn unknown(&self, path: &str) -> Error {
        const SHOWN: usize = 8;
        let mut known: Vec<&str> = self.parameters().map(|(_, entry)| entry.path.as_str()).collect();
        let more = known.len().saturating_sub(SHOWN);
        known.truncate(SHOWN);
        let mut known = known.join(", ");
        if more > 0 {
            known.push_str(&format!(" and {more} more"));
        }
        if known.is_empty() {
            known.push_str("no parameters");
        }
        Error::UnknownParameter {
            path: path.to_owned(),
            known,
        }
    }
}

/// Collects what is known of every value without looking at one.
#[derive(Default)]
struct List(Vec<ParamEntry>);

impl List {
    fn of(module: &dyn ErasedModule) -> Vec<ParamEntry> {
        let mut list = Self::default();
        module.visit_params(&mut list);
        list.0
    }
}

impl ParamVisitor for List {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        self.0.push(ParamEntry {
            path: info.path.to_owned(),
            id: info.id,
            shape: info.shape.clone(),
            kind: if info.float {
                ParamKind::Parameter
            } else {
                ParamKind::Buffer
            },
            tied_to: None,
        });
        false
    }

    fn visit(&mut self, _: &ParamInfo<'_>, _: AnyTensor, _: bool) {}
}
