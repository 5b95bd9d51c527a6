use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use firebrand_launch::MasterAddress;

/// What somebody asked for makes no sense: exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The names are torchrun's.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// How many ranks this node has
    #[arg(long, alias = "nproc_per_node", value_name = "N", default_value_t = 1, value_parser = count)]
    pub nproc_per_node: usize,

    /// How many nodes the run has; `firebrand run` is started once on each
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = count)]
    pub nnodes: usize,

    /// The number of this node, from 0
    #[arg(long, alias = "node_rank", value_name = "R", default_value_t = 0)]
    pub node_rank: usize,

    /// Where rank 0 listens: the name or address of node 0 and a port that is free there. With one node: a free port of
    /// 127.0.0.1
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT", value_parser = master)]
    pub rdzv_endpoint: Option<MasterAddress>,

    /// A name for the run, the same on all nodes
    #[arg(long, alias = "rdzv_id", value_name = "ID", default_value = "firebrand")]
    pub rdzv_id: String,

    /// How often the ranks are started again after one failed
    #[arg(long, alias = "max_restarts", value_name = "K", default_value_t = 0)]
    pub max_restarts: u32,

    /// How often the ranks are looked at
    #[arg(long, alias = "monitor_interval", value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    pub monitor_interval: Duration,

    /// How long the others have to end after a rank failed, before they are killed
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub failure_grace: Duration,

    /// How long the ranks have to save and end after Ctrl+C or SIGTERM, before they are killed
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub stop_grace: Duration,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub command: Vec<OsString>,
}

/// What each rank begins as.
#[derive(Args, Debug)]
pub struct ExecRankArgs {
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=1 << 16).contains(&number) => Ok(number),
        _ => Err("it is a whole number from 1 to 65536".to_owned()),
    }
}

fn master(text: &str) -> Result<MasterAddress, String> {
    text.parse()
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.0..=1e6).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "it is a number of seconds from 0 to 1000000".to_owned())
}
