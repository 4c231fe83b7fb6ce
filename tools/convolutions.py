"""Measures convolutions against torch and writes the table of `docs/convolutions.md`.

    python -m tools.convolutions            print the table
    python -m tools.convolutions --write    and put it into the page

One thread, processor time (repeatable on a busy machine), the best of several rounds in which both
sides take turns.  torch runs eagerly; its convolutions are oneDNN's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from examples.images import NETWORKS, Layer
from tools import measured

import smelt as sm

PAGE = Path(__file__).parent.parent / "docs" / "convolutions.md"
ROUNDS = 5
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
"""Those that are measured with channels last as well."""


def best(*runs: Callable[[], Any]) -> list[float]:
    """Seconds of processor time of each, taking turns."""
    found = [float("inf")] * len(runs)
    for run in runs:
        run()
    for _ in range(ROUNDS):
        for k, run in enumerate(runs):
            start, count = time.process_time(), 0
            while count < 3 or time.process_time() - start < 0.02:
                run()
                count += 1
            found[k] = min(found[k], (time.process_time() - start) / count)
    return found


def line(name: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> str:
    """One row of the table."""
    mine, other = best(ours, theirs)
    return f"| {name} | {mine * 1e6:,.0f} µs | {other * 1e6:,.0f} µs | {other / mine:.2f} |"


def single(torch: Any, case: Case, rng: np.random.Generator) -> str:
    """A convolution alone."""
    name, xs, ws, options = case
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (xs, ws))
    run = sm.jit(lambda x, w: sm.nn.conv(x, w, **options))
    a, b = sm.asarray(x), sm.asarray(w)
    t, u = torch.from_numpy(x), torch.from_numpy(w)
    call = torch.nn.functional.conv2d
    return line(name, lambda: np.asarray(run(a, b)), lambda: call(t, u, **options))


def channels_last(torch: Any, case: Case, rng: np.random.Generator) -> str:
    """The same with channels last in memory: torch's memory format, and our permutations."""
    name, xs, ws, options = case
    x, w = (rng.standard_normal(s).astype(np.float32).transpose(0, 2, 3, 1) for s in (xs, ws))

    def ours(x: Any, w: Any) -> Any:
        found = sm.nn.conv(*(sm.permute_dims(v, (0, 3, 1, 2)) for v in (x, w)), **options)
        return sm.permute_dims(found, (0, 2, 3, 1))

    run = sm.jit(ours)
    a, b = (sm.asarray(np.ascontiguousarray(v)) for v in (x, w))
    t, u = (torch.from_numpy(np.ascontiguousarray(v)).permute(0, 3, 1, 2) for v in (x, w))
    call = torch.nn.functional.conv2d
    return line(f"{name}, channels last", lambda: np.asarray(run(a, b)),
                lambda: call(t, u, **options))  # fmt: skip


def residual_block(torch: Any, rng: np.random.Generator) -> str:
    """relu(norm(conv(x)) + x): what a fused epilogue saves."""
    functional = torch.nn.functional
    x = rng.standard_normal((1, 64, 56, 56)).astype(np.float32)
    w = rng.standard_normal((64, 64, 3, 3)).astype(np.float32)
    p = [np.abs(rng.standard_normal(64)).astype(np.float32) for _ in range(4)]

    def ours(x: Any, w: Any, *p: Any) -> Any:
        return sm.nn.relu(sm.nn.batch_norm(sm.nn.conv(x, w, padding=1), *p) + x)

    run, arrays = sm.jit(ours), [sm.asarray(v) for v in (x, w, *p)]
    t, u, *q = (torch.from_numpy(v) for v in (x, w, *p))

    def theirs() -> Any:
        return functional.relu(functional.batch_norm(functional.conv2d(t, u, padding=1), *q) + t)

    name = "3×3, 64 → 64, 56², norm, residual, ReLU"
    return line(name, lambda: np.asarray(run(*arrays)), theirs)


