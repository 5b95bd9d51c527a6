"""Bandwidth of an all-reduce over Gloo between processes of this machine, for `firebrand-bench allreduce`.

Reads a number of bytes from each line of standard input and sums float32 buffers of that size; answers with one line, a JSON
list of the seconds that one all-reduce took in each window. Each process has one thread; the buffer is reduced in place.
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

BUDGET = 0.3
NUM_WINDOWS = 5


def told(number: int) -> int:
    """The number that rank 0 has."""
    message = torch.tensor([number])
    dist.broadcast(message, 0)
    return int(message)


def measure(size: int) -> list[float]:
    buffer = torch.full((size // 4,), dist.get_rank() + 1.0)
    dist.all_reduce(buffer)
    ranks = dist.get_world_size()
    if not torch.all(buffer == ranks * (ranks + 1) / 2):
        raise RuntimeError(f"the sum over {ranks} ranks is wrong")
    buffer.zero_()
    seconds = 0.0
    for _ in range(3):
        start = time.perf_counter()
        dist.all_reduce(buffer)
        seconds = time.perf_counter() - start
    possible = told(min(max(int(BUDGET / seconds), 2), 100_000))
    num_windows = min(possible, NUM_WINDOWS)
    repeats = possible // num_windows
    windows = []
    for _ in range(num_windows):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            dist.all_reduce(buffer)
        windows.append((time.perf_counter() - start) / repeats)
    return windows


def serve(rank: int, ranks: int, store: str) -> None:
    torch.set_num_threads(1)
    # Gloo prints to standard output that it is connected.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    if rank == 0:
        for line in sys.stdin:
            told(int(line) + 1)
            print(json.dumps(measure(int(line))), file=answers, flush=True)
        told(0)
    else:
        while size := told(0):
            measure(size - 1)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if arguments.rank is not None:
        return serve(arguments.rank, arguments.ranks, arguments.store)
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        command = [sys.executable, __file__, "--ranks", str(arguments.ranks), "--store", store]
        others = [
            subprocess.Popen([*command, "--rank", str(rank)], stdin=subprocess.DEVNULL)
            for rank in range(1, arguments.ranks)
        ]
        try:
            serve(0, arguments.ranks, store)
            if any(other.wait() for other in others):
                sys.exit("a rank failed")
        finally:
            for other in others:
                other.kill()


if __name__ == "__main__":
    main()
