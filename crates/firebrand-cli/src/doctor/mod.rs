//! `firebrand doctor`: what this machine and its environment offer to a run, and what stands in its way.

mod accelerators;
mod launcher;
mod limits;
mod machine;
mod network;
mod report;
mod variables;

use clap::Args;
use firebrand_launch::environment_variable;

use report::Report;

/// Exit code 0 if there is no problem, else 1.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Looks at everything and prints it; returns the exit code.
pub fn doctor(args: &DoctorArgs) -> anyhow::Result<u8> {
    use std::io::Write;
    let report = examine();
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&report)?),
        false => report.to_string(),
    };
    // Nobody may be reading any more.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(u8::from(report.has_problems()))
}

fn examine() -> Report {
    let mut report = Report::default();
    machine::examine(&mut report);
    limits::examine(&mut report);
    network::examine(&mut report);
    accelerators::examine(&mut report, &environment_variable);
    launcher::examine(&mut report, &environment_variable);
    variables::examine(&mut report, &environment_variable);
    report
}
