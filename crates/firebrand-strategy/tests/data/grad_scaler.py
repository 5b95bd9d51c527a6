"""Writes grad_scaler.csv: what PyTorch's GradScaler makes of random sequences of finite and infinite gradients.

    pip install torch==2.9.0
    python grad_scaler.py > grad_scaler.csv

Each line is one scaler of its own: its options, the sequence (1 for an update whose gradients are finite, 0 for another), and
the scale (the bits of the float32, in hexadecimal) and the good updates in a row at the end.
"""

import random
import struct

import torch

NUM_SEQUENCES = 5000


def run(initial, growth, backoff, interval, sequence):
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=initial, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for finite in sequence:
        optimizer.zero_grad()
        scaler.scale(weight.sum())  # Makes the scale a tensor on the first call.
        weight.grad = torch.tensor([1.0 if finite else random.choice([float("inf"), float("nan")])])
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale(), scaler._get_growth_tracker()


def main():
    random.seed(42)
    print(f"# torch {torch.__version__.split('+')[0]}: initial,growth,backoff,interval,sequence,scale bits,good updates")
    for _ in range(NUM_SEQUENCES):
        initial = 2.0 ** random.randint(0, 126)
        growth = random.choice([2.0, 2.0, 1.5, 3.7, 10.0])
        backoff = random.choice([0.5, 0.5, 0.75, 0.3, 0.1])
        interval = random.choice([1, 2, 3, 5, 8, 20])
        share = random.choice([0.5, 0.8, 0.95, 1.0])
        sequence = [random.random() < share for _ in range(random.randint(1, 60))]
        scale, good = run(initial, growth, backoff, interval, sequence)
        bits = struct.unpack("<I", struct.pack("<f", scale))[0]
        text = "".join("1" if finite else "0" for finite in sequence)
        print(f"{initial!r},{growth},{backoff},{interval},{text},{bits:08x},{good}")


main()
