"""The checks of `smelt doctor`: facts about this machine, each with a verdict.

>>> [check.name for check in versions()][:2]
['smelt', 'python']
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from time import perf_counter
from typing import Any, Literal

import llvmlite
import llvmlite.binding as llvm
import numpy as np

import smelt
from smelt import knobs
from smelt.knobs.values import show_bytes
from smelt.machine.target import LEVELS, Target
from smelt.packages.version import __version__
from smelt.python.dataclass import dataclass
from smelt.runtime import figures
from smelt.runtime.cache import Cache
from smelt.runtime.host import load, stored_samples
from smelt.runtime.threads import pool

Verdict = Literal["ok", "warn", "fail", ""]


@dataclass(frozen=True, slots=True)
class Check:
    """A fact and its verdict; an empty verdict is information only."""

    group: str
    name: str
    value: str
    verdict: Verdict = ""
    note: str = ""


def all_checks() -> Iterator[Check]:
    """Yield every check in order; a check that raises is reported and stops no other."""
    for group in (versions, processor, threads, cache, cost_model, self_test):
        yield from _guarded(group)


def _guarded(group: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    name = group.__name__.replace("_", " ")
    try:
        yield from group()
    except Exception as error:  # noqa: BLE001 - any failure is a finding of the report
        yield Check(name, "failed", f"{type(error).__name__}: {error}", "fail")


def versions() -> Iterator[Check]:
    """Versions of Smelt, Python, required packages, and optional ones if installed."""
    yield Check("versions", "smelt", __version__, "ok")
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    yield Check("versions", "python", python, "ok" if sys.version_info >= (3, 11) else "fail")
    yield Check("versions", "system", f"{platform.system()} {platform.machine()}")
    yield Check("versions", "numpy", np.__version__, "ok")
    lib = ".".join(str(part) for part in llvm.llvm_version_info)
    yield Check("versions", "llvmlite", f"{llvmlite.__version__} (LLVM {lib})", "ok")
    yield Check("versions", "ml_dtypes", metadata.version("ml_dtypes"), "ok")
    for peer in ("torch", "jax", "onnxruntime"):
        try:
            yield Check("versions", peer, metadata.version(peer), "", "optional")
        except metadata.PackageNotFoundError:
            yield Check("versions", peer, "not installed", "", "optional")


def processor() -> Iterator[Check]:
    """The target of code generation, and the caches that block sizes depend on."""
    host = Target.host()
    yield Check("processor", "name", f"{host.name} (LLVM: {host.cpu})")
    wide = host.has_fma
    note = "" if wide else "no wide vectors: kernels will be slow"
    vectors = f"{host.isa}, {host.facts.summary}"
    yield Check("processor", "instructions", vectors, "ok" if wide else "warn", note)
    setting = knobs.TARGET.get()
    if setting != "auto":
        note_text = f"code is generated for {setting}"
        yield Check("processor", "chosen", setting, "ok", f"{note_text}, set by SMELT_TARGET")
    yield Check("processor", "features", " ".join(_notable(host)))
    sizes = (host.l1_bytes, host.l2_bytes, host.l3_bytes)
    levels = zip(("L1", "L2", "L3"), sizes, strict=True)
    yield Check("processor", "caches", ", ".join(f"{n} {show_bytes(b)}" for n, b in levels))


def _notable(host: Target) -> list[str]:
    features = (
        "sse4.2 avx avx2 fma f16c bmi2 avx512f avx512bw avx512vl avx512bf16 avx512vnni"
        " amx-bf16 amx-int8 neon dotprod bf16 i8mm sve"
    )
    return [name for name in features.split() if host.has(name)]


def threads() -> Iterator[Check]:
    """The threads of a call, and where their limit comes from."""
    budget = pool().budget
    value = f"{budget.threads} (from {budget.source})"
    yield Check("threads", "threads", value, "ok")
    cores = Target.host().cores
    if budget.threads > cores:
        note = "more threads than cores: they will take turns"
        yield Check("threads", "cores", str(cores), "warn", note)
    else:
        yield Check("threads", "cores", str(cores))


def cache() -> Iterator[Check]:
    """The location of compiled kernels, and whether it may be used."""
    if not knobs.CACHE.get():
        yield Check("cache", "use", "off", "warn", "every process compiles again")
        return
    info = Cache.default().info()
    place = info.path or "in memory only"
    note = info.refused or ""
    yield Check("cache", "place", place, "warn" if info.refused else "ok", note)
    size = f"{info.entries} entries, {show_bytes(info.nbytes)} of {show_bytes(info.limit)}"
    yield Check("cache", "content", size, "ok" if info.nbytes <= info.limit else "warn")


def cost_model() -> Iterator[Check]:
    """The machine figures behind predictions: measured on this machine, or defaults."""
    measured = load()
    host = measured or Target.host()
    if measured is None:
        note = "measure with `smelt doctor --probe`; until then plans rest on typical figures"
        yield Check("cost model", "figures", "assumed", "warn", note)
    else:
        yield Check("cost model", "figures", "measured on this machine", "ok", _quality())
    for level in LEVELS:
        one, many = host.one_thread.at(level), host.all_threads.at(level)
        speed = f"{many.read:.0f} GB/s read, {many.write:.0f} write, {many.copy:.0f} copy"
        alone = f"one thread {one.read:.0f}, {one.write:.0f}, {one.copy:.0f}"
        yield Check("cost model", level.upper(), f"{speed} ({alone})")
    flops = f"{host.fma_gflops:.0f} GFLOP/s a core"
    yield Check("cost model", "float32", flops)
    starts = f"{host.dispatch_ns:.0f} ns a call, {host.launch_ns:.0f} ns a parallel launch"
    yield Check("cost model", "starting", starts)


def _quality() -> str:
    """How well the figures are known: tries, spread, and whether the machine was quiet."""
    samples = stored_samples()
    if not samples:
        return ""
    name, spread = figures.largest_spread(samples)
    tries = max(map(len, samples.values()))
    share = figures.quietest_share(samples)
    quiet = "quiet" if share >= figures.MIN_QUIET_SHARE else f"busy by {1 - share:.0%}"
    largest = f", best two differ by at most {spread:.0%} ({name})" if name else ""
    return f"up to {tries} tries{largest}, the machine was {quiet}"


def self_test() -> Iterator[Check]:
    """Compile a fused kernel (map, broadcast and reduction) and compare it with NumPy."""
    face: Any = smelt
    if not hasattr(face, "jit"):
        return
    x = np.linspace(-2.0, 2.0, 64 * 1000, dtype=np.float32).reshape(64, 1000)
    b = np.linspace(0.0, 1.0, 1000, dtype=np.float32)

    def sample(xp: Any, x: Any, b: Any) -> Any:
        return xp.sum(xp.log(xp.maximum(x + b, xp.exp(-x))), axis=1)

    start = perf_counter()
    with knobs.config(cache=False):
        result = np.asarray(face.jit(lambda x, b: sample(face, x, b))(x, b))
    seconds = perf_counter() - start
    expected = sample(np, x.astype(np.float64), b.astype(np.float64))
    # A sum of 1000 terms of size 1, each within a few ulp, added pairwise.
    wrong = float(np.max(np.abs(result - expected)))
    limit = 1000 * 4 * 2.0**-23
    verdict: Verdict = "ok" if wrong <= limit else "fail"
    value = f"largest error {wrong:.2g} (allowed {limit:.2g}), {seconds * 1e3:.0f} ms to compile"
    yield Check("self test", "one kernel", value, verdict)
