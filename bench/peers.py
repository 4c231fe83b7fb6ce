"""The libraries under comparison, behind a common interface.

A peer provides a row of the benchmark as one or more variants: calls that have finished their work
when they return. `prepare` makes the library's own copies of the inputs in the form its users have
them (NumPy arrays for NumPy and Smelt, tensors for PyTorch, device arrays for JAX), untimed.
Libraries are imported by name when a peer is opened, so that Smelt needs none of them.

>>> peer = open_peer("numpy", threads=1)
>>> row = WORKLOADS["a2"]
>>> arrays = row.arrays(small=True)
>>> [v.label for v in peer.variants(row, arrays)]
['array API', 'in place']
>>> variant = peer.variants(row, arrays)[0]
>>> row.check(variant.fetch(variant.call()), row.reference(arrays)) < 1.0
True
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from bench import idioms, namespaces
from bench.workloads import WORKLOADS as WORKLOADS
from bench.workloads import Arrays, Workload, as_tuple
from smelt.python.dataclass import dataclass


class Unavailable(Exception):
    """A library, or a required part of it, is missing; the message says which."""


@dataclass(frozen=True)
class Variant:
    """A way to run a row: `call` runs it, `fetch` converts its result to NumPy."""

    label: str
    call: Callable[[], Any]
    fetch: Callable[[Any], Arrays]


class Peer(Protocol):
    """A library that can run rows. Opening a peer imports the library."""

    name: str

    def variants(self, row: Workload, arrays: Arrays) -> Sequence[Variant]:
        """Return ways to run `row` on copies of `arrays`; the first is the shared text."""
        ...

    def record_ns(self) -> float | None:
        """Return the ns of recording one operator; None if the library does not record."""
        ...


def _fetch(result: Any) -> Arrays:
    return tuple(np.asarray(item) for item in as_tuple(result))


def _rebind(row: Workload, state: list[Any], call: Callable[..., Any]) -> Callable[[], Any]:
    """Return a call whose outputs are its next inputs, where the row has updates."""
    if not row.updates:
        return functools.partial(call, *state)

    def step() -> Any:
        result = call(*state)
        for place, value in zip(row.updates, as_tuple(result), strict=True):
            state[place] = value
        return result

    return step


def _bind(row: Workload, xp: Any) -> Callable[..., Any]:
    """Bind the row's function to a namespace, as a plain closure like a user's.

    (A `functools.partial` would cost `torch.compile` guards that its users do not pay.)
    """
    call = row.call

    def run(*inputs: Any) -> Any:
        return call(xp, *inputs)

    return run


CHAIN_LENGTH = 200


def record_chain(x: Any, y: Any) -> Any:
    """Apply `CHAIN_LENGTH` operators one after another, to time the recording of each."""
    for _ in range(CHAIN_LENGTH // 2):
        x = x * 0.5 + y
    return x


def _best_ns(call: Callable[[], object], count: int = 5) -> float:
    clock = importlib.import_module("time").perf_counter_ns
    best = float("inf")
    for _ in range(count):
        started = clock()
        call()
        best = min(best, clock() - started)
    return best


class NumpyPeer:
    """NumPy, which is single-threaded here."""

    name = "numpy"

    def __init__(self, threads: int) -> None:
        del threads
        self._xp = namespaces.numpy_namespace()
        self._idioms = idioms.numpy_idioms()

    def variants(self, row: Workload, arrays: Arrays) -> Sequence[Variant]:
        variants = [self._variant("array API", row, arrays, _bind(row, self._xp))]
        if row.id in self._idioms:
            variants.append(self._variant("in place", row, arrays, self._idioms[row.id]))
        return variants

    def _variant(
        self, label: str, row: Workload, arrays: Arrays, call: Callable[..., Any]
    ) -> Variant:
        state: list[Any] = [a.copy() for a in arrays] if row.updates else list(arrays)
        return Variant(label, _rebind(row, state, call), _fetch)

    def record_ns(self) -> float | None:
        return None


class TorchPeer:
    """PyTorch without a compiler: one operator at a time."""

    name = "torch"

    def __init__(self, threads: int) -> None:
        self._torch = _require("torch")
        self._torch.set_num_threads(threads)
        self._xp = namespaces.torch_namespace()
        self._idioms = idioms.torch_idioms()

    def variants(self, row: Workload, arrays: Arrays) -> Sequence[Variant]:
        variants = [self._variant("array API", row, arrays, _bind(row, self._xp))]
        if row.id in self._idioms:
            variants.append(self._variant("own operators", row, arrays, self._idioms[row.id]))
        return variants + self._optimiser(row, arrays)

    def _optimiser(self, row: Workload, arrays: Arrays) -> list[Variant]:
        if row.id != "adam":
            return []
        tensors = [self._torch.from_numpy(a.copy()) for a in arrays]
        return [Variant("optim.Adam(fused)", idioms.torch_adam(*tensors), _fetch)]

    def _variant(
        self, label: str, row: Workload, arrays: Arrays, call: Callable[..., Any]
    ) -> Variant:
        state: list[Any] = [self._torch.from_numpy(a.copy()) for a in arrays]
        return Variant(label, _rebind(row, state, call), _fetch)

    def record_ns(self) -> float | None:
        return None


class InductorPeer(TorchPeer):
    """`torch.compile` with its default back end and mode, and static shapes."""

    name = "inductor"

    def variants(self, row: Workload, arrays: Arrays) -> Sequence[Variant]:
        # Dynamo caches code per function: reset it, or the next size compiles as dynamic.
        self._torch._dynamo.reset()
        return super().variants(row, arrays)

    def _optimiser(self, row: Workload, arrays: Arrays) -> list[Variant]:
        return []

    def _variant(
        self, label: str, row: Workload, arrays: Arrays, call: Callable[..., Any]
    ) -> Variant:
        state: list[Any] = [self._torch.from_numpy(a.copy()) for a in arrays]
        if not row.updates:
            compiled = self._torch.compile(call)
            return Variant(label, functools.partial(compiled, *state), _fetch)

        def in_place(*inputs: Any) -> None:
            for place, value in zip(row.updates, call(*inputs), strict=True):
                inputs[place].copy_(value)

        step = self._torch.compile(in_place)

        def run() -> Any:
            step(*state)
            return tuple(state[place] for place in row.updates)

        return Variant(f"{label}, copy_", run, _fetch)

    def record_ns(self) -> float | None:
        x = self._torch.ones(4)

        def trace() -> None:
            self._torch._dynamo.reset()
            self._torch.compile(record_chain, backend="eager")(x, x)

        return _best_ns(trace, 3) / CHAIN_LENGTH


class JaxPeer:
    """`jax.jit`; inputs that the outputs replace are donated."""

    name = "jax"

    def __init__(self, threads: int) -> None:
        del threads  # XLA's pool follows the process's affinity, which the worker has set
        self._jax = _require("jax")
        self._xp = namespaces.jax_namespace()

    def variants(self, row: Workload, arrays: Arrays) -> Sequence[Variant]:
        state: list[Any] = [self._jax.device_put(a.copy()) for a in arrays]
        compiled = self._jax.jit(_bind(row, self._xp), donate_argnums=row.updates or None)
        wait = self._jax.block_until_ready
        call = _rebind(row, state, lambda *inputs: wait(compiled(*inputs)))
        label = "array API, donated" if row.updates else "array API"
        return [Variant(label, call, _fetch)]

    def record_ns(self) -> float | None:
        x = self._jax.numpy.ones(4)

        def trace() -> None:
            # A new function each time: JAX caches traces by function.
            def fresh(a: Any, b: Any) -> Any:
                return record_chain(a, b)

            self._jax.make_jaxpr(fresh)(x, x)

        return _best_ns(trace) / CHAIN_LENGTH


class SmeltPeer:
    """`smelt.jit` on NumPy arrays, with pooled outputs and with `out=`."""

    name = "smelt"

    def __init__(self, threads: int) -> None:
        del threads  # SMELT_THREADS is set by whoever starts the worker
        self._smelt = _require("smelt")
        if not hasattr(self._smelt, "jit"):
            raise Unavailable("smelt.jit is not there yet")
        self._xp = namespaces.smelt_namespace(self._smelt)

    def variants(self, row: Workload, arrays: Arrays) -> Sequence[Variant]:
        options: dict[str, Any] = {"donate": row.updates} if row.updates else {}
        state: list[Any] = [a.copy() for a in arrays]
        compiled = self._smelt.jit(_bind(row, self._xp), **options)
        variants = [Variant("array API", _rebind(row, state, compiled), _fetch)]
        if row.group in ("large", "cache") and not row.updates:
            variants.append(Variant("out=", self._into(compiled, arrays), _fetch))
        return variants

    def _into(self, compiled: Callable[..., Any], arrays: Arrays) -> Callable[[], Any]:
        outputs: list[Any] = []

        def run() -> Any:
            if not outputs:
                first = as_tuple(compiled(*arrays))
                outputs.extend(np.array(item) for item in first)
            return compiled(*arrays, out=outputs[0] if len(outputs) == 1 else tuple(outputs))

        return run

    def record_ns(self) -> float | None:
        x = self._smelt.asarray(np.ones(4, np.float32))
        return _best_ns(lambda: record_chain(x, x), 20) / CHAIN_LENGTH  # some compile what waits


PEERS: dict[str, Callable[[int], Peer]] = {
    "numpy": NumpyPeer,
    "torch": TorchPeer,
    "inductor": InductorPeer,
    "jax": JaxPeer,
    "smelt": SmeltPeer,
}
TITLES = {
    "numpy": "NumPy",
    "torch": "torch eager",
    "inductor": "torch.compile",
    "jax": "JAX jit",
    "smelt": "Smelt",
}
PACKAGES = {
    "numpy": ("numpy",),
    "torch": ("torch",),
    "inductor": ("torch",),
    "jax": ("jax", "jaxlib"),
    "smelt": ("smelt",),
}


def _require(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{module} is not installed ({error})") from error


def open_peer(name: str, threads: int) -> Peer:
    """Import the library and set its threads; raise `Unavailable` if it cannot be used."""
    if name not in PEERS:
        raise ValueError(f"unknown peer {name!r}: choose from {', '.join(PEERS)}")
    return PEERS[name](threads)


def configure_process(name: str) -> None:
    """Apply the process-wide settings of a library's user; only for a dedicated process.

    NumPy's warnings about `log(0)` are silenced, PyTorch runs in inference mode (cheaper calls).
    """
    np.seterr(all="ignore")
    if name in ("torch", "inductor"):
        _require("torch").inference_mode().__enter__()


def version(name: str) -> str:
    """Return the versions of a peer's packages without importing them; empty if not installed."""
    versions: list[str] = []
    for package in PACKAGES[name]:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            if importlib.util.find_spec(package) is not None:
                versions.append(f"{package} (source tree)")
    return ", ".join(versions)
