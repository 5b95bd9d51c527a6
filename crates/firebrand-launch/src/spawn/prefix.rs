/// The longest line that is shown as one.
pub(super) const MAX_LINE: usize = 16 * 1024;

/// Puts a prefix before every line of a stream of any bytes.
///
/// A carriage return ends a line too, since what rewrites its line would rewrite the prefix. A line that is longer than
/// [`MAX_LINE`] is shown as several.
pub(super) struct Prefixer {
    prefix: Vec<u8>,
    line: Vec<u8>,
    after_return: bool,
}

impl Prefixer {
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.as_bytes().to_vec(),
            line: Vec::new(),
            after_return: false,
        }
    }

    /// Whether part of a line is being kept.
    pub fn is_pending(&self) -> bool {
        !self.line.is_empty()
    }

    /// Takes the next bytes and writes the lines that are complete.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = MAX_LINE - self.line.len();
            let window = &bytes[..bytes.len().min(room)];
            let Some(at) = window.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.line.extend_from_slice(window);
                self.after_return = false;
                bytes = &bytes[window.len()..];
                if self.line.len() == MAX_LINE {
                    self.cut(out);
                }
                continue;
            };
            self.line.extend_from_slice(&window[..at]);
            let (end, first) = (window[at], at == 0);
            bytes = &bytes[at + 1..];
            // The second half of "\r\n", or a return that begins to rewrite an empty line, ends nothing.
            let nothing = self.line.is_empty() && (end == b'\r' || (first && self.after_return));
            self.after_return = end == b'\r';
            if !nothing {
                self.flush_line(out);
            }
        }
    }

    /// Writes what is kept as a line.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        if self.is_pending() {
            self.flush_line(out);
        }
    }

    fn flush_line(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(&self.line);
        out.push(b'\n');
        self.line.clear();
    }

    /// Writes a line that is too long, up to a character that is whole.
    fn cut(&mut self, out: &mut Vec<u8>) {
        let continues = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
        let mut keep = 0;
        for back in 1..=4 {
            let byte = self.line[self.line.len() - back];
            if continues(byte) {
                continue;
            }
            let length = match byte {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            keep = if back < length { back } else { 0 };
            break;
        }
        let rest = self.line.split_off(self.line.len() - keep);
        self.flush_line(out);
        self.line = rest;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(chunks: &[&[u8]]) -> Vec<u8> {
        let mut prefixer = Prefixer::new("[rank 1] ");
        let mut out = Vec::new();
        for chunk in chunks {
            prefixer.push(chunk, &mut out);
        }
        prefixer.flush(&mut out);
        out
    }

    #[test]
    fn every_line_gets_the_prefix_however_it_arrives() {
        let cases: [(&[&[u8]], &str); 7] = [
            (&[b"a\nb\n"], "[rank 1] a\n[rank 1] b\n"),
            (&[b"a", b"b\nc", b"\n"], "[rank 1] ab\n[rank 1] c\n"),
            (&[b"no end"], "[rank 1] no end\n"),
            (&[b"\n\n"], "[rank 1] \n[rank 1] \n"),
            (&[b"a\r\nb\r", b"\nc\n"], "[rank 1] a\n[rank 1] b\n[rank 1] c\n"),
            (
                &[b"10%\r20%\r", b"30%\n"],
                "[rank 1] 10%\n[rank 1] 20%\n[rank 1] 30%\n",
            ),
            (&[b"a\r\n\nb"], "[rank 1] a\n[rank 1] \n[rank 1] b\n"),
        ];
        for (chunks, expected) in cases {
            assert_eq!(String::from_utf8(shown(chunks)).unwrap(), expected);
        }
    }

    #[test]
    fn huge_lines_are_cut_between_characters() {
        let text = "é".repeat(MAX_LINE);
        let line = format!("x{text}");
        let out = String::from_utf8(shown(&[line.as_bytes()])).unwrap();
        assert_eq!(out.lines().count(), 3);
        let joined: String = out
            .lines()
            .map(|line| line.strip_prefix("[rank 1] ").unwrap())
            .collect();
        assert_eq!(joined, line);
        assert!(out.lines().all(|line| line.len() <= MAX_LINE + "[rank 1] ".len()));
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_lose_nothing(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cut in 0usize..200,
        ) {
            let cut = cut.min(bytes.len());
            let whole = shown(&[&bytes]);
            prop_assert_eq!(&whole, &shown(&[&bytes[..cut], &bytes[cut..]]));
            let kept: Vec<u8> = whole
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
                .flat_map(|line| line.strip_prefix(b"[rank 1] ").unwrap().to_vec())
                .collect();
            let expected: Vec<u8> = bytes.iter().copied().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
            prop_assert_eq!(kept, expected);
        }
    }
}
