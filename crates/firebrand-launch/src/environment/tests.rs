//! What each launcher's variables make of a process, with the values that those launchers set.
#![allow(clippy::unwrap_used)]

use firebrand_collective::Topology;
use proptest::prelude::*;

use super::*;
use crate::rank_variables;

/// Variables written as a shell would: `RANK=1 WORLD_SIZE=2`.
fn with(requested: Requested, text: &str) -> Result<Launch> {
    let pairs: Vec<(String, String)> = text
        .split_whitespace()
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        })
        .collect();
    detect(&requested, &move |name| {
        let pair = pairs.iter().find(|(key, _)| key == name);
        pair.map(|(_, value)| value.clone())
    })
}

fn asking(devices: impl Into<Option<usize>>, num_nodes: impl Into<Option<usize>>) -> Requested {
    Requested {
        devices: devices.into(),
        num_nodes: num_nodes.into(),
    }
}

fn cluster(requested: Requested, text: &str) -> Cluster {
    match with(requested, text).unwrap() {
        Launch::External(cluster) => cluster,
        other => panic!("{text}: {other:?}"),
    }
}

fn plan(requested: Requested, text: &str) -> SpawnPlan {
    match with(requested, text).unwrap() {
        Launch::Spawn(plan) => plan,
        other => panic!("{text}: {other:?}"),
    }
}

/// Rank of world, local rank of local world, node of nodes.
fn place(topology: &Topology) -> [usize; 6] {
    [
        topology.global_rank,
        topology.world_size,
        topology.local_rank,
        topology.local_world_size,
        topology.node_rank,
        topology.num_nodes,
    ]
}

fn refused(requested: Requested, text: &str, parts: &[&str]) {
    let error = with(requested, text).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{text}\n{error}\nhas no {part}");
    }
}

const ANY: Requested = Requested {
    devices: None,
    num_nodes: None,
};

const TORCHRUN: &str = "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True RANK=5 WORLD_SIZE=8 \
     LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500";

#[test]
fn nothing_is_one_process_or_what_was_asked_for() {
    assert_eq!(with(ANY, "").unwrap(), Launch::Single);
    assert_eq!(with(asking(1, 1), "").unwrap(), Launch::Single);
    let plan = plan(asking(4, None), "");
    assert_eq!(place(&plan.topology_of_first), [0, 4, 0, 4, 0, 1]);
    assert_eq!((plan.num_local, &plan.master), (4, &None));
    let master: MasterAddress = "127.0.0.1:1234".parse().unwrap();
    let others = plan.others(&master);
    let ranks: Vec<usize> = others.iter().map(|other| other.topology.global_rank).collect();
    assert_eq!(ranks, [1, 2, 3]);
    for requested in [asking(0, None), asking(None, 0)] {
        refused(requested, "", &["(0) was asked for", "at least one"]);
    }
}

#[test]
fn variables_that_are_empty_are_not_set() {
    assert_eq!(
        with(ANY, "RANK= WORLD_SIZE= TORCHELASTIC_RUN_ID= MASTER_ADDR=").unwrap(),
        Launch::Single
    );
}

#[test]
fn torchrun() {
    let found = cluster(ANY, TORCHRUN);
    assert_eq!(place(&found.topology), [5, 8, 1, 4, 1, 2]);
    assert_eq!(found.master.to_string(), "node0:29500");
    assert_eq!((found.kind, found.agent_store), (ClusterKind::Torchrun, true));
    assert_eq!((found.restart_count, found.job_id.as_str()), (2, "none"));
    let own_store = TORCHRUN.replace("AGENT_STORE=True", "AGENT_STORE=False");
    assert!(!cluster(ANY, &own_store).agent_store);
    // Older ones do not say how many nodes there are.
    let older = TORCHRUN.replace("GROUP_WORLD_SIZE=2", "");
    assert_eq!(place(&cluster(ANY, &older).topology), [5, 8, 1, 4, 1, 2]);
    // It counts before whatever it was started from.
    let in_slurm = format!("{TORCHRUN} SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEP_ID=0 OMPI_COMM_WORLD_RANK=1");
    assert_eq!(cluster(ANY, &in_slurm).kind, ClusterKind::Torchrun);
}

