/// A name with wildcards: `*` stands for any characters but a dot, `**` for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Segment,
    Anything,
}

impl Pattern {
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        let mut parts = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (part, used) = if rest.starts_with("**") {
                (Part::Anything, 2)
            } else if rest.starts_with('*') {
                (Part::Segment, 1)
            } else {
                let end = rest.find('*').unwrap_or(rest.len());
                (Part::Text(rest[..end].to_owned()), end)
            };
            parts.push(part);
            rest = &rest[used..];
        }
        Self { text, parts }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn num_wildcards(&self) -> usize {
        self.parts
            .iter()
            .filter(|part| !matches!(part, Part::Text(_)))
            .count()
    }

    pub fn matches(&self, name: &str) -> bool {
        self.captures(name).is_some()
    }

    /// What each wildcard stands for if the whole name matches: the shortest that lets the rest match.
    pub fn captures<'n>(&self, name: &'n str) -> Option<Vec<&'n str>> {
        let mut captures = Vec::new();
        captures_of(&self.parts, name, &mut captures).then_some(captures)
    }

    /// The text with its wildcards replaced in order.
    pub fn fill(&self, captures: &[&str]) -> String {
        let mut captures = captures.iter();
        let fill = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            _ => captures.next().copied().unwrap_or_default().to_owned(),
        };
        self.parts.iter().map(fill).collect()
    }
}

fn captures_of<'n>(parts: &[Part], name: &'n str, captures: &mut Vec<&'n str>) -> bool {
    let Some((part, rest)) = parts.split_first() else {
        return name.is_empty();
    };
    if let Part::Text(text) = part {
        return name
            .strip_prefix(text.as_str())
            .is_some_and(|name| captures_of(rest, name, captures));
    }
    let depth = captures.len();
    let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    for end in ends {
        let (head, tail) = name.split_at(end);
        if *part == Part::Segment && head.contains('.') {
            return false;
        }
        captures.push(head);
        if captures_of(rest, tail, captures) {
            return true;
        }
        captures.truncate(depth);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stop_at_dots_or_do_not() {
        let captures = |pattern: &str, name| Pattern::new(pattern).captures(name).map(|c| c.join("|"));
        assert_eq!(captures("a.*.c", "a.b.c").as_deref(), Some("b"));
        assert_eq!(captures("a.*.c", "a.b.b.c"), None);
        assert_eq!(captures("a.**.c", "a.b.b.c").as_deref(), Some("b.b"));
        assert_eq!(captures("**.fc*", "x.y.fc12").as_deref(), Some("x.y|12"));
        assert_eq!(captures("fc*", "fc").as_deref(), Some(""));
        assert_eq!(captures("fc", "fc1"), None);
        assert_eq!(captures("", ""), Some(String::new()));
        assert_eq!(captures("*", "ä").as_deref(), Some("ä"));
        assert_eq!(captures("**", "").as_deref(), Some(""));
    }

    #[test]
    fn templates_take_the_captures_in_order() {
        let captures = Pattern::new("blocks.*.attn.**")
            .captures("blocks.3.attn.q.weight")
            .unwrap();
        assert_eq!(
            Pattern::new("h.*.self_attn.**").fill(&captures),
            "h.3.self_attn.q.weight"
        );
    }
}
