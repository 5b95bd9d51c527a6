use indicatif::ProgressStyle;

use super::super::test_screen::Screen;
use super::*;

fn terminal() -> (Arc<Terminal>, Screen) {
    let screen = Screen::new(40);
    let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
    (Arc::new(Terminal::new(target, None)), screen)
}

fn add_bar(terminal: &Terminal, name: &'static str) -> ProgressBar {
    terminal.add(Some(10), |bar| {
        bar.set_style(ProgressStyle::with_template("{prefix} {pos}/{len}").unwrap());
        bar.set_prefix(name);
    })
}

/// Runs a function while its thread unwinds from a panic.
struct OnUnwind<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnUnwind<F> {
    fn drop(&mut self) {
        assert!(thread::panicking());
        (self.0)();
    }
}

fn unwind(f: impl FnMut()) {
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _guard = OnUnwind(f);
        // Not a panic, so that the hook of the tests says nothing.
        resume_unwind(Box::new("test"));
    }));
    assert!(unwound.is_err());
}

#[test]
fn lines_stand_above_the_bars() {
    let (terminal, screen) = terminal();
    let outer = add_bar(&terminal, "train");
    let inner = add_bar(&terminal, "validate");
    terminal.print("a log message that is longer than the screen is wide\n");
    outer.inc(1);
    terminal.suspend(|| screen.feed("output of the program\n"));
    inner.inc(2);
    assert_eq!(
        screen.text(),
        "a log message that is longer than the sc\nreen is wide\noutput of the program\ntrain 1/10\nvalidate 2/10"
    );
    terminal.remove(inner);
    outer.inc(1);
    assert!(
        screen.text().ends_with("program\ntrain 2/10"),
        "{}",
        screen.text()
    );
    terminal.remove(outer);
    assert!(screen.text().ends_with("program"), "{}", screen.text());
    assert!(!screen.cursor_hidden());
}

#[test]
fn a_panicking_thread_suspends_prints_and_removes() {
    let (terminal, screen) = terminal();
    let bar = add_bar(&terminal, "train");
    unwind(|| {
        terminal.suspend(|| {
            assert_eq!(screen.text(), "", "the bar is away");
            screen.feed("the message of the panic\n");
        });
        terminal.print("a log message of a destructor");
    });
    bar.inc(1);
    assert_eq!(
        screen.text(),
        "the message of the panic\na log message of a destructor\ntrain 1/10"
    );

    let mut bar = Some(bar);
    unwind(|| terminal.remove(bar.take().unwrap()));
    assert_eq!(
        screen.text(),
        "the message of the panic\na log message of a destructor"
    );
}

#[test]
fn bars_of_other_threads_wait_while_a_panic_is_reported() {
    let (terminal, screen) = terminal();
    let bar = add_bar(&terminal, "train");
    thread::scope(|scope| {
        scope.spawn(|| (0..200).for_each(|_| bar.inc(1)));
        unwind(|| {
            terminal.suspend(|| {
                screen.feed("first line, ");
                thread::sleep(Duration::from_millis(50));
                screen.feed("and its end\n");
            });
        });
    });
    bar.tick();
    assert_eq!(screen.text(), "first line, and its end\ntrain 200/10");
}

#[test]
fn what_runs_while_bars_are_suspended_may_print_and_panic() {
    let (terminal, screen) = terminal();
    let bar = add_bar(&terminal, "train");
    // Both would wait for a lock of this thread for ever if they took it.
    terminal.suspend(|| terminal.suspend(|| terminal.print("(from the tests of the terminal)")));
    unwind(|| terminal.suspend(|| terminal.print("(from the tests of the terminal)")));

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        terminal.suspend(|| -> () { resume_unwind(Box::new("test")) });
    }));
    assert!(panicked.is_err());
    bar.inc(3);
    assert_eq!(screen.text(), "train 3/10");
}

#[test]
fn without_bars_nothing_is_drawn() {
    let (terminal, screen) = terminal();
    assert_eq!(terminal.suspend(|| 7), 7);
    terminal.print("(from the tests of the terminal)");
    assert_eq!(screen.text(), "");
}