#[test]
fn torchrun_and_what_was_asked_for() {
    assert_eq!(
        place(&cluster(asking(4, 2), TORCHRUN).topology),
        [5, 8, 1, 4, 1, 2]
    );
    refused(
        asking(2, None),
        TORCHRUN,
        &[
            "devices(2)",
            "torchrun started 4 processes",
            "LOCAL_WORLD_SIZE=4",
            "remove one",
        ],
    );
    refused(
        asking(None, 3),
        TORCHRUN,
        &[
            "num_nodes(3)",
            "torchrun started 2 nodes",
            "GROUP_WORLD_SIZE=2",
            "remove one",
        ],
    );
}

#[test]
fn numbers_that_contradict_each_other() {
    for (from, to, parts) in [
        ("RANK=5", "RANK=8", ["RANK=8", "not below WORLD_SIZE=8"]),
        (
            "LOCAL_RANK=1",
            "LOCAL_RANK=4",
            ["LOCAL_RANK=4", "not below LOCAL_WORLD_SIZE=4"],
        ),
        (
            "GROUP_RANK=1",
            "GROUP_RANK=2",
            ["GROUP_RANK=2", "not below GROUP_WORLD_SIZE=2"],
        ),
        ("RANK=5", "RANK=x", ["RANK=x", "not a whole number"]),
        ("RANK=5", "RANK=-1", ["RANK=-1", "not a whole number"]),
        ("WORLD_SIZE=8", "WORLD_SIZE=0", ["WORLD_SIZE=0", "not a positive"]),
        (
            "MASTER_PORT=29500",
            "MASTER_PORT=0",
            ["MASTER_PORT=0", "not a port"],
        ),
        (
            "MASTER_ADDR=node0",
            "MASTER_ADDR=tcp//x",
            ["MASTER_ADDR=tcp//x", "name of a host"],
        ),
        (
            "MASTER_ADDR=node0",
            "",
            ["MASTER_ADDR is not set", "TORCHELASTIC_RUN_ID is"],
        ),
        (
            "LOCAL_WORLD_SIZE=4",
            "",
            ["LOCAL_WORLD_SIZE is not set", "TORCHELASTIC_RUN_ID is"],
        ),
        (
            "RESTART_COUNT=2",
            "RESTART_COUNT=x",
            ["RESTART_COUNT=x", "not a whole number"],
        ),
    ] {
        // Only the first: LOCAL_RANK ends in RANK.
        let text = TORCHRUN.replace(&format!(" {from}"), &format!(" {to}"));
        let text = if text == TORCHRUN {
            TORCHRUN.replacen(from, to, 1)
        } else {
            text
        };
        refused(ANY, &text, &parts);
    }
}

const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
     OMPI_COMM_WORLD_NODE_RANK=1 PMIX_NAMESPACE=3221225473 MASTER_ADDR=node0";

#[test]
fn open_mpi() {
    let found = cluster(ANY, OPEN_MPI);
    assert_eq!(
        (found.kind, place(&found.topology)),
        (ClusterKind::Mpi, [3, 4, 1, 2, 1, 2])
    );
    assert_eq!(found.master.host, "node0");
    assert_eq!(found.job_id, "3221225473");
    let port = found.master.port;
    assert!((15000..25000).contains(&port));
    // The same on every rank, another for another run.
    let other_rank = OPEN_MPI
        .replace("RANK=3", "RANK=0")
        .replace("LOCAL_RANK=1", "LOCAL_RANK=0");
    assert_eq!(cluster(ANY, &other_rank).master.port, port);
    let other_run = OPEN_MPI.replace("3221225473", "3221225474");
    assert_ne!(cluster(ANY, &other_run).master.port, port);
    assert_eq!(
        cluster(ANY, &format!("{OPEN_MPI} MASTER_PORT=77")).master.port,
        77
    );
    // On one machine nothing needs to be said.
    let here = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
                PMIX_NAMESPACE=a@1";
    let found = cluster(ANY, here);
    assert_eq!(
        (found.master.host.as_str(), place(&found.topology)),
        ("127.0.0.1", [1, 2, 1, 2, 0, 1])
    );
    // Within a job of Slurm the first host is known, and MPI counts first.
    let in_slurm = format!(
        "{} SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_NODELIST=n[7-8]",
        OPEN_MPI.replace("MASTER_ADDR=node0", "")
    );
    let found = cluster(ANY, &in_slurm);
    assert_eq!((found.kind, found.master.host.as_str()), (ClusterKind::Mpi, "n7"));
    assert_eq!(
        with(ANY, "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1").unwrap(),
        Launch::Single
    );
}

