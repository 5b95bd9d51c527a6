//! The parameters and buffers of a module as a table.

#[cfg(test)]
mod tests;

use burn::tensor::DType;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use firebrand_core::{AnyTensor, ErasedModule, ParamInfo, ParamKind, ParamTable, ParamVisitor};

/// A table that nobody scrolls.
const MAX_ROWS: usize = 40;

/// How much of a module's structure is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SummaryDepth {
    /// The deepest level at which the table has at most 40 rows.
    #[default]
    Auto,
    /// This many levels of fields; what is deeper is summed up. `0` shows the totals alone.
    Levels(usize),
}

impl From<usize> for SummaryDepth {
    fn from(levels: usize) -> Self {
        Self::Levels(levels)
    }
}

/// The parameters and buffers of a module as a table, with their totals.
///
/// `trained` says of each entry of the table whether it is trained. Values that are not materialised stay so: their dtype and
/// memory are unknown. A tied parameter counts once.
///
/// ```text
/// ┌─────────────┬───────────┬───────┬────────────┬──────────┬─────────┐
/// │ path        ┆ shape     ┆ dtype ┆ parameters ┆   memory ┆ trained │
/// ╞═════════════╪═══════════╪═══════╪════════════╪══════════╪═════════╡
/// │ body.weight ┆ [64, 128] ┆ f32   ┆      8,192 ┆ 32.0 KiB ┆ yes     │
/// └─────────────┴───────────┴───────┴────────────┴──────────┴─────────┘
/// 8,192 parameters, 8,192 trained; no buffers; 32.0 KiB
/// ```
pub fn summary_table(
    module: &dyn ErasedModule,
    table: &ParamTable,
    trained: &dyn Fn(usize) -> bool,
    depth: SummaryDepth,
) -> String {
    let mut dtypes = Dtypes {
        table,
        found: vec![None; table.entries().len()],
    };
    module.visit_params(&mut dtypes);
    let values: Vec<Value> = table
        .entries()
        .iter()
        .enumerate()
        .map(|(index, entry)| Value {
            path: &entry.path,
            shape: format!("{:?}", entry.shape.to_vec()),
            dtype: dtypes.found.get(index).copied().flatten(),
            elements: entry.shape.num_elements(),
            buffer: entry.kind == ParamKind::Buffer,
            trained: trained(index),
            tied_to: entry
                .tied_to
                .and_then(|first| table.get(first))
                .map(|first| first.path.as_str()),
        })
        .collect();
    let totals = totals(&values);
    let rows = match depth {
        SummaryDepth::Levels(levels) => rows(&values, levels),
        SummaryDepth::Auto => rows_that_fit(&values),
    };
    if rows.is_empty() {
        return totals;
    }
    let mut drawn = Table::new();
    drawn.load_style(UTF8_FULL_CONDENSED);
    drawn.set_header(["path", "shape", "dtype", "parameters", "memory", "trained"]);
    for column in [3, 4] {
        if let Some(column) = drawn.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for row in rows {
        drawn.add_row(row);
    }
    format!("{drawn}\n{totals}")
}

/// One parameter or buffer.
struct Value<'a> {
    path: &'a str,
    shape: String,
    dtype: Option<DType>,
    elements: usize,
    buffer: bool,
    trained: bool,
    tied_to: Option<&'a str>,
}

impl Value<'_> {
    fn bytes(&self) -> Option<usize> {
        self.dtype.map(|dtype| self.elements * dtype.size())
    }
}

/// The first `levels` fields of a path.
fn group(path: &str, levels: usize) -> &str {
    path.match_indices('.')
        .nth(levels.saturating_sub(1))
        .and_then(|(end, _)| path.get(..end))
        .unwrap_or(path)
}

