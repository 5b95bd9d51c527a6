//! Draws what a run logged: `metrics.csv` becomes `curves.svg` beside it.

use std::path::{Path, PathBuf};

use firebrand::Result;
use plotters::prelude::*;

/// The points of a metric: step and value.
type Points = Vec<(f64, f64)>;

/// Draws losses and accuracies over the steps of a run, and returns where.
pub fn draw(run: &Path) -> Result<PathBuf> {
    let svg = run.join("curves.svg");
    let metrics = run.join("metrics.csv");
    let canvas = SVGBackend::new(&svg, (1000, 400)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let (left, right) = canvas.split_horizontally(500);
    panel(&left, "loss", ["train_loss", "val_loss"], &metrics)?;
    panel(&right, "accuracy", ["train_acc", "val_acc"], &metrics)?;
    canvas.present()?;
    drop((left, right, canvas));
    Ok(svg)
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    names: [&str; 2],
    metrics: &Path,
) -> Result<()> {
    let curves = names.map(|name| read(metrics, name));
    let curves: Vec<(&str, Points)> = names
        .into_iter()
        .zip(curves.into_iter().collect::<Result<Vec<_>>>()?)
        .collect();
    let all = || curves.iter().flat_map(|(_, points)| points);
    let last_step = all().map(|(step, _)| *step).fold(1.0, f64::max);
    let lowest = all()
        .map(|(_, value)| *value)
        .fold(f64::INFINITY, f64::min)
        .min(1.0);
    let highest = all()
        .map(|(_, value)| *value)
        .fold(f64::NEG_INFINITY, f64::max)
        .max(lowest + 1e-3);

    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(45)
        .build_cartesian_2d(0.0..last_step, lowest..highest)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("step")
        .x_label_formatter(&|step| format!("{step:.0}"))
        .draw()?;
    for ((name, points), color) in curves.into_iter().zip([BLUE, RED]) {
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// The values of one column of `metrics.csv`, in the rows that have one.
fn read(metrics: &Path, name: &str) -> Result<Points> {
    let mut reader = csv::Reader::from_path(metrics)?;
    let headers = reader.headers()?;
    let column = |name: &str| headers.iter().position(|header| header == name);
    let (Some(step), Some(value)) = (column("step"), column(name)) else {
        return Ok(Points::new());
    };
    let mut points = Points::new();
    for row in reader.records() {
        let row = row?;
        if let (Ok(step), Ok(value)) = (row[step].parse(), row[value].parse()) {
            points.push((step, value));
        }
    }
    Ok(points)
}
