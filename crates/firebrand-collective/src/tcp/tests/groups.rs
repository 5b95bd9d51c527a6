use super::*;
#[cfg(target_os = "linux")]
use crate::tcp::mesh;
use crate::{Backend, connect};

fn ones(len: usize) -> Buffer {
    Buffer::from_slice(&vec![1i32; len])
}

/// Works on the thread of the group, while messages go over the links.
#[test]
fn a_group_over_tcp_does_everything_at_once() {
    as_ranks(contexts(3), |context| {
        let own = context.rank;
        let group = connect(context, Backend::Tcp).unwrap();
        assert_eq!((group.backend(), group.rank(), group.size()), ("tcp", own, 3));
        let received = group.recv(Buffer::zeros(DType::I32, 300_000), (own + 2) % 3);
        let reduced: Vec<_> = (0..5)
            .map(|number| group.all_reduce(ones(100_000 * number), ReduceOp::Sum))
            .collect();
        let gathered = group.all_gather(Buffer::from_slice(&[own as i32]));
        let sent = group.send(Buffer::from_slice(&vec![own as i32; 300_000]), (own + 1) % 3);
        let broadcast = group.broadcast(Buffer::from_slice(&[own as i32]), 2);
        let scattered = group.reduce_scatter(ones(9), ReduceOp::Sum);
        group.barrier().wait().unwrap();
        let sub = group.subgroup(&[2, 0]).unwrap();
        assert_eq!(sub.is_some(), own != 1);
        if let Some(sub) = sub {
            let sum = sub
                .all_reduce(Buffer::from_slice(&[own as i32]), ReduceOp::Sum)
                .wait()
                .unwrap();
            assert_eq!(sum.as_slice::<i32>().unwrap(), [2]);
        }
        let elements = |work: crate::Work| work.wait().unwrap().as_slice::<i32>().unwrap().to_vec();
        for (number, work) in reduced.into_iter().enumerate() {
            assert_eq!(elements(work), vec![3; 100_000 * number]);
        }
        assert_eq!(elements(gathered), [0, 1, 2]);
        assert_eq!(elements(broadcast), [2]);
        assert_eq!(elements(scattered), [3; 3]);
        assert_eq!(elements(received), vec![((own + 2) % 3) as i32; 300_000]);
        sent.wait().unwrap();
    });
}

/// What a layer exchanges does not wait for what the group has queued, on any backend.
#[test]
fn the_group_for_layers_has_a_queue_of_its_own_and_is_made_once() {
    for backend in [Backend::Tcp, Backend::Auto] {
        as_ranks(contexts(2), move |context| {
            let own = context.rank;
            let group = connect(context, backend).unwrap();
            let layers = group.layer_group().unwrap();
            assert!(Arc::ptr_eq(&layers, &group.layer_group().unwrap()));
            assert_eq!((layers.rank(), layers.size()), (own, 2));
            assert!(Arc::ptr_eq(layers.health(), group.health()));
            // Rank 0's stays in the queue until rank 1 joins it, which is after both have exchanged something else.
            let first = (own == 0).then(|| group.all_reduce(ones(3), ReduceOp::Sum));
            let exchanged = layers
                .all_gather(Buffer::from_slice(&[own as i32]))
                .wait()
                .unwrap();
            assert_eq!(exchanged.as_slice::<i32>().unwrap(), [0, 1]);
            let first = first.unwrap_or_else(|| group.all_reduce(ones(3), ReduceOp::Sum));
            assert_eq!(first.wait().unwrap().as_slice::<i32>().unwrap(), [2; 3]);
        });
    }
}

/// Two nodes of two ranks each, and one of one rank.
#[cfg(target_os = "linux")]
#[test]
fn shared_memory_within_nodes_and_tcp_between_them_agree_with_tcp_alone() {
    use crate::hierarchical::Hierarchical;
    let operations = [
        (Operation::AllReduce(ReduceOp::Mean), 200_000),
        (Operation::ReduceScatter(ReduceOp::Sum), 1000),
        (Operation::AllGather, 77),
        (Operation::Broadcast { root: 3 }, 100_000),
        (Operation::Barrier, 0),
    ];
    let act = |context: &GroupContext, transport: &mut dyn Transport| -> Vec<Buffer> {
        let act = |(number, (operation, len)): (usize, &(Operation, usize))| {
            let call = Call {
                sequence: number as u64,
                operation: *operation,
                dtype: DType::F64,
                len: *len,
            };
            let patience = Patience::new(Arc::clone(&context.health), call.to_string(), context.timeout);
            // Whole numbers, whose sums are exact in any order.
            let values: Vec<f64> = (0..*len).map(|i| ((i + 5 * context.rank) % 64) as f64).collect();
            transport
                .run(&call, Buffer::from_slice(&values), &patience)
                .unwrap()
        };
        operations.iter().enumerate().map(act).collect()
    };
    let nodes = as_ranks(contexts(5), |context| {
        let (mut transport, _arena) = Hierarchical::connect(&context, &[0, 1, 0, 1, 2]).unwrap();
        act(&context, &mut transport)
    });
    let alone = as_ranks(contexts(5), |context| {
        act(&context, &mut TcpTransport::connect(&context).unwrap())
    });
    for (left, right) in nodes.iter().flatten().zip(alone.iter().flatten()) {
        assert_eq!(left.bytes(), right.bytes());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn connections_within_a_machine_are_not_paced() {
    for streams in as_ranks(contexts(3), |context| mesh::connect(&context).unwrap()) {
        for stream in streams.iter().flatten() {
            assert_eq!(rustix::net::sockopt::tcp_congestion(stream).unwrap(), "reno");
        }
    }
}
