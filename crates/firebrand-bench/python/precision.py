"""Time of one step and peak memory of training with PyTorch in float32 and with autocast, for `firebrand-bench precision`.

The models, sizes and optimizer are those of the benchmark in Rust; one thread. The last line of standard output is a JSON list:
the milliseconds per step of each window, and the peak of the resident memory in MiB.
"""

import argparse
import contextlib
import json
import resource
import time

import torch
from torch import nn
from torch.nn import functional

NUM_TOKENS = 256
WARMUP = 2
NUM_WINDOWS = 3
NUM_BATCHES = 2
LEARNING_RATE = 1e-4
HEAD = 64


class Block(nn.Module):
    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.triu(torch.ones(context, context, dtype=torch.bool), 1))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, context, width = x.shape
        query, key, value = (
            layer(x).view(batch, context, width // HEAD, HEAD).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = (query / HEAD**0.5) @ key.transpose(2, 3)
        weights = scores.masked_fill(self.mask, float("-inf")).softmax(3)
        return self.output((weights.to(value.dtype) @ value).transpose(1, 2).reshape(batch, context, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, context) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, NUM_TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.tokens(tokens) + self.positions)
        return self.head(self.norm(x)).flatten(0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", choices=["32-true", "bf16-mixed"], default="32-true")
    for name in ("width", "layers", "context", "batch-size", "window"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)
    width, batch = arguments.width, arguments.batch_size
    if arguments.layers > 0:
        model: nn.Module = Gpt(width, arguments.layers, arguments.context)
        shape = (batch, arguments.context)
        batches = [(torch.randint(NUM_TOKENS, shape), torch.randint(NUM_TOKENS, shape)) for _ in range(NUM_BATCHES)]
    else:
        model = nn.Sequential(
            nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
        batches = [(torch.rand(batch, 784), torch.randint(10, (batch,))) for _ in range(NUM_BATCHES)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    mixed = arguments.precision == "bf16-mixed"
    marks = []
    for step in range(WARMUP + arguments.window * NUM_WINDOWS + 1):
        if step >= WARMUP and (step - WARMUP) % arguments.window == 0:
            marks.append(time.perf_counter())
        inputs, targets = batches[step % NUM_BATCHES]
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if mixed else contextlib.nullcontext():
            logits = model(inputs)
        loss = functional.cross_entropy(logits.float(), targets.flatten())
        loss.backward()
        optimizer.step()
    windows = [(end - start) / arguments.window * 1e3 for start, end in zip(marks, marks[1:])]
    print(json.dumps([*windows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


if __name__ == "__main__":
    main()