#[test]
fn mpi_that_cannot_be_understood() {
    refused(
        ANY,
        "OMPI_COMM_WORLD_RANK=0",
        &["OMPI_COMM_WORLD_SIZE is not set"],
    );
    refused(
        ANY,
        "OMPI_COMM_WORLD_SIZE=2",
        &["OMPI_COMM_WORLD_RANK is not set"],
    );
    refused(
        ANY,
        &OPEN_MPI.replace("MASTER_ADDR=node0", ""),
        &["MASTER_ADDR is not set", "2 nodes", "mpirun -x"],
    );
    // By node instead of by slot: rank 1 is the first of the second node.
    let by_node = OPEN_MPI
        .replace("RANK=3", "RANK=1")
        .replace("LOCAL_RANK=1", "LOCAL_RANK=0");
    refused(
        ANY,
        &by_node,
        &["rank 1 of 4 is number 0 of 2", "--map-by ppr:2:node"],
    );
    refused(
        asking(4, None),
        OPEN_MPI,
        &[
            "devices(4)",
            "MPI started 2 processes",
            "OMPI_COMM_WORLD_LOCAL_SIZE=2",
        ],
    );
}

#[test]
fn pmi() {
    let hydra = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_PORT=29400";
    let found = cluster(ANY, hydra);
    assert_eq!(place(&found.topology), [1, 2, 1, 2, 0, 1]);
    assert_eq!(found.master.to_string(), "127.0.0.1:29400");
    refused(
        ANY,
        &hydra.replace("MASTER_PORT=29400", ""),
        &["MASTER_PORT is not set", "29400"],
    );
    // Without the place on the node, all ranks are on this machine unless a master elsewhere says otherwise.
    assert_eq!(
        place(&cluster(ANY, "PMI_RANK=1 PMI_SIZE=2 MASTER_PORT=1").topology),
        [1, 2, 1, 2, 0, 1]
    );
    // srun with PMI: Slurm's own variables say more.
    let srun = format!("PMI_RANK=3 PMI_SIZE=5 {SLURM}");
    assert_eq!(cluster(ANY, &srun).kind, ClusterKind::Slurm);
}

const SLURM: &str = "SLURM_JOB_ID=1234567 SLURM_STEP_ID=0 SLURM_NTASKS=5 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NNODES=3 \
     SLURM_NODELIST=gpu[01-03] SLURM_TASKS_PER_NODE=2(x2),1 SLURM_JOB_NAME=train";

#[test]
fn slurm() {
    let found = cluster(ANY, SLURM);
    assert_eq!(
        (found.kind, place(&found.topology)),
        (ClusterKind::Slurm, [3, 5, 1, 2, 1, 3])
    );
    assert_eq!(found.master.to_string(), "gpu01:19567");
    assert_eq!((found.restart_count, found.job_id.as_str()), (0, "1234567.0"));
    let last = SLURM
        .replace("PROCID=3", "PROCID=4")
        .replace("LOCALID=1", "LOCALID=0")
        .replace("NODEID=1", "NODEID=2");
    assert_eq!(place(&cluster(ANY, &last).topology), [4, 5, 0, 1, 2, 3]);
    let again = format!("{SLURM} SLURM_RESTART_COUNT=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=7");
    let found = cluster(ANY, &again);
    assert_eq!(
        (found.restart_count, found.master.to_string()),
        (2, "10.0.0.1:7".to_owned())
    );
    // The second step of a job that is larger than the step.
    let step = SLURM
        .replace("STEP_ID=0", "STEP_ID=1")
        .replace("SLURM_NTASKS=5", "SLURM_NTASKS=2")
        + " SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=gpu[02-03] SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=1(x2)";
    let found = cluster(
        ANY,
        &step
            .replace("PROCID=3", "PROCID=1")
            .replace("LOCALID=1", "LOCALID=0"),
    );
    assert_eq!(place(&found.topology), [1, 2, 0, 1, 1, 2]);
    assert_eq!(found.master.to_string(), "gpu02:19668");
}

