"""Compare losses and heads with other libraries on one core, by time and memory.

    python -m bench --losses                       # the table
    python -m bench.losses CASE PEER     # one number pair as JSON, from this process

Losses run forward, some backward too. Times are processor time, the best of some rounds, each
library in a process of its own. Memory is the first full-size call's use beyond its operands and
results: the peak of the process's resident memory, after a small call has loaded whatever the
library needs.  `inductor` is `torch.compile`.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import smelt as sm
from bench.isa import held
from bench.process import command, one_thread_variables, pin_to_cpus
from bench.sheet import sheet
from bench.table import NOTHING, Table, duration

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]
PEERS = ("smelt", "torch", "inductor", "jax")
ROUNDS = 3
AIMS = {"best peer / smelt": 1.5}
"""Minimum that columns of the page should reach."""
TITLES = {
    "head": "linear + cross-entropy, 512×512 to 32000",
    "head-back": "the same with both gradients",
    "splade": "SPLADE head, 4×256×768 to 30522, lengths 256, 200, 128, 64",
    "distill": "KL of two heads, 512×512 to 32000",
    "entropy": "linear + cross-entropy less a tenth of the entropy",
    "differential": "differential attention, 12×2048×64",
    "talking": "attention whose heads talk before and after softmax, 12×1024×64",
    "attention-back": "causal attention and its gradients, 12×2048×64",
}


def operands(case: str, share: int = 1) -> list[Array]:
    """Return the arrays of a case; `share` 16 makes a small one."""
    rng = np.random.default_rng(0)

    def f32(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32) / np.float32(shape[-1] ** 0.25)

    n, v, d = 512 // share, 32000 // share, 512 // share
    if case == "splade":
        s, v, d = 256 // share, 30522 // share, 768 // share
        lengths = np.array([256, 200, 128, 64])[:, None] // share
        return [f32(4, s, d), f32(v, d), f32(v), np.arange(s)[None] < lengths]
    if case == "attention-back":
        return [f32(1, 12, 2048 // share, 64) for _ in range(4)]
    if case == "distill":
        return [f32(n, d), f32(v, d), f32(n, d), f32(v, d)]
    if case == "differential":
        return [f32(12, 2048 // share, 64) for _ in range(5)]
    if case == "talking":
        return [*(f32(12, 1024 // share, 64) for _ in range(3)), f32(12, 12), f32(12, 12)]
    return [f32(n, d), f32(v, d), rng.integers(0, v, n)]


def _plain(xp: Any, case: str) -> Call:
    """Return a case's forward pass as array code, for Smelt and JAX."""

    def total(z: Any) -> Any:
        top = xp.max(z, axis=-1, keepdims=True)
        return xp.log(xp.sum(xp.exp(z - top), axis=-1, keepdims=True)) + top

    def head(x: Any, w: Any, y: Any) -> Any:
        z = x @ w.T
        return xp.mean(total(z) - xp.take_along_axis(z, y[:, None], axis=1))

    def splade(h: Any, e: Any, b: Any, mask: Any) -> Any:
        z = xp.log1p(xp.maximum(h @ e.T + b, 0))
        return xp.max(xp.where(mask[:, :, None], z, 0), axis=1)

    def distill(x: Any, w: Any, y: Any, u: Any) -> Any:
        z, t = x @ w.T, y @ u.T
        high = t - total(t)
        return xp.sum(xp.exp(high) * (high - (z - total(z)))) / x.shape[0]

    def entropy(x: Any, w: Any, y: Any) -> Any:
        z = x @ w.T
        p = z - total(z)
        return xp.mean(
            0.1 * xp.sum(xp.exp(p) * p, axis=1) - xp.take_along_axis(p, y[:, None], axis=1)[:, 0]
        )

    def weights(s: Any) -> Any:
        e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True)

    def differential(q: Any, k: Any, p: Any, r: Any, v: Any) -> Any:
        first, second = (weights(a @ xp.matrix_transpose(b) / 8) for a, b in ((q, k), (p, r)))
        return (first - 0.3 * second) @ v

    def talking(q: Any, k: Any, v: Any, before: Any, after: Any) -> Any:
        s = xp.tensordot(before, q @ xp.matrix_transpose(k) / 8, axes=1)
        return xp.tensordot(after, weights(s), axes=1) @ v

    def attention(q: Any, k: Any, v: Any) -> Any:
        s = q @ xp.matrix_transpose(k) / 8
        rows, columns = (xp.arange(s.shape[a]) for a in (-2, -1))
        return weights(xp.where(rows[:, None] >= columns[None], s, -xp.inf)) @ v

    forms = {
        "splade": splade,
        "distill": distill,
        "attention-back": attention,
        "entropy": entropy,
        "differential": differential,
        "talking": talking,
    }
    return forms.get(case, head)


