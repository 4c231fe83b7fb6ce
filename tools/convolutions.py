"""Measure convolutions against other libraries and write the table of `docs/convolutions.md`.

    python -m tools.convolutions            print the table
    python -m tools.convolutions --write    and put it into the page
    python -m tools.convolutions --default  print it with the default limit for packed weights

One core, processor time (repeatable on a busy machine), the best of several rounds; libraries run
round-robin, each after the threads of the previous one are idle, with a first call that is not
counted. Weights are constants for each, packed whatever memory that takes.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from examples.images import NETWORKS
from rich.progress import track
from tools import convolution_peers as peers
from tools import measured
from tools.convolution_peers import PEERS, Code, Run

import smelt as sm
from smelt.bench.process import pin_to_cpus
from smelt.bench.products import wait_until_idle
from smelt.bench.sheet import rows_below_targets
from smelt.bench.table import Table

PAGE = Path(__file__).parent.parent / "docs" / "convolutions.md"
ROUNDS = 5
AIMS = {"best peer / Smelt": 0.95}
"""Minimum that columns of the table should reach."""
Case = tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]
CASES: tuple[Case, ...] = (
    ("3×3, 64 → 64, 56²", (1, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    ("1×1, 256 → 64, 56²", (1, 256, 56, 56), (64, 256, 1, 1), {}),
    ("7×7 by 2, 3 → 64, 224²", (1, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    ("3×3, 512 → 512, 7²", (1, 512, 7, 7), (512, 512, 3, 3), {"padding": 1}),
    ("3×3 by 2, 64 → 128, 56²", (1, 64, 56, 56), (128, 64, 3, 3), {"stride": 2, "padding": 1}),
    ("3×3, 128 → 128, 28²", (1, 128, 28, 28), (128, 128, 3, 3), {"padding": 1}),
    ("3×3, 32 groups of 4, 56²", (1, 128, 56, 56), (128, 4, 3, 3), {"padding": 1, "groups": 32}),
    ("3×3 depthwise, 128, 56²", (1, 128, 56, 56), (128, 1, 3, 3), {"padding": 1, "groups": 128}),
    ("7×7 depthwise, 96, 56²", (1, 96, 56, 56), (96, 1, 7, 7), {"padding": 3, "groups": 96}),
    ("7×7 depthwise, 768, 7²", (1, 768, 7, 7), (768, 1, 7, 7), {"padding": 3, "groups": 768}),
)
LAST = (CASES[0], CASES[2], CASES[4], CASES[6], CASES[7], CASES[8])
"""Cases that are measured with channels last as well."""


def best(runs: dict[str, Run]) -> dict[str, float]:
    """Return the seconds of processor time of each call, run round-robin."""
    seconds = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
        run()
    for _ in range(ROUNDS):
        for name, run in runs.items():
            wait_until_idle()
            run()
            start, count = time.process_time(), 0
            while count < 3 or time.process_time() - start < 0.02:
                run()
                count += 1
            seconds[name] = min(seconds[name], (time.process_time() - start) / count)
    return seconds


def line(title: str, runs: dict[str, Run]) -> str:
    """Return one row of the table."""
    seconds = best(runs)
    smelt_seconds = seconds["smelt"]
    cells = [f"{seconds[p] * 1e6:,.0f} µs" if p in seconds else "–" for p in ("smelt", *PEERS)]
    others = [s for p, s in seconds.items() if p != "smelt"]
    ratio = f"{min(others) / smelt_seconds:.2f}" if others else "–"
    return f"| {title} | {' | '.join(cells)} | {ratio} |"


# ---- functions ---------------------------------------------------------------------------------


def single(options: dict[str, Any]) -> Code:
    """Return a single convolution."""
    return lambda x, p: sm.nn.conv(x, p["weight"], **options)


def residual_block(x: Any, p: Any) -> Any:
    """Compute relu(norm(conv(x)) + x), a convolution with an epilogue to fuse."""
    y = sm.nn.conv(x, p["weight"], padding=1)
    y = sm.nn.batch_norm(y, p["mean"], p["variance"], p["gain"], p["shift"])
    return sm.nn.relu(y + x)


def separable(x: Any, p: Any) -> Any:
    """Compute a depthwise convolution, ReLU, a pointwise one, ReLU."""
    inner = sm.nn.relu(sm.nn.conv(x, p["depth"], padding=1, groups=128))
    return sm.nn.relu(sm.nn.conv(inner, p["point"]))


def alone(case: Case, rng: np.random.Generator) -> str:
    """Return the row of a convolution."""
    name, xs, ws, options = case
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (xs, ws))
    return line(name, peers.runs(single(options), x, {"weight": w}))


def channels_last(case: Case, rng: np.random.Generator) -> str:
    """Return the row of a convolution on channels-last data.

    PyTorch uses its memory format, JAX its dimension numbers, Smelt permutations.
    """
    name, xs, ws, options = case
    x, w = (rng.standard_normal(s).astype(np.float32).transpose(0, 2, 3, 1) for s in (xs, ws))
    x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
    channels_first = (x.transpose(0, 3, 1, 2), {"weight": w.transpose(0, 3, 1, 2)})

    def ours(x: Any, p: Any) -> Any:
        result = sm.nn.conv(
            sm.permute_dims(x, (0, 3, 1, 2)), sm.permute_dims(p["weight"], (0, 3, 1, 2)), **options
        )
        return sm.permute_dims(result, (0, 2, 3, 1))

    runs = {"smelt": peers.of_smelt(ours, x, {"weight": w})}
    with suppress(ImportError):
        runs |= peers.of_torch(single(options), *channels_first)
        runs.pop("onnxruntime", None)  # it has no such layout
    with suppress(ImportError):
        runs["jax"] = peers.of_jax(single({**options, "last": True}), x, {"weight": w})
    return line(f"{name}, channels last", runs)


def block(rng: np.random.Generator) -> str:
    """Return the row of a convolution with norm, residual and ReLU."""
    x = rng.standard_normal((1, 64, 56, 56)).astype(np.float32)
    p = {
        k: np.abs(rng.standard_normal(64)).astype(np.float32)
        for k in ("mean", "variance", "gain", "shift")
    }
    p["weight"] = rng.standard_normal((64, 64, 3, 3)).astype(np.float32)
    return line("3×3, 64 → 64, 56², norm, residual, ReLU", peers.runs(residual_block, x, p))


def pair(rng: np.random.Generator) -> str:
    """Return the row of a depthwise and a pointwise convolution."""
    shapes = ((1, 128, 56, 56), (128, 1, 3, 3), (128, 128, 1, 1))
    x, d, p = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    runs = peers.runs(separable, x, {"depth": d, "point": p})
    return line("depthwise 3×3, ReLU, 1×1, ReLU, 128, 56²", runs)


def whole(name: str, batch: int, size: int = 224) -> str:
    """Return the row of a network on a batch of images."""
    network, weights = NETWORKS[name]
    x = np.random.default_rng(1).standard_normal((batch, 3, size, size)).astype(np.float32)
    return line(f"{name}, batch {batch}", peers.runs(network, x, weights()))


def table() -> str:
    """Return the complete table; libraries that are not installed have no times."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    rng = np.random.default_rng(0)
    rows = [
        f"| workload | Smelt | {' | '.join(PEERS)} | best peer / Smelt |",
        f"| --- |{' --: |' * (len(PEERS) + 2)}",
    ]
    no_grad = importlib.import_module("torch").no_grad() if find_spec("torch") else nullcontext()
    networks = [(name, batch) for name in NETWORKS for batch in (1, 8)]
    with no_grad, sm.config(threads=1), pin_to_cpus(1):
        rows += [alone(case, rng) for case in track(CASES, "convolutions")]
        rows += [channels_last(case, rng) for case in track(LAST, "channels last")]
        rows += [block(rng), pair(rng)]
        rows += [whole(name, batch) for name, batch in track(networks, "networks")]
    markdown = "\n".join(rows) + "\n"
    return f"{markdown}\n{rows_below_targets(Table.of_markdown(markdown), AIMS)}\n"


def main() -> None:
    """Print the table; with `--write`, put it into the page."""
    extra_bytes = (
        0 if "--default" in sys.argv else None
    )  # None: as other libraries, which keep packed weights
    with sm.config(constants_extra=extra_bytes):
        markdown = table()
    print(markdown)
    if "--write" in sys.argv:
        measured.write(PAGE, markdown)


if __name__ == "__main__":
    main()
