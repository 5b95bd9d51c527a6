use crate::environment::shown;
use crate::{Error, Result};

/// The most nodes that a list may stand for, as in Slurm itself.
pub const MAX_NODES: usize = 65536;

/// The hosts of a list as Slurm writes it, in order.
///
/// A host is text and any number of `[…]` groups; a group holds numbers and ranges, and the last group varies fastest. A range
/// is written with the width of its first number: `[08-10]` is 08, 09, 10.
///
/// ```
/// use firebrand_launch::slurm::expand_node_list;
/// assert_eq!(expand_node_list("a[1-2,05],b7")?, ["a1", "a2", "a05", "b7"]);
/// assert_eq!(expand_node_list("r[1-2]n[09-10]-ib")?, ["r1n09-ib", "r1n10-ib", "r2n09-ib", "r2n10-ib"]);
/// # Ok::<(), firebrand_launch::Error>(())
/// ```
///
/// # Errors
///
/// If the list is no such list, or stands for more than [`MAX_NODES`] hosts.
pub fn expand_node_list(list: &str) -> Result<Vec<String>> {
    let failed = |reason: String| Error::NodeList {
        list: shown(list),
        reason,
    };
    let mut hosts = Vec::new();
    for pattern in split_outside_brackets(list).map_err(failed)? {
        let parts = parse(pattern).map_err(failed)?;
        let count = parts
            .iter()
            .try_fold(1, |count: usize, part| count.checked_mul(part.count()));
        if count
            .and_then(|count| count.checked_add(hosts.len()))
            .is_none_or(|total| total > MAX_NODES)
        {
            return Err(failed(format!("it stands for more than {MAX_NODES} nodes")));
        }
        expand(&parts, String::new(), &mut hosts);
    }
    Ok(hosts)
}

/// A piece of the name of a host.
enum Part<'a> {
    Text(&'a str),
    Group(Vec<Range>),
}

/// Numbers that are written with at least so many digits.
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Part<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Text(_) => 1,
            Self::Group(ranges) => ranges.iter().fold(0, |count: usize, range| {
                let length = (range.last - range.first).saturating_add(1);
                count.saturating_add(usize::try_from(length).unwrap_or(usize::MAX))
            }),
        }
    }
}

fn expand(parts: &[Part<'_>], host: String, hosts: &mut Vec<String>) {
    let Some((part, rest)) = parts.split_first() else {
        hosts.push(host);
        return;
    };
    match part {
        Part::Text(text) => expand(rest, host + text, hosts),
        Part::Group(ranges) => {
            for range in ranges {
                for number in range.first..=range.last {
                    expand(
                        rest,
                        format!("{host}{number:0width$}", width = range.width),
                        hosts,
                    );
                }
            }
        }
    }
}

fn split_outside_brackets(list: &str) -> std::result::Result<Vec<&str>, String> {
    let mut patterns = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if inside => return Err("a '[' stands within another".to_owned()),
            ']' if !inside => return Err("a ']' has no '['".to_owned()),
            '[' | ']' => inside = c == '[',
            ',' if !inside => {
                patterns.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("a '[' has no ']'".to_owned());
    }
    patterns.push(&list[start..]);
    Ok(patterns)
}

/// The parts of one pattern, whose brackets are known to be in order.
fn parse(pattern: &str) -> std::result::Result<Vec<Part<'_>>, String> {
    /// No name has more, and each one is a level of recursion.
    const MAX_PARTS: usize = 32;
    if pattern.is_empty() {
        return Err("a host has no name".to_owned());
    }
    let mut parts = Vec::new();
    let mut rest = pattern;
    while !rest.is_empty() {
        if parts.len() == MAX_PARTS {
            return Err(format!("a host has more than {MAX_PARTS} parts"));
        }
        let group = rest.strip_prefix('[').and_then(|inner| inner.split_once(']'));
        if let Some((group, after)) = group {
            let ranges: std::result::Result<_, _> = group.split(',').map(range).collect();
            parts.push(Part::Group(ranges?));
            rest = after;
        } else {
            let (text, after) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
            let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
            if let Some(odd) = text.chars().find(|c| !named(*c)) {
                return Err(format!("no name of a host has {odd:?}"));
            }
            parts.push(Part::Text(text));
            rest = after;
        }
    }
    Ok(parts)
}

