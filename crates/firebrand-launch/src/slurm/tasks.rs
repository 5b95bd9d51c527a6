use super::MAX_NODES;

/// The number of tasks on each node: `2(x3),1` is 2, 2, 2, 1.
pub(crate) fn expand_tasks_per_node(text: &str) -> Result<Vec<usize>, String> {
    let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<u32>().ok().filter(|number| *number > 0),
        false => None,
    };
    let mut counts = Vec::new();
    for item in text.split(',') {
        let (tasks, nodes) = match item.split_once("(x") {
            Some((tasks, rest)) => (number(tasks), rest.strip_suffix(')').and_then(number)),
            None => (number(item), Some(1)),
        };
        let (Some(tasks), Some(nodes)) = (tasks, nodes) else {
            return Err("is not a list of numbers of tasks".to_owned());
        };
        if counts.len().saturating_add(nodes as usize) > MAX_NODES {
            return Err(format!("stands for more than {MAX_NODES} nodes"));
        }
        counts.extend(std::iter::repeat_n(tasks as usize, nodes as usize));
    }
    Ok(counts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn repeated_numbers_are_written_once() {
        assert_eq!(expand_tasks_per_node("2(x3),1").unwrap(), [2, 2, 2, 1]);
        assert_eq!(expand_tasks_per_node("4").unwrap(), [4]);
        for text in [
            "",
            "0",
            "2(x)",
            "2(x0)",
            "2(x3",
            "a",
            "2,,1",
            "-1",
            "2(x99999999)",
        ] {
            assert!(expand_tasks_per_node(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn runs_expand_to_what_they_were_written_from(
            runs in prop::collection::vec((1usize..100, 1usize..20), 1..10)
        ) {
            let text: Vec<String> = runs.iter().map(|(tasks, nodes)| format!("{tasks}(x{nodes})")).collect();
            let expected: Vec<usize> = runs.iter().flat_map(|(tasks, nodes)| vec![*tasks; *nodes]).collect();
            prop_assert_eq!(expand_tasks_per_node(&text.join(",")).unwrap(), expected);
        }
    }
}
