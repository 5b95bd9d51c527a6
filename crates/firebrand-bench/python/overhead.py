"""Time of one training step: a plain PyTorch loop against Lightning's Trainer.

The models are those of `firebrand-bench overhead`: MLPs with ReLU, cross entropy, AdamW, float32, one thread. Both loops
take the same batches, made beforehand and cycled through, so that loading data is no part of the time. Time runs from the
start of one training step to the start of another, over windows of many steps after a warm-up; the median window counts.

The last line of standard output is one JSON object: `overhead.<size>.pytorch_us` and `overhead.<size>.lightning_us`, in
microseconds per step.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn


@dataclass(frozen=True)
class Case:
    """A model, its batch, and how long to look at it."""

    widths: tuple[int, ...]
    batch_size: int
    warmup: int
    window: int
    num_windows: int

    @property
    def num_steps(self) -> int:
        # The last window ends where one more step starts.
        return self.warmup + self.window * self.num_windows + 1


CASES = {
    "small": Case((64, 128, 10), batch_size=64, warmup=200, window=200, num_windows=9),
    "large": Case((784, 2048, 2048, 10), batch_size=128, warmup=5, window=10, num_windows=5),
}
LEARNING_RATE = 1e-3
NUM_BATCHES = 32


class Stopwatch:
    """Reads the clock at the start of the steps that open or close a window."""

    def __init__(self, case: Case):
        self.case = case
        self.step = 0
        self.marks: list[float] = []

    def start_step(self) -> None:
        past_warmup = self.step - self.case.warmup
        if past_warmup >= 0 and past_warmup % self.case.window == 0:
            self.marks.append(time.perf_counter())
        self.step += 1

    def microseconds_per_step(self) -> float:
        windows = [end - start for start, end in zip(self.marks, self.marks[1:])]
        if len(windows) != self.case.num_windows:
            raise RuntimeError(f"{len(windows)} windows were measured, not {self.case.num_windows}")
        return statistics.median(windows) / self.case.window * 1e6


class Batches:
    """One epoch of `num_steps` batches, out of a few that are used again and again."""

    def __init__(self, case: Case):
        generator = torch.Generator().manual_seed(0)
        self.num_steps = case.num_steps
        self.batches = [
            (
                torch.rand(case.batch_size, case.widths[0], generator=generator),
                torch.randint(case.widths[-1], (case.batch_size,), generator=generator),
            )
            for _ in range(NUM_BATCHES)
        ]

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self):
        for step in range(self.num_steps):
            yield self.batches[step % NUM_BATCHES]


def mlp(widths: tuple[int, ...]) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def pytorch(case: Case) -> float:
    model = mlp(case.widths)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    stopwatch = Stopwatch(case)
    for inputs, targets in Batches(case):
        stopwatch.start_step()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return stopwatch.microseconds_per_step()


class Classifier(lightning.LightningModule):
    def __init__(self, case: Case, stopwatch: Stopwatch):
        super().__init__()
        self.net = mlp(case.widths)
        self.stopwatch = stopwatch

    def training_step(self, batch, batch_idx):
        self.stopwatch.start_step()
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)


def fit(case: Case, progress_bar: bool) -> float:
    stopwatch = Stopwatch(case)
    with tempfile.TemporaryDirectory() as directory:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=CSVLogger(directory),
            log_every_n_steps=50,
            enable_checkpointing=False,
            enable_progress_bar=progress_bar,
            enable_model_summary=False,
        )
        trainer.fit(Classifier(case, stopwatch), Batches(case))
    return stopwatch.microseconds_per_step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--progress-bar", action="store_true", help="show Lightning's progress bar (default: off)")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    print(f"torch {torch.__version__}, lightning {lightning.__version__}, 1 thread", file=sys.stderr)
    results = {}
    for name, case in CASES.items():
        if arguments.case not in (name, "all"):
            continue
        results[f"overhead.{name}.pytorch_us"] = round(pytorch(case), 1)
        results[f"overhead.{name}.lightning_us"] = round(fit(case, arguments.progress_bar), 1)
    # A progress bar may have left the cursor in the middle of a line.
    print("\n" + json.dumps(results) if arguments.progress_bar else json.dumps(results))


if __name__ == "__main__":
    main()