def smelt_call(case: str) -> Call:
    """Return a case compiled by `sm.jit`."""
    code = _plain(sm, case)
    if case == "head-back":
        return sm.jit(sm.value_and_grad(code, (0, 1)))
    if case == "attention-back":
        return sm.jit(lambda q, k, v, g: sm.vjp(code, q, k, v)[1](g))
    return sm.jit(code)


def _jax_call(case: str) -> Call:
    jax: Any = importlib.import_module("jax")
    code = _plain(importlib.import_module("jax.numpy"), case)
    if case == "head-back":
        code = jax.value_and_grad(code, (0, 1))
    if case == "attention-back":
        forward = code
        code = lambda q, k, v, g: jax.vjp(forward, q, k, v)[1](g)  # noqa: E731
    compiled = jax.jit(code)
    return lambda *xs: jax.block_until_ready(compiled(*xs))


def _torch_call(case: str, compiled: bool = False) -> Call:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    code = _torch_form(torch, case)
    code = torch.compile(code) if compiled else code
    gradient_count = {"head-back": 2, "attention-back": 3}.get(case, 0)

    def run(*arrays: Array) -> Any:
        xs = [torch.from_numpy(a) for a in arrays]
        if not gradient_count:
            return code(*xs)
        parameters = [x.requires_grad_() for x in xs[:gradient_count]]
        loss = code(*parameters, *xs[gradient_count:])
        loss.backward(*xs[3:])
        return [x.grad for x in parameters]

    return run


def _torch_form(torch: Any, case: str) -> Call:
    """Return a case's forward pass as a user of PyTorch writes it."""
    f = torch.nn.functional

    def head(x: Any, w: Any, y: Any) -> Any:
        return f.cross_entropy(x @ w.T, y)

    def splade(h: Any, e: Any, b: Any, mask: Any) -> Any:
        z = torch.log1p(torch.relu(h @ e.T + b))
        return torch.where(mask[:, :, None], z, 0).amax(1)

    def distill(x: Any, w: Any, y: Any, u: Any) -> Any:
        low, high = f.log_softmax(x @ w.T, -1), f.log_softmax(y @ u.T, -1)
        return f.kl_div(low, high, reduction="batchmean", log_target=True)

    def entropy(x: Any, w: Any, y: Any) -> Any:
        p = f.log_softmax(x @ w.T, -1)
        return f.nll_loss(p, y) + 0.1 * (p.exp() * p).sum(1).mean()

    def differential(q: Any, k: Any, p: Any, r: Any, v: Any) -> Any:
        attend = f.scaled_dot_product_attention  # the fastest form: one call per pair of heads
        return (attend(q[None], k[None], v[None]) - 0.3 * attend(p[None], r[None], v[None]))[0]

    def talking(q: Any, k: Any, v: Any, before: Any, after: Any) -> Any:
        s = torch.einsum("gh,hij->gij", before, q @ k.mT / 8)
        return torch.einsum("gh,hij->gij", after, torch.softmax(s, -1)) @ v

    def attention(q: Any, k: Any, v: Any, _arrives: Any = None) -> Any:
        return f.scaled_dot_product_attention(q, k, v, is_causal=True)

    forms = {
        "splade": splade,
        "distill": distill,
        "attention-back": attention,
        "entropy": entropy,
        "differential": differential,
        "talking": talking,
    }
    return forms.get(case, head)