def separable(torch: Any, rng: np.random.Generator) -> str:
    """A depthwise convolution, ReLU, a pointwise one, ReLU."""
    functional = torch.nn.functional
    shapes = ((1, 128, 56, 56), (128, 1, 3, 3), (128, 128, 1, 1))
    host = [rng.standard_normal(s).astype(np.float32) for s in shapes]

    def ours(x: Any, d: Any, p: Any) -> Any:
        inner = sm.nn.relu(sm.nn.conv(x, d, padding=1, groups=128))
        return sm.nn.relu(sm.nn.conv(inner, p))

    run, arrays = sm.jit(ours), [sm.asarray(v) for v in host]
    x, d, p = (torch.from_numpy(v) for v in host)

    def theirs() -> Any:
        inner = functional.relu(functional.conv2d(x, d, padding=1, groups=128))
        return functional.relu(functional.conv2d(inner, p))

    name = "depthwise 3×3, ReLU, 1×1, ReLU, 128, 56²"
    return line(name, lambda: np.asarray(run(*arrays)), theirs)


# ---- networks ----------------------------------------------------------------------------------


def arrays_of(p: Layer, make: Callable[[Any], Any]) -> Layer:
    """A tree of weights with every array converted."""
    return {k: arrays_of(v, make) if isinstance(v, dict) else make(v) for k, v in p.items()}


def torch_network(torch: Any, name: str) -> Callable[..., Any]:
    """The same network, written for torch: its functions in the place of ours."""
    functional = torch.nn.functional

    class Blocks:
        relu = staticmethod(functional.relu)

        @staticmethod
        def max_pool(x: Any, size: int, **options: Any) -> Any:
            return functional.max_pool2d(x, size, **options)

        @staticmethod
        def conv(x: Any, w: Any, **options: Any) -> Any:
            return functional.conv2d(x, w, **options)

        @staticmethod
        def batch_norm(x: Any, *p: Any) -> Any:
            return functional.batch_norm(x, *p)

    class Names:
        nn = Blocks

        @staticmethod
        def mean(x: Any, axis: tuple[int, ...]) -> Any:
            return x.mean(axis)

        @staticmethod
        def minimum(x: Any, most: float) -> Any:
            return x.clamp(max=most)

        @staticmethod
        def maximum(x: Any, least: float) -> Any:
            return x.clamp(min=least)

    network = NETWORKS[name][0]
    names = dict(network.__globals__)
    names["sm"] = Names
    for part in ("normed", "relu6"):
        names[part] = type(network)(names[part].__code__, names)
    return type(network)(network.__code__, names)


def whole(torch: Any, name: str, batch: int, size: int = 224) -> str:
    """A network on a batch of images."""
    network, weights = NETWORKS[name]
    p, rng = weights(), np.random.default_rng(1)
    x = rng.standard_normal((batch, 3, size, size)).astype(np.float32)
    run, ours, mine = sm.jit(network), sm.asarray(x), arrays_of(p, sm.asarray)
    other, theirs = torch_network(torch, name), torch.from_numpy(x)
    theirs_p = arrays_of(p, torch.from_numpy)
    return line(f"{name}, batch {batch}", lambda: np.asarray(run(ours, mine)),
                lambda: other(theirs, theirs_p))  # fmt: skip


def table() -> str:
    """The whole table.  Raises ImportError without torch."""
    import torch  # noqa: PLC0415 - a peer that need not be installed

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    rows = ["| workload | Smelt | torch | torch / Smelt |", "| --- | --: | --: | --: |"]
    with torch.no_grad(), sm.config(threads=1):
        rows += [single(torch, case, rng) for case in CASES]
        rows += [channels_last(torch, case, rng) for case in LAST]
        rows += [residual_block(torch, rng), separable(torch, rng)]
        rows += [whole(torch, name, batch) for name in NETWORKS for batch in (1, 8)]
    return "\n".join(rows) + "\n"


def main() -> None:
    """Prints the table; with `--write`, the page gets it."""
    found = table()
    print(found)
    if "--write" in sys.argv:
        measured.write(PAGE, found)


if __name__ == "__main__":
    main()
