use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

/// What a number should be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    pub(crate) fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("≤ {limit:.2}"),
            Self::AtLeast(limit) => format!("≥ {limit:.2}"),
        }
    }
}

/// What a table says of a target.
pub(crate) fn mark(holds: bool) -> &'static str {
    if holds { "ok" } else { "missed" }
}

/// A table whose first column names the rows, and whose others are numbers.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The load average of the last minute, without which no number here means anything.
pub(crate) fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    load.and_then(|load| load.split(' ').next().map(str::to_owned))
        .unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_up_to_their_border() {
        assert!(Limit::AtMost(1.2).holds(1.2) && !Limit::AtMost(1.2).holds(1.21));
        assert!(Limit::AtLeast(4.0).holds(4.0) && !Limit::AtLeast(4.0).holds(3.99));
        assert!(!Limit::AtMost(1.2).holds(f64::NAN));
    }
}