BUILDERS: dict[str, Callable[[str], Call]] = {
    "smelt": smelt_call,
    "torch": _torch_call,
    "inductor": lambda case: _torch_call(case, True),
    "jax": _jax_call,
}


def measure(case: str, peer: str, rounds: int = ROUNDS, share: int = 1) -> dict[str, float]:
    """Return nanoseconds and bytes of one case in one library, in this process."""
    with sm.config(threads=1):
        BUILDERS[peer](case)(*operands(case, 16))
        arrays = operands(case, share)
        call = BUILDERS[peer](case)
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak resident set size
        result = call(*arrays)
        peak = _status("VmHWM") - before - _result_bytes(result)
        times: list[float] = []
        for _ in range(rounds):
            start = time.process_time()
            result = call(*arrays)
            times.append((time.process_time() - start) * 1e9)
    return {"ns": min(times), "bytes": max(peak, 0)}


def _result_bytes(result: Any) -> int:
    if isinstance(result, (tuple, list)):
        return sum(map(_result_bytes, result))  # pyright: ignore[reportUnknownArgumentType]
    return int(np.prod(result.shape)) * 4


def _status(field: str) -> int:
    """Return a figure of this process in bytes; Linux only."""
    text = Path("/proc/self/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def run(rounds: int = ROUNDS) -> dict[str, dict[str, dict[str, float]]]:
    """Measure all cases, each library in a process of its own with one thread."""
    settings = one_thread_variables()
    figures_by_case: dict[str, dict[str, dict[str, float]]] = {}
    for case in TITLES:
        for peer in held(PEERS):
            line = command(["-m", "bench.losses", case, peer, str(rounds)], settings)
            with pin_to_cpus(1):
                completed = subprocess.run(  # noqa: S603
                    line, capture_output=True, text=True, check=False
                )
            if completed.returncode == 0:
                figures = json.loads(completed.stdout.splitlines()[-1])
                figures_by_case.setdefault(case, {})[peer] = figures
    return figures_by_case


def table(measured: dict[str, dict[str, dict[str, float]]]) -> Table:
    """Return time and memory of each library, and the fastest peer's time over Smelt's."""
    peers = [p for p in PEERS if any(p in row for row in measured.values())]
    rows: list[tuple[str, ...]] = []
    for case, row in measured.items():
        smelt_ns = row.get("smelt", {}).get("ns")
        others = [figures["ns"] for p, figures in row.items() if p != "smelt"]
        against = f"{min(others) / smelt_ns:.2f}" if smelt_ns and others else NOTHING
        cells = [duration(row[p]["ns"] if p in row else None) for p in peers]
        cells += [f"{row[p]['bytes'] / 2**20:.0f} MiB" if p in row else NOTHING for p in peers]
        rows.append((TITLES[case], *cells, against))
    headers = ("loss, float32", *peers, *(f"{p}, memory" for p in peers), "best peer / smelt")
    return Table("Losses and heads on one core", headers, tuple(rows))


def page(measured: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the table as a page of the documentation."""
    return sheet("Losses and heads", "losses", __doc__, table(measured), aims=AIMS)


def write(measured: dict[str, dict[str, dict[str, float]]], folder: Path) -> Path:
    """Write the page; return its path."""
    path = folder / "losses.md"
    path.write_text(page(measured), encoding="utf-8")
    return path


if __name__ == "__main__":
    name, library, *more = sys.argv[1:]
    sys.stdout.write(json.dumps(measure(name, library, int(more[0]) if more else ROUNDS)) + "\n")