#[test]
fn slurm_says_who_is_no_rank() {
    for name in ["bash", "interactive"] {
        let shell = SLURM.replace("JOB_NAME=train", &format!("JOB_NAME={name}"));
        assert_eq!(with(ANY, &shell).unwrap(), Launch::Single);
    }
    // The batch script of a job of one task starts what it was asked to start.
    let batch = "SLURM_JOB_ID=7 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NNODES=1 SLURM_NODELIST=a";
    assert_eq!(plan(asking(2, None), batch).num_local, 2);
    refused(
        asking(2, None),
        &format!("{batch} SLURM_STEP_ID=0 SLURM_TASKS_PER_NODE=1"),
        &["devices(2)", "Slurm started 1 process on", "SLURM_NTASKS=1"],
    );
    let script = SLURM
        .replace("SLURM_STEP_ID=0", "")
        .replace("PROCID=3", "PROCID=0")
        .replace("LOCALID=1", "LOCALID=0");
    refused(
        asking(5, None),
        &script.replace("NODEID=1", "NODEID=0"),
        &[
            "devices(5)",
            "SLURM_STEP_ID is not set",
            "start the program with srun",
        ],
    );
}

#[test]
fn slurm_that_makes_no_sense() {
    for (from, to, parts) in [
        (
            "PROCID=3",
            "PROCID=5",
            ["SLURM_PROCID=5", "not below SLURM_NTASKS=5"],
        ),
        ("LOCALID=1", "LOCALID=2", ["SLURM_LOCALID=2", "not below"]),
        (
            "NODEID=1",
            "NODEID=3",
            ["SLURM_NODEID=3", "not below the 3 nodes"],
        ),
        ("gpu[01-03]", "gpu[01-", ["gpu[01-", "has no ']'"]),
        (
            "2(x2),1",
            "2(x2),x",
            ["SLURM_TASKS_PER_NODE=2(x2),x", "list of numbers"],
        ),
        ("SLURM_PROCID=3", "", ["SLURM_PROCID is not set", "srun"]),
        (
            "SLURM_JOB_ID=1234567",
            "",
            ["SLURM_JOB_ID is not set", "MASTER_PORT"],
        ),
        (
            "SLURM_NODELIST=gpu[01-03]",
            "",
            ["SLURM_NODELIST is not set", "MASTER_ADDR"],
        ),
    ] {
        refused(ANY, &SLURM.replace(from, to), &parts);
    }
    let uneven = SLURM.replace("SLURM_TASKS_PER_NODE=2(x2),1", "");
    refused(
        ANY,
        &uneven,
        &[
            "SLURM_TASKS_PER_NODE is not set",
            "do not divide evenly among 3 nodes",
        ],
    );
    let other = SLURM
        .replace("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE")
        .replace("2(x2),1", "2(x3)");
    refused(ANY, &other, &["makes 6 tasks, not the 5"]);
}

#[test]
fn rank_and_world_size() {
    let pod = "RANK=2 WORLD_SIZE=3 MASTER_ADDR=job-master-0 MASTER_PORT=23456";
    let found = cluster(ANY, pod);
    assert_eq!(
        (found.kind, place(&found.topology)),
        (ClusterKind::Variables, [2, 3, 0, 1, 2, 3])
    );
    assert_eq!(found.master.to_string(), "job-master-0:23456");
    // On this machine, all of them.
    let here = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1";
    assert_eq!(place(&cluster(ANY, here).topology), [1, 2, 1, 2, 0, 1]);
    // What was asked for fills in what is not said.
    let four = "RANK=2 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1";
    assert_eq!(
        place(&cluster(asking(2, None), four).topology),
        [2, 4, 0, 2, 1, 2]
    );
    assert_eq!(
        place(&cluster(asking(None, 2), four).topology),
        [2, 4, 0, 2, 1, 2]
    );
    assert_eq!(
        place(&cluster(ANY, &format!("{four} NNODES=1")).topology),
        [2, 4, 2, 4, 0, 1]
    );
    let said = format!("{four} LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 NODE_RANK=1");
    assert_eq!(place(&cluster(ANY, &said).topology), [2, 4, 0, 2, 1, 2]);
    assert_eq!(with(ANY, "RANK=0 WORLD_SIZE=1").unwrap(), Launch::Single);
}

