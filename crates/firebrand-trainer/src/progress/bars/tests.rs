use std::time::Duration;

use indicatif::ProgressDrawTarget;

use super::super::test_screen::Screen;
use super::*;

fn bars(width: usize) -> (Bars, Screen) {
    let screen = Screen::new(width);
    let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
    (Bars::new(Arc::new(Terminal::new(target, None))), screen)
}

#[test]
fn templates_are_valid() {
    for template in [BAR, SPINNER] {
        ProgressStyle::with_template(template).unwrap();
    }
}

#[test]
fn a_bar_shows_position_times_speed_and_metrics() {
    let (mut bars, screen) = bars(100);
    let begun = Instant::now().checked_sub(Duration::from_secs(20_000)).unwrap();
    let stage = Stage::new("train epoch 3", Some(200), 100, begun);
    bars.begin(&stage);
    bars.advance(50);
    bars.show_metrics(&[("train_loss".to_owned(), 0.123_456), ("lr".to_owned(), 1e-3)]);
    assert_eq!(
        screen.text(),
        "train epoch 3 ━━━━━━━╸── 150/200 [5:33:20<5:33:20, 400 s/it] train_loss 0.1235  lr 0.001"
    );
}

#[test]
fn a_stage_of_unknown_length_has_a_spinner() {
    let (mut bars, screen) = bars(100);
    bars.begin(&Stage::new("predict", None, 0, Instant::now()));
    bars.advance(3);
    let text = screen.text();
    assert!(
        text.starts_with("predict ") && text.contains(" 3 [00:00, "),
        "{text}"
    );
}

#[test]
fn inner_bars_stand_below_and_leave_a_line_above() {
    let (mut bars, screen) = bars(70);
    let begun = Instant::now();
    let outer = Stage::new("train epoch 0", Some(10), 0, begun);
    bars.begin(&outer);
    let mut inner = Stage::new("validate", Some(2), 0, begun);
    bars.begin(&inner);
    bars.advance(2);
    let lines: Vec<_> = screen
        .text()
        .lines()
        .map(|line| line.chars().take(13).collect::<String>())
        .collect();
    assert_eq!(lines, ["train epoch 0", "validate ━━━━"]);

    inner.position = 2;
    inner.metrics = vec![("val_loss".to_owned(), 0.5)];
    bars.end(&inner, begun + Duration::from_secs(4));
    bars.advance(1);
    let text = screen.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "validate: 2/2 in 4.00s, 2 s/it  val_loss 0.5");
    assert!(
        lines[1].starts_with("train epoch 0 ━╸─") && lines[1].contains(" 1/10 ["),
        "{text}"
    );
    assert_eq!(lines.len(), 2);
}

#[test]
fn metrics_are_cut_at_the_edge_of_a_narrow_screen() {
    let (mut bars, screen) = bars(64);
    bars.begin(&Stage::new("train epoch 0", Some(10), 0, Instant::now()));
    let metrics: Vec<_> = (0..20).map(|i| (format!("metric_{i}"), 0.5)).collect();
    bars.show_metrics(&metrics);
    bars.advance(1);
    assert_eq!(screen.text().lines().count(), 1, "{}", screen.text());
}

#[test]
fn bars_that_are_dropped_leave_a_clean_screen() {
    let (mut bars, screen) = bars(70);
    bars.begin(&Stage::new("train epoch 0", Some(10), 0, Instant::now()));
    bars.begin(&Stage::new("validate", Some(10), 0, Instant::now()));
    bars.print("a line");
    assert_eq!(screen.text().lines().count(), 3);
    drop(bars);
    assert_eq!(screen.text(), "a line");
}
