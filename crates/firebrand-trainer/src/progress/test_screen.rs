//! A terminal's screen in memory, as far as bars use one.

use std::io;
use std::sync::{Arc, Mutex};

use indicatif::TermLike;

const HEIGHT: u16 = 40;

/// Understands text, cursor movements and the erasing of lines; colours are ignored.
#[derive(Clone, Debug)]
pub struct Screen {
    width: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    cursor_hidden: bool,
    /// A control sequence that has begun.
    sequence: Option<String>,
}

impl Screen {
    pub fn new(width: usize) -> Self {
        Self {
            width,
            state: Arc::default(),
        }
    }

    /// Shows what a program writes to the terminal.
    pub fn feed(&self, text: &str) {
        let mut state = self.state.lock().unwrap();
        text.chars().for_each(|c| state.take(c, self.width));
    }

    /// What stands on the screen, without spaces and empty lines at the ends.
    pub fn text(&self) -> String {
        let state = self.state.lock().unwrap();
        let lines: Vec<_> = state
            .lines
            .iter()
            .map(|line| line.iter().collect::<String>().trim_end().to_owned())
            .collect();
        lines.join("\n").trim_end().to_owned()
    }

    pub fn cursor_hidden(&self) -> bool {
        self.state.lock().unwrap().cursor_hidden
    }
}

impl State {
    fn take(&mut self, c: char, width: usize) {
        if let Some(mut sequence) = self.sequence.take() {
            sequence.push(c);
            if sequence.len() > 1 && c.is_ascii_alphabetic() {
                self.control(&sequence);
            } else {
                self.sequence = Some(sequence);
            }
            return;
        }
        match c {
            '\x1b' => self.sequence = Some(String::new()),
            '\r' => self.column = 0,
            '\n' => (self.row, self.column) = (self.row + 1, 0),
            _ => {
                // The cursor stays in the last column until there is more to show.
                if self.column == width {
                    (self.row, self.column) = (self.row + 1, 0);
                }
                let column = self.column;
                let line = self.line();
                line.resize(line.len().max(column + 1), ' ');
                line[column] = c;
                self.column += 1;
            }
        }
    }

    fn control(&mut self, sequence: &str) {
        let (parameter, command) = sequence[1..].split_at(sequence.len() - 2);
        let number = parameter.parse().unwrap_or(1);
        match command {
            "A" => self.row = self.row.saturating_sub(number),
            "B" => self.row += number,
            "C" => self.column += number,
            "D" => self.column = self.column.saturating_sub(number),
            "K" if parameter == "2" => self.line().clear(),
            "K" => {
                let column = self.column;
                self.line().truncate(column);
            }
            "h" | "l" if parameter == "?25" => self.cursor_hidden = command == "l",
            "m" => {}
            _ => panic!("the screen does not know the sequence {sequence:?}"),
        }
    }

    fn line(&mut self) -> &mut Vec<char> {
        self.lines.resize(self.lines.len().max(self.row + 1), Vec::new());
        &mut self.lines[self.row]
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        self.width as u16
    }

    fn height(&self) -> u16 {
        HEIGHT
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.feed(&format!("{text}\n"));
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.feed(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.feed("\r\x1b[2K");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Screen {
    fn move_cursor(&self, n: usize, command: char) -> io::Result<()> {
        if n > 0 {
            self.feed(&format!("\x1b[{n}{command}"));
        }
        Ok(())
    }
}
