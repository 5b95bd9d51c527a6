use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use indicatif::ProgressDrawTarget;

use super::super::test_screen::Screen;
use super::*;

/// What was written, line by line.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn take_lines(&self) -> Vec<String> {
        let text = self.text();
        self.0.lock().unwrap().clear();
        text.lines().map(str::to_owned).collect()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A clock that the test moves, in milliseconds.
#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn pass(&self, milliseconds: u64) {
        self.0.fetch_add(milliseconds, Ordering::SeqCst);
    }

    fn set(&self, progress: &mut ProgressReporter) {
        let (start, clock) = (Instant::now(), self.clone());
        progress.clock = Box::new(move || start + Duration::from_millis(clock.0.load(Ordering::SeqCst)));
    }
}

fn lines() -> (ProgressReporter, Output, Clock) {
    let (output, clock) = (Output::default(), Clock::default());
    let mut progress = ProgressReporter::with_output(Box::new(output.clone()));
    clock.set(&mut progress);
    (progress, output, clock)
}

fn loss(value: f64) -> Vec<(String, f64)> {
    vec![("train_loss".to_owned(), value)]
}

#[test]
fn lines_show_start_end_and_values_in_between() {
    let (mut progress, output, clock) = lines();
    progress.begin_fit("fit");
    progress.begin_stage("train epoch 0", Some(50), 10);
    assert_eq!(
        output.take_lines(),
        ["train epoch 0: 50 batches, from batch 10 on"]
    );
    // One second a batch: a line as soon as a tenth is done, but ten seconds after the last one at the earliest.
    for step in 11..=50 {
        clock.pass(1000);
        progress.advance(1);
        if progress.wants_metrics() {
            progress.set_metrics(&loss(1.0 / f64::from(step)));
        }
    }
    assert_eq!(
        output.take_lines(),
        [
            "train epoch 0: 20/50 (40%), 00:10<00:30, 1 it/s  train_loss 0.05",
            "train epoch 0: 30/50 (60%), 00:20<00:20, 1 it/s  train_loss 0.03333",
            "train epoch 0: 40/50 (80%), 00:30<00:10, 1 it/s  train_loss 0.025",
            "train epoch 0: 50/50 (100%), 00:40<00:00, 1 it/s  train_loss 0.02",
        ]
    );
    progress.set_metrics(&loss(0.01));
    progress.begin_stage("validate", Some(1), 0);
    clock.pass(500);
    progress.advance(1);
    progress.end_stage();
    progress.end_stage();
    progress.finish();
    assert_eq!(
        output.take_lines(),
        [
            "validate: 1/1 in 0.50s, 2 it/s",
            "train epoch 0: 50/50 in 40.0s, 1 it/s  train_loss 0.01",
            "fit: finished in 40.5s"
        ],
        "the time of the validation is not the training's"
    );
}

#[test]
fn a_slow_stage_and_one_of_unknown_length_are_heard_of_every_minute() {
    for total in [Some(1_000_000), None] {
        let (mut progress, output, clock) = lines();
        progress.begin_stage("train epoch 0", total, 0);
        for _ in 0..300 {
            clock.pass(1000);
            progress.advance(1);
        }
        let lines = output.take_lines();
        assert_eq!(lines.len(), 5, "{lines:?}");
        let expected = if total.is_some() {
            "train epoch 0: 61/1000000 (0%), "
        } else {
            "train epoch 0: 61, 01:01,"
        };
        assert!(lines[1].starts_with(expected), "{}", lines[1]);
    }
}

#[test]
fn many_short_stages_have_one_line_each() {
    let (mut progress, output, clock) = lines();
    for epoch in 0..5 {
        progress.begin_stage(&format!("train epoch {epoch}"), Some(4), 0);
        clock.pass(100);
        progress.advance(4);
        progress.end_stage();
    }
    assert_eq!(output.take_lines().len(), 6);
}

#[test]
fn bars_ask_for_metrics_ten_times_a_second() {
    let screen = Screen::new(100);
    let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
    let bars = Bars::new(Arc::new(Terminal::new(target, None)));
    let mut progress = ProgressReporter::from_display(Display::Bars(bars));
    let (output, clock) = (Output::default(), Clock::default());
    clock.set(&mut progress);
    progress.results = Box::new(output.clone());

    assert!(!progress.wants_metrics(), "no stage");
    progress.begin_stage("train epoch 0", Some(1000), 0);
    let mut num_asked = 0;
    for _ in 0..1000 {
        progress.advance(1);
        if progress.wants_metrics() {
            num_asked += 1;
            progress.set_metrics(&loss(0.5));
        }
        clock.pass(1);
    }
    assert_eq!(num_asked, 10);
    assert!(screen.text().ends_with("train_loss 0.5"), "{}", screen.text());

    progress.println("a note");
    progress.results("test", &loss(0.5));
    assert_eq!(output.text().lines().count(), 5, "results go elsewhere");
    progress.end_stage();
    progress.finish();
    assert_eq!(
        screen.text(),
        "a note\ntrain epoch 0: 1000/1000 in 1.00s, 1000 it/s  train_loss 0.5"
    );
}

#[test]
fn off_shows_nothing_and_wants_nothing() {
    let mut progress = ProgressReporter::new(ProgressMode::Off);
    let output = Output::default();
    progress.results = Box::new(output.clone());
    assert!(progress.is_off());
    progress.begin_fit("fit");
    progress.begin_stage("train epoch 0", Some(10), 0);
    progress.advance(1);
    assert!(!progress.wants_metrics());
    progress.results("test", &loss(0.5));
    progress.end_stage();
    progress.end_stage();
    progress.finish();
    assert_eq!(output.text(), "");
}