#[test]
fn rank_and_world_size_that_make_no_sense() {
    refused(
        ANY,
        "WORLD_SIZE=2",
        &["RANK is not set", "WORLD_SIZE=2 is", "unset WORLD_SIZE"],
    );
    refused(
        ANY,
        "RANK=0",
        &["WORLD_SIZE is not set", "RANK=0 is", "unset RANK"],
    );
    refused(
        ANY,
        "RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
        &["RANK=2", "not below WORLD_SIZE=2"],
    );
    refused(
        ANY,
        "RANK=0 WORLD_SIZE=2",
        &["MASTER_ADDR is not set", "RANK=0 and WORLD_SIZE=2"],
    );
    refused(
        ANY,
        "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a",
        &["MASTER_PORT is not set"],
    );
    let four = "RANK=2 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1";
    refused(
        ANY,
        &format!("{four} LOCAL_RANK=0"),
        &["LOCAL_WORLD_SIZE is not set", "LOCAL_RANK is"],
    );
    refused(
        ANY,
        &format!("{four} LOCAL_WORLD_SIZE=8"),
        &["LOCAL_WORLD_SIZE=8", "more than WORLD_SIZE=4"],
    );
    refused(
        asking(3, None),
        four,
        &["devices(3)", "1 process on this node", "WORLD_SIZE=4"],
    );
    refused(
        asking(None, 3),
        four,
        &[
            "LOCAL_WORLD_SIZE is not set",
            "do not divide evenly among 3 nodes",
        ],
    );
    refused(
        asking(2, None),
        "RANK=0 WORLD_SIZE=1",
        &["devices(2)", "1 process on this node"],
    );
    refused(
        ANY,
        &format!("{four} LOCAL_WORLD_SIZE=2 NNODES=1 LOCAL_RANK=0 NODE_RANK=0"),
        &[
            "LOCAL_WORLD_SIZE=2",
            "is not WORLD_SIZE=4, though there is one node",
        ],
    );
}

#[test]
fn kubeflow() {
    let pod = "PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=1 PET_MASTER_ADDR=m PET_MASTER_PORT=29400";
    let found = cluster(ANY, pod);
    assert_eq!(
        (found.kind, place(&found.topology)),
        (ClusterKind::Kubeflow, [1, 2, 0, 1, 1, 2])
    );
    assert_eq!(found.master.to_string(), "m:29400");
    // The pod's one process starts the others.
    let several = pod.replace("PER_NODE=1", "PER_NODE=4");
    let found = plan(ANY, &several);
    assert_eq!(
        (place(&found.topology_of_first), found.num_local),
        ([4, 8, 0, 4, 1, 2], 4)
    );
    let auto = pod.replace("PER_NODE=1", "PER_NODE=auto");
    assert_eq!(plan(asking(3, 2), &auto).num_local, 3);
    assert_eq!(place(&cluster(ANY, &auto).topology), [1, 2, 0, 1, 1, 2]);
    // PyTorchJob also sets RANK, which is the number of the pod.
    let job = "PET_NNODES=2 PET_NPROC_PER_NODE=2 RANK=1 WORLD_SIZE=4 MASTER_ADDR=m MASTER_PORT=23456";
    assert_eq!(place(&plan(ANY, job).topology_of_first), [2, 4, 0, 2, 1, 2]);
    assert_eq!(
        with(ANY, "PET_NNODES=1 PET_NPROC_PER_NODE=1").unwrap(),
        Launch::Single
    );
    refused(asking(2, None), &several, &["devices(2)", "PET_NPROC_PER_NODE=4"]);
    refused(asking(None, 3), pod, &["num_nodes(3)", "PET_NNODES=2"]);
    refused(
        ANY,
        &pod.replace("NNODES=2", "NNODES=1:3"),
        &["PET_NNODES=1:3", "range", "torchrun"],
    );
    refused(
        ANY,
        &pod.replace("RANK=1", "RANK=2"),
        &["PET_NODE_RANK=2", "not below PET_NNODES=2"],
    );
    refused(
        ANY,
        &pod.replace("PET_NODE_RANK=1", ""),
        &["PET_NODE_RANK is not set"],
    );
    refused(
        ANY,
        &pod.replace("PET_MASTER_PORT=29400", ""),
        &["PET_MASTER_PORT is not set"],
    );
}