fn rows(values: &[Value<'_>], levels: usize) -> Vec<[String; 6]> {
    if levels == 0 {
        return Vec::new();
    }
    values
        .chunk_by(|a, b| group(a.path, levels) == group(b.path, levels))
        .filter_map(|members| {
            let first = members.first()?;
            let path = group(first.path, levels);
            let shape = if path == first.path {
                first.shape.clone()
            } else {
                format!("{} tensors", members.len())
            };
            let own: Vec<&Value> = members.iter().filter(|value| value.tied_to.is_none()).collect();
            let parameters = own
                .iter()
                .filter(|value| !value.buffer)
                .map(|value| value.elements)
                .sum();
            let tied = first.tied_to.filter(|_| own.is_empty());
            let only_buffers = members.iter().all(|value| value.buffer);
            let parameters = match tied {
                Some(other) => format!("tied to {other}"),
                None if only_buffers => String::new(),
                None => grouped(parameters),
            };
            Some([
                path.to_owned(),
                shape,
                dtype_of(members),
                parameters,
                memory(own.into_iter()),
                trained_of(members),
            ])
        })
        .collect()
}

fn rows_that_fit(values: &[Value<'_>]) -> Vec<[String; 6]> {
    let deepest = values
        .iter()
        .map(|value| value.path.split('.').count())
        .max()
        .unwrap_or_default();
    let fits = (1..=deepest)
        .rev()
        .map(|levels| rows(values, levels))
        .find(|rows| rows.len() <= MAX_ROWS);
    fits.unwrap_or_else(|| rows(values, 1))
}

fn dtype_of(members: &[Value<'_>]) -> String {
    let name = |value: &Value<'_>| value.dtype.map_or("not materialised", |dtype| dtype.name());
    let first = members.first().map_or("", name);
    if members.iter().all(|value| name(value) == first) {
        first.to_owned()
    } else {
        "mixed".to_owned()
    }
}

fn trained_of(members: &[Value<'_>]) -> String {
    let (mut parameters, mut trained) = (0, 0);
    for value in members.iter().filter(|value| !value.buffer) {
        parameters += value.elements;
        trained += if value.trained { value.elements } else { 0 };
    }
    match trained {
        _ if parameters == 0 && members.iter().all(|value| value.buffer) => "buffer".to_owned(),
        0 => "no".to_owned(),
        trained if trained == parameters => "yes".to_owned(),
        trained => format!("{:.0} %", 100.0 * trained as f64 / parameters as f64),
    }
}

/// The bytes of values that are materialised; `≥` if some are not.
fn memory<'a>(values: impl Iterator<Item = &'a Value<'a>>) -> String {
    let (mut bytes, mut known, mut unknown) = (0, false, false);
    for value in values {
        match value.bytes() {
            Some(more) => (bytes, known) = (bytes + more, true),
            None => unknown = true,
        }
    }
    match (known, unknown) {
        (true, false) => format_bytes(bytes),
        (true, true) => format!("≥ {}", format_bytes(bytes)),
        (false, _) => String::new(),
    }
}

fn totals(values: &[Value<'_>]) -> String {
    let own = || values.iter().filter(|value| value.tied_to.is_none());
    let sum = |wanted: &dyn Fn(&Value<'_>) -> bool| {
        own()
            .filter(|value| wanted(value))
            .map(|value| value.elements)
            .sum()
    };
    let parameters: usize = sum(&|value| !value.buffer);
    let trained: usize = sum(&|value| !value.buffer && value.trained);
    let buffers: usize = sum(&|value| value.buffer);
    let buffers = match buffers {
        0 => "no buffers".to_owned(),
        elements => format!("buffers of {} elements", grouped(elements)),
    };
    let memory = memory(own());
    let memory = if memory.is_empty() {
        "nothing materialised".to_owned()
    } else {
        memory
    };
    format!(
        "{} parameters, {} trained; {buffers}; {memory}",
        grouped(parameters),
        grouped(trained)
    )
}

/// A count with a comma after every thousand.
fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest unit that leaves at least one of it.
fn format_bytes(bytes: usize) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// The dtypes of the values that are materialised.
struct Dtypes<'a> {
    table: &'a ParamTable,
    found: Vec<Option<DType>>,
}

impl ParamVisitor for Dtypes<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        info.initialized
    }

    fn visit(&mut self, info: &ParamInfo<'_>, value: AnyTensor, _: bool) {
        if let Some(place) = self
            .table
            .index_of(info.id)
            .and_then(|index| self.found.get_mut(index))
        {
            *place = Some(value.dtype());
        }
    }
}
