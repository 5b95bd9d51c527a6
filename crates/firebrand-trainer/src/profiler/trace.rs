use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::recorder::Recorder;

/// The file of a rank: the path itself for rank 0, `trace-rank1.json` for `trace.json` and rank 1.
pub(super) fn trace_path(path: &Path, global_rank: usize) -> PathBuf {
    if global_rank == 0 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-rank{global_rank}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Writes the spans in Chrome's trace event format ("complete" events, times in microseconds), which replaces the file whole.
///
/// The format: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.
pub(super) fn write_trace(path: &Path, recorder: &Recorder, global_rank: usize) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    let mut out = BufWriter::new(file.as_file_mut());
    write_events(&mut out, recorder, global_rank)?;
    out.flush()?;
    drop(out);
    file.persist(path)?;
    Ok(())
}

fn write_events(out: &mut impl Write, recorder: &Recorder, global_rank: usize) -> io::Result<()> {
    write!(out, "{{\"traceEvents\":[")?;
    let name = json!({ "name": format!("rank {global_rank}") });
    write!(
        out,
        "{}",
        json!({ "name": "process_name", "ph": "M", "pid": global_rank, "args": name })
    )?;
    let mut threads: Vec<_> = recorder.threads.iter().collect();
    threads.sort();
    for (thread, name) in threads {
        let args = json!({ "name": name });
        let event =
            json!({ "name": "thread_name", "ph": "M", "pid": global_rank, "tid": thread, "args": args });
        write!(out, ",\n{event}")?;
    }
    let names: Vec<String> = recorder
        .totals
        .iter()
        .map(|total| json!(total.name).to_string())
        .collect();
    for event in &recorder.events {
        let Some(name) = names.get(event.name as usize) else {
            continue;
        };
        let (start, duration) = (Microseconds(event.start), Microseconds(event.duration));
        write!(
            out,
            ",\n{{\"name\":{name},\"cat\":\"trainer\",\"ph\":\"X\",\"ts\":{start},\"dur\":{duration},\"pid\":{global_rank},\
             \"tid\":{}}}",
            event.thread
        )?;
    }
    let dropped = recorder.num_dropped;
    writeln!(
        out,
        "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{{\"dropped_events\":{dropped}}}}}"
    )
}

/// Nanoseconds, displayed as microseconds without rounding.
struct Microseconds(u64);

impl std::fmt::Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::profiler::Profiler;

    #[test]
    fn the_trace_has_every_span_with_its_thread() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("traces").join("run.json");
        let profiler = Profiler::simple().chrome_trace(&path).global_rank(2);
        {
            let _outer = profiler.span("outer");
            let _inner = profiler.span("a \"quoted\" name");
            std::thread::sleep(Duration::from_millis(2));
        }
        let writer = profiler.clone();
        let thread = std::thread::Builder::new().name("writer".into());
        thread
            .spawn(move || writer.span("write").stop())
            .unwrap()
            .join()
            .unwrap();

        let written = profiler.write_trace().unwrap().unwrap();
        assert_eq!(written, directory.path().join("traces").join("run-rank2.json"));
        let trace: Value = serde_json::from_str(&fs::read_to_string(&written).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert!(events.iter().all(|event| event["pid"] == 2));
        let find = |name: &str| {
            events
                .iter()
                .find(|event| event["name"] == name && event["ph"] == "X")
                .unwrap()
        };
        let (outer, inner, write) = (find("outer"), find("a \"quoted\" name"), find("write"));
        let time = |event: &Value, key: &str| event[key].as_f64().unwrap();
        assert!(time(inner, "dur") >= 2000.0, "{inner}");
        assert!(time(outer, "ts") <= time(inner, "ts"));
        assert!(time(outer, "ts") + time(outer, "dur") >= time(inner, "ts") + time(inner, "dur"));
        assert_eq!(outer["tid"], inner["tid"]);
        let named = events
            .iter()
            .find(|event| event["ph"] == "M" && event["tid"] == write["tid"])
            .unwrap();
        assert_eq!(named["args"]["name"], "writer");
        assert_ne!(write["tid"], outer["tid"]);
        assert_eq!(trace["otherData"]["dropped_events"], 0);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.json");
        let profiler = Profiler::simple().chrome_trace(&path).max_events(3);
        for _ in 0..10 {
            profiler.span("step").stop();
        }
        assert_eq!(profiler.num_dropped(), 7);
        assert!(profiler.summary().contains("10"));
        profiler.write_trace().unwrap();
        let trace: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let spans = trace["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["ph"] == "X");
        assert_eq!(spans.count(), 3);
        assert_eq!(trace["otherData"]["dropped_events"], 7);
    }

    #[test]
    fn paths_that_cannot_be_written_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "x").unwrap();
        let profiler = Profiler::simple().chrome_trace(file.join("trace.json"));
        let error = profiler.write_trace().unwrap_err().to_string();
        assert!(error.contains("trace.json"), "{error}");
        assert_eq!(Profiler::simple().write_trace().unwrap(), None);
    }

    #[test]
    fn ranks_do_not_share_a_file() {
        assert_eq!(trace_path(Path::new("a/t.json"), 0), Path::new("a/t.json"));
        assert_eq!(trace_path(Path::new("a/t.json"), 3), Path::new("a/t-rank3.json"));
        assert_eq!(trace_path(Path::new("t"), 1), Path::new("t-rank1"));
        assert_eq!(Microseconds(1_234_005).to_string(), "1234.005");
    }
}
