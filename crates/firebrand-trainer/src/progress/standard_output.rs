use std::io::Write;

/// Writes a line to standard output, above the bars if there are any. A pipe that is closed or a disk that is full is no reason
/// to stop a run, so it is let go then.
pub fn print_line(text: &str) {
    super::suspend(|| {
        let mut output = std::io::stdout().lock();
        let _ = writeln!(output, "{text}").and_then(|()| output.flush());
    });
}
