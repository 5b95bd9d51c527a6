use super::*;
use crate::callbacks::test_fixture::{Fixture, lazy_tiny};

/// The cells of the row of a path.
fn row(text: &str, path: &str) -> Vec<String> {
    let line = text.lines().find(|line| {
        line.trim_start_matches(['│', ' '])
            .starts_with(&format!("{path} "))
    });
    let line = line.unwrap_or_else(|| panic!("no row of {path} in\n{text}"));
    line.trim_matches('│')
        .split(['┆', '│'])
        .map(|cell| cell.trim().to_owned())
        .collect()
}

#[test]
fn rows_and_totals_add_up() {
    let fixture = Fixture::new();
    // body: 2·3 + 3; norm: 3 + 3 and two running statistics of 3; head: 3.
    let frozen = fixture.table.index_of_path("body.bias").unwrap();
    let trained = |index| index != frozen;
    let text = summary_table(&*fixture.module, &fixture.table, &trained, SummaryDepth::Auto);
    assert_eq!(
        row(&text, "body.weight"),
        ["body.weight", "[2, 3]", "f32", "6", "24 B", "yes"]
    );
    assert_eq!(
        row(&text, "body.bias"),
        ["body.bias", "[3]", "f32", "3", "12 B", "no"]
    );
    assert_eq!(
        row(&text, "norm.running_mean"),
        ["norm.running_mean", "[3]", "f32", "", "12 B", "buffer"]
    );
    assert!(
        text.ends_with("\n18 parameters, 15 trained; buffers of 6 elements; 96 B"),
        "{text}"
    );

    let text = summary_table(
        &*fixture.module,
        &fixture.table,
        &trained,
        SummaryDepth::Levels(1),
    );
    assert_eq!(
        row(&text, "body"),
        ["body", "2 tensors", "f32", "9", "36 B", "67 %"]
    );
    assert_eq!(
        row(&text, "norm"),
        ["norm", "4 tensors", "f32", "6", "48 B", "yes"]
    );
    let text = summary_table(
        &*fixture.module,
        &fixture.table,
        &trained,
        SummaryDepth::Levels(0),
    );
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn lazy_values_stay_lazy() {
    let mut module = lazy_tiny();
    let table = ParamTable::take_over(&mut *module).unwrap();
    let text = summary_table(&*module, &table, &|_| true, SummaryDepth::Auto);
    assert_eq!(
        row(&text, "head.weight"),
        ["head.weight", "[3, 1]", "not materialised", "3", "", "yes"]
    );
    assert!(text.contains("≥ 24 B"), "running statistics are there: {text}");
    let mut still_lazy = Lazy(0);
    module.visit_params(&mut still_lazy);
    assert_eq!(still_lazy.0, 5);
}

struct Lazy(usize);

impl ParamVisitor for Lazy {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        self.0 += usize::from(!info.initialized);
        false
    }

    fn visit(&mut self, _: &ParamInfo<'_>, _: AnyTensor, _: bool) {}
}

#[test]
fn numbers_are_readable() {
    assert_eq!(
        (grouped(7), grouped(1_000), grouped(1_234_567)),
        ("7".into(), "1,000".into(), "1,234,567".into())
    );
    assert_eq!(
        (format_bytes(1023), format_bytes(1536), format_bytes(3 << 30)),
        ("1023 B".into(), "1.5 KiB".into(), "3.0 GiB".into())
    );
    assert_eq!(
        (
            group("a.b.c", 1),
            group("a.b.c", 2),
            group("a.b.c", 3),
            group("a", 2)
        ),
        ("a", "a.b", "a.b.c", "a")
    );
}

fn value(path: &str) -> Value<'_> {
    let shape = "[1]".to_owned();
    Value {
        path,
        shape,
        dtype: Some(DType::F32),
        elements: 1,
        buffer: false,
        trained: true,
        tied_to: None,
    }
}

#[test]
fn large_modules_are_summed_up_until_they_fit() {
    let paths: Vec<String> = (0..45).map(|n| format!("net.block{}.w{n}", n / 9)).collect();
    let values: Vec<Value> = paths.iter().map(|path| value(path)).collect();
    assert_eq!(rows_that_fit(&values[..40]).len(), 40);
    let rows = rows_that_fit(&values);
    assert_eq!(rows.len(), 5);
    assert_eq!(rows[4], ["net.block4", "9 tensors", "f32", "9", "36 B", "yes"]);
}

#[test]
fn tied_parameters_count_once() {
    let values = || {
        [
            value("a.x"),
            value("a.z"),
            Value {
                tied_to: Some("a.x"),
                ..value("b.y")
            },
        ]
    };
    let parameters: Vec<String> = rows(&values(), 2)
        .into_iter()
        .map(|[_, _, _, parameters, ..]| parameters)
        .collect();
    assert_eq!(parameters, ["1", "1", "tied to a.x"]);
    assert_eq!(totals(&values()), "2 parameters, 2 trained; no buffers; 8 B");
}
