use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

use super::recorder::Total;

/// The table of totals, the longest first.
pub(super) fn summary(mut totals: Vec<Total>, elapsed: Duration) -> String {
    totals.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["span", "calls", "total", "mean", "longest", "%"]);
    for column in 1..=5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for total in totals {
        let mean = total.time.as_secs_f64() / total.calls.max(1) as f64;
        let percent = 100.0 * total.time.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        table.add_row([
            total.name.into_owned(),
            total.calls.to_string(),
            format_seconds(total.time.as_secs_f64()),
            format_seconds(mean),
            format_seconds(total.longest.as_secs_f64()),
            format!("{percent:.1}"),
        ]);
    }
    format!("profile of {}\n{table}", format_seconds(elapsed.as_secs_f64()))
}

/// Four digits in the unit that fits.
fn format_seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    let decimals = match value {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_comes_first() {
        let total = |name: &'static str, calls, milliseconds| Total {
            name: name.into(),
            calls,
            time: Duration::from_millis(milliseconds),
            longest: Duration::from_millis(milliseconds),
        };
        let text = summary(
            vec![total("logging", 4, 1), total("update", 10, 250)],
            Duration::from_secs(1),
        );
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.contains("update") || line.contains("logging"))
            .map(|line| line.trim_matches('│').split('┆').map(str::trim).collect())
            .collect();
        assert_eq!(
            rows[0],
            ["update", "10", "250.0 ms", "25.00 ms", "250.0 ms", "25.0"]
        );
        assert_eq!(
            rows[1],
            ["logging", "4", "1.000 ms", "250.0 µs", "1.000 ms", "0.1"]
        );
        assert!(text.starts_with("profile of 1.000 s\n"), "{text}");
        assert!(summary(Vec::new(), Duration::ZERO).contains("calls"));
    }

    #[test]
    fn times_have_a_unit_that_fits() {
        for (seconds, text) in [
            (4000.0, "4000 s"),
            (12.345, "12.35 s"),
            (0.5, "500.0 ms"),
            (2e-6, "2.000 µs"),
            (0.0, "0.000 ns"),
        ] {
            assert_eq!(format_seconds(seconds), text);
        }
    }
}
