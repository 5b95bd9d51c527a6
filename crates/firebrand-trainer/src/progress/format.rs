use std::time::Duration;

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

/// A number as a person reads it: four significant digits, without trailing zeros, and with an exponent below 0.001 and
/// from a million on.
///
/// ```
/// use firebrand_trainer::progress::format_metric;
/// assert_eq!(format_metric(0.123456), "0.1235");
/// assert_eq!(format_metric(3e-5), "3e-5");
/// ```
#[must_use]
pub fn format_metric(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan".to_owned()
        } else {
            format!("{value}")
        };
    }
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return "0".to_owned();
    }
    // The limits are those of the rounded number.
    if (9.9995e-4..999_999.5).contains(&magnitude) {
        let digits_before_point = magnitude.log10().floor() as i32 + 1;
        let decimals = usize::try_from(4 - digits_before_point).unwrap_or(0);
        return trim_zeros(&format!("{value:.decimals$}")).to_owned();
    }
    let text = format!("{value:.3e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => format!("{}e{exponent}", trim_zeros(mantissa)),
        None => text,
    }
}

fn trim_zeros(number: &str) -> &str {
    if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    }
}

/// `train_loss 0.1235  lr 0.001`
pub(super) fn format_metrics(metrics: &[(String, f64)]) -> String {
    let parts: Vec<_> = metrics
        .iter()
        .map(|(name, value)| format!("{name} {}", format_metric(*value)))
        .collect();
    parts.join("  ")
}

/// The final values of an evaluation as a table under its name, sorted as given.
#[must_use]
pub fn results_table(title: &str, metrics: &[(String, f64)]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([title, "value"]);
    for (name, value) in metrics {
        table.add_row([name.clone(), format_metric(*value)]);
    }
    table.to_string()
}

/// A time on a clock: `00:07`, `12:30`, `1:02:03`.
pub(super) fn format_clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes:02}:{seconds:02}")
    }
}

/// A span of time: `0.42s`, `12.3s`, `3m 05s`, `2h 03m`.
pub(super) fn format_span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.2}s", time.as_secs_f64()),
        10..60 => format!("{:.1}s", time.as_secs_f64()),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// Batches per second, or seconds per batch if that is the number above one.
pub(super) fn format_rate(per_second: Option<f64>) -> String {
    match per_second {
        Some(rate) if rate >= 1.0 => format!("{} it/s", format_metric(round_to_three(rate))),
        Some(rate) if rate > 0.0 => format!("{} s/it", format_metric(round_to_three(1.0 / rate))),
        _ => "- it/s".to_owned(),
    }
}

/// Three digits are as many as a rate has.
fn round_to_three(value: f64) -> f64 {
    let unit = 10_f64.powf(value.log10().floor() - 2.0);
    (value / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_four_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (-0.5, "-0.5"),
            (0.123_456, "0.1235"),
            (f64::from(0.001_f32), "0.001"),
            (0.000_999_96, "0.001"),
            (0.000_123_45, "1.234e-4"),
            (1e-5, "1e-5"),
            (12.3456, "12.35"),
            (0.999_99, "1"),
            (999.96, "1000"),
            (1234.56, "1235"),
            (123_456.0, "123456"),
            (999_999.7, "1e6"),
            (-1.5e12, "-1.5e12"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(format_metric(value), expected, "{value:?}");
        }
    }

    #[test]
    fn times_and_rates() {
        let clocks = [7, 750, 3723].map(|s| format_clock(Duration::from_secs(s)));
        assert_eq!(clocks, ["00:07", "12:30", "1:02:03"]);
        let spans = [0.4242, 12.34, 185.0, 7400.0].map(|s| format_span(Duration::from_secs_f64(s)));
        assert_eq!(spans, ["0.42s", "12.3s", "3m 05s", "2h 03m"]);
        let rates = [
            None,
            Some(0.0),
            Some(0.4),
            Some(1.0),
            Some(80.123),
            Some(12_345.0),
        ]
        .map(format_rate);
        assert_eq!(
            rates,
            [
                "- it/s",
                "- it/s",
                "2.5 s/it",
                "1 it/s",
                "80.1 it/s",
                "12300 it/s"
            ]
        );
    }

    #[test]
    fn a_table_of_results() {
        let table = results_table(
            "test",
            &[("test_loss".to_owned(), 0.123_456), ("test_acc".to_owned(), 0.97)],
        );
        let expected = "\
┌───────────┬────────┐
│ test      ┆ value  │
╞═══════════╪════════╡
│ test_loss ┆ 0.1235 │
│ test_acc  ┆ 0.97   │
└───────────┴────────┘";
        assert_eq!(table, expected);
    }
}