#[test]
fn indexed_job() {
    let pod = "JOB_COMPLETION_INDEX=1 MASTER_ADDR=job-0.svc MASTER_PORT=29400";
    let found = cluster(asking(None, 2), pod);
    assert_eq!(
        (found.kind, place(&found.topology)),
        (ClusterKind::IndexedJob, [1, 2, 0, 1, 1, 2])
    );
    assert_eq!(
        place(&plan(asking(4, 2), pod).topology_of_first),
        [4, 8, 0, 4, 1, 2]
    );
    assert_eq!(
        place(&cluster(ANY, &format!("{pod} WORLD_SIZE=3")).topology),
        [1, 3, 0, 1, 1, 3]
    );
    assert_eq!(
        place(&plan(asking(2, None), &format!("{pod} WORLD_SIZE=4")).topology_of_first),
        [2, 4, 0, 2, 1, 2]
    );
    // Runs that have nothing to do with each other.
    assert_eq!(with(ANY, "JOB_COMPLETION_INDEX=5").unwrap(), Launch::Single);
    assert_eq!(plan(asking(2, None), "JOB_COMPLETION_INDEX=5").num_local, 2);
    refused(
        asking(None, 2),
        "JOB_COMPLETION_INDEX=1",
        &["MASTER_ADDR is not set", "JOB_COMPLETION_INDEX"],
    );
    refused(
        asking(None, 2),
        &pod.replace("INDEX=1", "INDEX=2"),
        &["JOB_COMPLETION_INDEX=2", "not below num_nodes = 2"],
    );
    refused(
        asking(2, None),
        &format!("{pod} WORLD_SIZE=3"),
        &["WORLD_SIZE=3", "multiple of devices(2)"],
    );
    refused(
        asking(2, 2),
        &format!("{pod} WORLD_SIZE=3"),
        &["WORLD_SIZE=3", "product of 2 nodes and devices(2)"],
    );
}

#[test]
fn machines_that_are_started_by_hand() {
    let node = "NODE_RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29400";
    let found = plan(asking(2, 2), node);
    assert_eq!(
        (found.kind, place(&found.topology_of_first)),
        (ClusterKind::Manual, [2, 4, 0, 2, 1, 2])
    );
    assert_eq!(found.master.as_ref().unwrap().to_string(), "10.0.0.1:29400");
    assert_eq!(
        place(&found.others(&"h:1".parse().unwrap())[0].topology),
        [3, 4, 1, 2, 1, 2]
    );
    let found = cluster(asking(None, 2), node);
    assert_eq!(
        (found.kind, place(&found.topology)),
        (ClusterKind::Manual, [1, 2, 0, 1, 1, 2])
    );
    assert_eq!(
        place(&cluster(ANY, &format!("{node} NNODES=2")).topology),
        [1, 2, 0, 1, 1, 2]
    );
    // What shells leave behind.
    assert_eq!(with(ANY, "NODE_RANK=0").unwrap(), Launch::Single);
    assert_eq!(with(ANY, "MASTER_ADDR=a MASTER_PORT=1").unwrap(), Launch::Single);
    assert_eq!(
        with(asking(None, 1), node.replace("RANK=1", "RANK=0").as_str()).unwrap(),
        Launch::Single
    );
    refused(
        asking(None, 2),
        "",
        &["NODE_RANK is not set", "2 nodes were asked for", "torchrun"],
    );
    refused(ANY, node, &["NODE_RANK=1", "not how many nodes"]);
    refused(
        asking(None, 1),
        node,
        &["NODE_RANK=1", "not below the number of nodes, 1"],
    );
    refused(
        asking(None, 2),
        "NODE_RANK=1 MASTER_ADDR=a",
        &["MASTER_PORT is not set", "node 1 of 2"],
    );
    refused(
        asking(None, 2),
        &format!("{node} NNODES=3"),
        &["num_nodes(2)", "NNODES=3"],
    );
}