fn range(text: &str) -> std::result::Result<Range, String> {
    let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<u64>().ok().filter(|_| digits.len() <= 18),
        false => None,
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(from), Some(to)) if from <= to => Ok(Range {
            first: from,
            last: to,
            width: first.len(),
        }),
        (Some(_), Some(_)) => Err(format!("the range {} runs backwards", shown(text))),
        _ => Err(format!("'{}' is neither a number nor a range", shown(text))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_that_slurm_writes() {
        for (list, hosts) in [
            ("node0", vec!["node0"]),
            ("a[1-3,05],b7", vec!["a1", "a2", "a3", "a05", "b7"]),
            ("n[08-11]", vec!["n08", "n09", "n10", "n11"]),
            ("n[9-11]", vec!["n9", "n10", "n11"]),
            ("n[098-101]", vec!["n098", "n099", "n100", "n101"]),
            (
                "rack[1-2]n[01-02]",
                vec!["rack1n01", "rack1n02", "rack2n01", "rack2n02"],
            ),
            (
                "gpu-[1,3].example.org",
                vec!["gpu-1.example.org", "gpu-3.example.org"],
            ),
            ("[10-11]", vec!["10", "11"]),
        ] {
            assert_eq!(expand_node_list(list).unwrap(), hosts, "{list}");
        }
    }

    #[test]
    fn lists_that_make_no_sense_are_refused_with_the_reason() {
        for (list, reason) in [
            ("", "no name"),
            ("a,,b", "no name"),
            ("a[1-", "has no ']'"),
            ("a]1", "has no '['"),
            ("a[1[2]]", "within another"),
            ("a[]", "neither a number"),
            ("a[3-1]", "backwards"),
            ("a[x]", "neither a number"),
            ("a[1-2-3]", "neither a number"),
            ("a[-1]", "neither a number"),
            ("a b", "no name of a host has ' '"),
            ("a[0-65536]", "more than 65536"),
            ("a[1-999][1-999]", "more than 65536"),
            ("a[0-999999999999999999]", "more than 65536"),
            ("a[0-9999999999999999999999]", "neither a number"),
        ] {
            let error = expand_node_list(list).unwrap_err().to_string();
            assert!(error.contains(reason), "{list}: {error}");
        }
        assert_eq!(expand_node_list("a[0-65535]").unwrap().len(), MAX_NODES);
        assert!(expand_node_list(&"[1]".repeat(10_000)).is_err());
    }

    /// A host as text and groups of (first, count, width).
    type Pattern = Vec<(String, Option<Vec<(u32, u32, usize)>>)>;

    fn padded(number: u32, width: usize) -> String {
        let digits = number.to_string();
        "0".repeat(width.saturating_sub(digits.len())) + &digits
    }

    /// What the pattern stands for, without looking at any list.
    fn reference(pattern: &Pattern) -> Vec<String> {
        let mut hosts = vec![String::new()];
        for (text, group) in pattern {
            let numbers: Vec<String> = match group {
                None => vec![String::new()],
                Some(ranges) => ranges
                    .iter()
                    .flat_map(|(first, count, width)| (*first..first + count).map(|n| padded(n, *width)))
                    .collect(),
            };
            hosts = hosts
                .iter()
                .flat_map(|host| numbers.iter().map(move |number| format!("{host}{text}{number}")))
                .collect();
        }
        hosts
    }

    fn written(pattern: &Pattern) -> String {
        let range = |(first, count, width): &(u32, u32, usize)| match count {
            1 => padded(*first, *width),
            _ => format!("{}-{}", padded(*first, *width), padded(first + count - 1, *width)),
        };
        pattern
            .iter()
            .map(|(text, group)| match group {
                None => text.clone(),
                Some(ranges) => {
                    let ranges: Vec<String> = ranges.iter().map(range).collect();
                    format!("{text}[{}]", ranges.join(","))
                }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn a_written_list_expands_to_what_it_was_written_from(
            patterns in prop::collection::vec(
                prop::collection::vec(
                    (
                        "[a-z][a-z.-]{0,4}",
                        prop::option::of(prop::collection::vec((0u32..1200, 1u32..5, 1usize..5), 1..3)),
                    ),
                    1..4,
                ),
                1..4,
            )
        ) {
            let list: Vec<String> = patterns.iter().map(written).collect();
            let expected: Vec<String> = patterns.iter().flat_map(reference).collect();
            prop_assert_eq!(expand_node_list(&list.join(",")).unwrap(), expected);
        }

        #[test]
        fn garbage_is_refused_or_expanded_but_never_panics(list in "[a-c0-9\\[\\],\\- é]{0,40}|\\PC{0,60}") {
            if let Ok(hosts) = expand_node_list(&list) {
                prop_assert!(!hosts.is_empty() && hosts.len() <= MAX_NODES);
            }
        }
    }
}
