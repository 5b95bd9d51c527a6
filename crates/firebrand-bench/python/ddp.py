"""Time of one step of data parallel training with PyTorch over Gloo, for `firebrand-bench ddp`.

MLP 784-h-h-10 with ReLU, cross entropy and SGD in float32, one thread per process; a plain loop on one rank, with
`DistributedDataParallel` on several. The batches are made beforehand. The last line of standard output is a JSON list: the
milliseconds per step of each window.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

WARMUP = 5
NUM_WINDOWS = 3
NUM_BATCHES = 8
LEARNING_RATE = 0.01


def train(arguments: argparse.Namespace) -> list[float]:
    torch.manual_seed(0)
    width = arguments.width
    model: nn.Module = nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    if arguments.devices > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    batches = [
        (torch.rand(arguments.batch_size, 784), torch.randint(10, (arguments.batch_size,)))
        for _ in range(NUM_BATCHES)
    ]
    marks = []
    for step in range(WARMUP + arguments.window * NUM_WINDOWS + 1):
        if step >= WARMUP and (step - WARMUP) % arguments.window == 0:
            marks.append(time.perf_counter())
        inputs, targets = batches[step % NUM_BATCHES]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return [(end - start) / arguments.window * 1e3 for start, end in zip(marks, marks[1:])]


def run(rank: int, arguments: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if arguments.devices > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=arguments.devices)
    windows = train(arguments)
    if rank == 0:
        print(json.dumps(windows), flush=True)
    if arguments.devices > 1:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="the number of ranks")
    parser.add_argument("--width", type=int, default=2048, help="h")
    parser.add_argument("--batch-size", type=int, default=128, help="on each rank")
    parser.add_argument("--window", type=int, default=6, help="the steps of a window")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if arguments.rank is not None:
        return run(arguments.rank, arguments, arguments.store)
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        command = [sys.executable, *sys.argv, "--store", store]
        others = [
            subprocess.Popen([*command, "--rank", str(rank)], stdin=subprocess.DEVNULL)
            for rank in range(1, arguments.devices)
        ]
        try:
            run(0, arguments, store)
            if any(other.wait() for other in others):
                sys.exit("a rank failed")
        finally:
            for other in others:
                other.kill()


if __name__ == "__main__":
    main()