#[test]
fn a_rank_of_our_own_counts_before_the_launcher_that_its_parent_came_from() {
    let plan = plan(asking(2, 2), "NODE_RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29400");
    let other = &plan.others(&"[fd00::1]:29400".parse().unwrap())[0];
    let variables: Vec<String> = rank_variables(other)
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let text = format!("{} NODE_RANK=1 {TORCHRUN} {SLURM}", variables.join(" "));
    assert_eq!(&cluster(asking(2, 2), &text), other);
    refused(
        asking(3, 2),
        &text,
        &["devices(3)", "FIREBRAND_LOCAL_WORLD_SIZE=2"],
    );
    refused(
        ANY,
        "FIREBRAND_RANK=0",
        &["FIREBRAND_WORLD_SIZE is not set", "unset all FIREBRAND_"],
    );
    let elsewhere = text.replace("FIREBRAND_MASTER=[fd00::1]:29400", "FIREBRAND_MASTER=nowhere");
    refused(ANY, &elsewhere, &["FIREBRAND_MASTER=nowhere", "HOST:PORT"]);
    refused(
        ANY,
        "FIREBRAND_RANK=0 FIREBRAND_WORLD_SIZE=1 FIREBRAND_LAUNCHER=x",
        &["FIREBRAND_LAUNCHER=x"],
    );
}

/// Every variable that is looked at.
const NAMES: [&str; 44] = [
    "FIREBRAND_RANK",
    "FIREBRAND_WORLD_SIZE",
    "FIREBRAND_LOCAL_RANK",
    "FIREBRAND_LOCAL_WORLD_SIZE",
    "FIREBRAND_NODE_RANK",
    "FIREBRAND_NUM_NODES",
    "FIREBRAND_MASTER",
    "FIREBRAND_LAUNCHER",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NNODES",
    "SLURM_NODELIST",
    "SLURM_TASKS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "JOB_COMPLETION_INDEX",
    "NODE_RANK",
    "NNODES",
];

proptest! {
    #[test]
    fn whatever_the_variables_are_the_answer_is_consistent_or_an_error(
        values in prop::collection::vec(prop::option::of("[0-4]|[0-4]|[0-9]{20}|a[\\[]1-3[\\]]|2\\(x2\\)|\\PC{0,6}"), NAMES.len()),
        // Leave most away, so that every launcher has its turn.
        kept in prop::collection::vec(prop::bool::weighted(0.4), NAMES.len()),
        devices in prop::option::of(0usize..4),
        num_nodes in prop::option::of(0usize..4),
    ) {
        let requested = Requested { devices, num_nodes };
        let lookup = |name: &str| {
            let at = NAMES.iter().position(|known| *known == name)?;
            values[at].clone().filter(|_| kept[at])
        };
        let (topology, found) = match detect(&requested, &lookup) {
            Ok(Launch::External(cluster)) => {
                prop_assert!(cluster.master.port > 0 && !cluster.master.host.is_empty());
                (cluster.topology.clone(), Launch::External(cluster))
            }
            Ok(Launch::Spawn(plan)) => {
                prop_assert!(plan.num_local > 1 && (plan.master.is_some() == (plan.topology_of_first.num_nodes > 1)));
                (plan.topology_of_first.clone(), Launch::Spawn(plan))
            }
            Ok(Launch::Single) => return Ok(()),
            Err(error) => {
                prop_assert!(error.to_string().len() < 2000);
                return Ok(());
            }
        };
        prop_assert!(topology.global_rank < topology.world_size, "{found:?}");
        prop_assert!(topology.local_rank < topology.local_world_size, "{found:?}");
        prop_assert!(topology.node_rank < topology.num_nodes, "{found:?}");
        prop_assert!(topology.local_world_size <= topology.world_size && topology.num_nodes <= topology.world_size, "{found:?}");
        prop_assert!(requested.devices.is_none_or(|devices| devices == topology.local_world_size), "{found:?}");
        prop_assert!(requested.num_nodes.is_none_or(|nodes| nodes == topology.num_nodes), "{found:?}");
    }
}
