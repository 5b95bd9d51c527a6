//! `firebrand checkpoint inspect`: what is in a checkpoint, after every file was compared with its checksum.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use firebrand_trainer::checkpoint::{Summary, inspect};

/// Examines checkpoints.
#[derive(Args, Debug)]
pub struct CheckpointArgs {
    #[command(subcommand)]
    command: CheckpointCommand,
}

#[derive(Subcommand, Debug)]
enum CheckpointCommand {
    /// Verifies a checkpoint and lists its files and tensors
    Inspect(InspectArgs),
}

#[derive(Args, Debug)]
struct InspectArgs {
    /// The checkpoint's folder, or a pointer such as `checkpoints/last`
    path: PathBuf,

    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Does what was asked for; returns the exit code.
pub fn checkpoint(args: &CheckpointArgs) -> anyhow::Result<u8> {
    let CheckpointCommand::Inspect(args) = &args.command;
    let summary = inspect(&args.path)?;
    let text = if args.json {
        format!("{}\n", serde_json::to_string_pretty(&summary)?)
    } else {
        describe(&summary)
    };
    // Nobody may be reading any more.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(0)
}

fn describe(summary: &Summary) -> String {
    let number = |value: Option<u64>| value.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
    let mut text = format!(
        "{}\nepoch {}, global step {}; format {}, Firebrand {}, Burn {}; {} bytes, every file as its checksum says\n",
        summary.path.display(),
        number(summary.epoch),
        number(summary.global_step),
        summary.version,
        summary.firebrand,
        summary.burn,
        summary.num_bytes,
    );
    text.push_str("\nfiles\n");
    for (name, entry) in &summary.files {
        text.push_str(&format!("  {name}  {} bytes\n", entry.size));
    }
    for (file, tensors) in &summary.tensors {
        text.push_str(&format!("\n{file}\n"));
        for tensor in tensors {
            text.push_str(&format!(
                "  {}  {:?} {}\n",
                tensor.name, tensor.shape, tensor.dtype
            ));
        }
    }
    text.push_str(&format!("\nstate  {}\n", summary.state_keys.join(", ")));
    if !summary.unlisted.is_empty() {
        text.push_str(&format!(
            "\nnot of the checkpoint  {}\n",
            summary.unlisted.join(", ")
        ));
    }
    text
}
