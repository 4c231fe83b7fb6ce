"""Run a plan's printed files by Triton's own launcher, on torch's tensors.

    program = printed_program(graph, {"n": 1000}, torch.device("cuda", 0))
    results = program.run([tensor], (1000,))

Nothing of Smelt's runtime is between the file and the device: this places a wrong result or a crash
in the code or in the runtime, and runs where torch and Triton do and the runtime does not (AMD,
virtual GPUs, unknown drivers). It costs microseconds of Python a kernel. With
`library_products="plain"` products with nothing fused to them are torch's; with `tune="race"` their
first call decides. In Triton's interpreter (`TRITON_INTERPRET=1`) tensors are the CPU's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import torch

from smelt import knobs
from smelt.backend import Gpu
from smelt.backend.driver_gpu import gpu_of_driver
from smelt.backend.gpus import gpu
from smelt.codegen.triton.ahead import TritonCompiler
from smelt.codegen.triton.select import SelectingCompiler, select
from smelt.compiler.device_compiler import CompiledForDevice, plan_for_device
from smelt.errors import UnsupportedError
from smelt.frontends.torch.segment import Finish, Permutations, Runner, Segment
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal
from smelt.kernel.ir import (
    Apply,
    Cast,
    Const,
    Dot,
    Kernel,
    Let,
    Load,
    Merge,
    Ref,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.kernel.walk import statements, visit_body
from smelt.ops.contract import bare_axis
from smelt.runtime.cache import Cache
from smelt.runtime.cuda.tables import renamed_sizes
from smelt.runtime.executable_format import KernelUse
from smelt.tune.race import CLEAR_RATIO, compare
from smelt.tune.scheduled_gpu import policy_in_force, rates_of
from smelt.types.dtype import bf16, f16, f32
from smelt.types.expr import Index, evaluate, size


class ProductEinsum(NamedTuple):
    """An equation of `torch.einsum`, and which of a kernel's inputs are its operands."""

    equation: str
    operands: tuple[int, int]


def product_einsum(kernel: Kernel) -> ProductEinsum | None:
    """Return the product that a kernel is, None if it computes anything else.

    >>> from smelt.kernel.text import parse
    >>> product_einsum(
    ...     parse('''
    ... kernel product(x: f32[m,k], w: f32[n,k]) -> y: f32[m,n]
    ...   grid m, n
    ...   y[m,n] = dot(x[m,k], w[n,k] over k)
    ... ''')
    ... )
    ProductEinsum(equation='ac,bc->ab', operands=(0, 1))
    """
    body = tuple(statements(kernel))
    values = tuple(visit_body(kernel.body))
    dots = [v for v in values if isinstance(v, Dot)]
    stores = [s for s in body if isinstance(s, Store)]
    if len(dots) != 1 or len(stores) != 1 or not _only_multiplies(body, values):
        return None
    (dot,), (store,) = dots, stores
    lets = {s.name: s.value for s in body if isinstance(s, Let)}
    left, right = (lets.get(v.name, v) if isinstance(v, Ref) else v for v in (dot.left, dot.right))
    if not isinstance(left, Load) or not isinstance(right, Load):
        return None
    accesses = [(x.param, x.index) for x in (left, right, store)]
    params = [kernel.param(p) for p, _ in accesses]
    if len({p.dtype for p in params}) > 1 or params[0].dtype not in (f16, bf16, f32):
        return None
    letters = {a.name: chr(ord("a") + k) for k, a in enumerate(kernel.axes)}
    terms = [_term(kernel, p.shape, index, letters) for p, (_, index) in zip(params, accesses)]
    summed = {letters[a] for a in dot.over}
    if None in terms or not summed <= set(terms[0] or "") & set(terms[1] or ""):
        return None
    names = [p.name for p in kernel.inputs]
    return ProductEinsum(
        f"{terms[0]},{terms[1]}->{terms[2]}", (names.index(left.param), names.index(right.param))
    )


def _only_multiplies(body: Iterable[object], values: Iterable[Value]) -> bool:
    """Whether nothing is computed but a product, its sum over blocks, and roundings."""
    sums: list[Value] = []
    for s in body:
        match s:
            case Update(value=Apply(op="add", args=(Ref(), Dot())) as value):
                sums.append(value)
            case Stream(where=None, blocks=(block,)) if block.start is None and block.stop is None:
                pass
            case Store(where=None, join="") | Let() | Merge():
                pass
            case _:
                return False
    return all(isinstance(v, Load | Ref | Dot | Cast | Const) or v in sums for v in values)


def _term(
    kernel: Kernel, shape: tuple[Index, ...], index: tuple[Index, ...], letters: dict[str, str]
) -> str | None:
    """Return the axes of an array that is read as a whole, None for others."""
    axes = [bare_axis(e) for e in index]
    if len(set(axes)) < len(axes) or None in axes:
        return None
    names = [a for a in axes if a is not None]
    if any(kernel.axis(a).extent != n for a, n in zip(names, shape, strict=True)):
        return None
    return "".join(letters[a] for a in names)


_PROPERTIES = {
    "processors": "multi_processor_count",
    "clock_khz": "clock_rate",
    "memory_khz": "memory_clock_rate",
    "bus_bits": "memory_bus_width",
    "cache_bytes": "L2_cache_size",
    "memory_bytes": "total_memory",
    "shared_bytes": "shared_memory_per_multiprocessor",
    "registers": "regs_per_multiprocessor",
}
"""What rates follow from, by torch's names; older versions have some of them."""
_WHOLE = 1 << 60
"""Memory for which no plan has chunks of rows, which only Smelt's own launches run."""
_INTERPRETED = "h100"
"""The GPU whose plans Triton's interpreter runs."""


class PrintedProgram:
    """Plan whose kernels are files with a launcher.

    It has what a segment reads of an executable.
    """

    prelude = None

    def __init__(self, compiled: CompiledForDevice, device: torch.device) -> None:
        """Check that kernels are all that the plan has.

        Raises UnsupportedError for loops and chunks, which the runtime drives.
        """
        self.device, self.recipe = device, compiled.recipe
        self.values, self.outputs = self.recipe.values, self.recipe.outputs
        self.size_names = self.recipe.size_names
        steps = [s for s in self.recipe.steps if isinstance(s, KernelUse)]
        if len(steps) < len(self.recipe.steps):
            raise UnsupportedError(
                "the plan has loops or chunks, which Smelt's own launches alone run",
                hint='Set device_launch="driver".',
            )
        self._steps = list(zip(steps, compiled.plain, strict=True))
        self.gpu, self._policy = compiled.gpu, policy_in_force()
        wish = "never" if knobs.ROUNDING.get() == "exact" else knobs.LIBRARY_PRODUCTS.get()
        self._uses_torch = wish in ("plain", "always")
        self._races = wish == "auto" and knobs.TUNE.get() == "race"
        self._race_seconds = knobs.TUNE_SECONDS.get()
        last = {n: k for k, (use, _) in enumerate(self._steps) for n in use.values.values()}
        self._unused = {k: [n for n in last if last[n] == k] for k in last.values()}
        """By step: the values that no later one reads."""
        self.files: list[str] = []
        """The texts that have run so far, in the order of their first launches."""
        self._launches: dict[tuple[int, tuple[int, ...]], Callable[..., Any]] = {}

    @property
    def executable(self) -> PrintedProgram:
        """The program itself."""
        return self

    def run(self, tensors: Sequence[Any], sizes: tuple[int, ...]) -> list[Any]:
        """Queue the kernels in torch's current stream and return what they compute.

        `tensors` are the plan's inputs in order, `sizes` the values of `size_names`; those behind
        the tensors only pass sizes. Raises DeviceKernelError for what is not printed.
        """
        named = dict(zip(self.size_names, sizes, strict=True))
        inputs = [n for n, v in enumerate(self.values) if v.place == "input"]
        here = dict(zip(inputs, tensors, strict=False))
        for n in inputs[len(tensors) :]:
            shape = tuple(int(evaluate(e, named)) for e in self.values[n].shape)
            here[n] = torch.empty(1, device=self.device).expand(shape)
        kept = {n for n, v in enumerate(self.values) if v.place == "output"}
        for k, (use, kernel) in enumerate(self._steps):
            launch = self._launch(k, renamed_sizes(use.names, named), sizes)
            results = launch(*[here[use.values[p.name]] for p in kernel.inputs])
            results = results if isinstance(results, tuple) else (results,)
            here |= zip((use.values[p.name] for p in kernel.outputs), results, strict=True)
            for n in self._unused.get(k, ()):
                if n not in kept:
                    del here[n]
        return [here[n] for n in sorted(kept)]

    def _launch(
        self, number: int, named: Mapping[str, int], sizes: tuple[int, ...]
    ) -> Callable[..., Any]:
        """Return the launcher of a kernel for these sizes, printed when it is first needed."""
        launch = self._launches.get((number, sizes))
        einsum = product_einsum(self._steps[number][1]) if launch is None else None
        library = None if einsum is None else partial(_product, einsum)
        if library is not None and self._uses_torch:
            launch = self._launches[number, sizes] = library
        elif launch is None:
            text = self._print(self._steps[number][1], named)
            self.files.append(text)
            launcher = _loaded(text)
            keywords = inspect.signature(launcher).parameters.values()
            extra = [p.name for p in keywords if p.kind is p.KEYWORD_ONLY]
            passed = {name: named[name.removeprefix("size_")] for name in extra}
            launch = partial(launcher, **passed)
            if library is not None and self._races:
                launch = partial(self._race, (number, sizes), launch, library)
            self._launches[number, sizes] = launch
        return launch

    def _race(
        self,
        key: tuple[int, tuple[int, ...]],
        ours: Callable[..., Any],
        library: Callable[..., Any],
        *tensors: torch.Tensor,
    ) -> Any:
        """Run a product by what takes less time for these tensors, and from now on.

        The times are those of whole calls, as this launcher has them. Nothing races in a capture.
        """
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return ours(*tensors)

        def finish(launch: Callable[..., Any]) -> None:
            launch(*tensors)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

        ends = perf_counter() + self._race_seconds
        ratio = compare(partial(finish, ours), partial(finish, library), ends)
        self._launches[key] = library if ratio < CLEAR_RATIO else ours
        return self._launches[key](*tensors)

    def _print(self, kernel: Kernel, named: Mapping[str, int]) -> str:
        compiler = None
        if self.device.type != "cpu":
            compiler = TritonCompiler(Cache.default() if knobs.CACHE.get() else None)
        return select(kernel, named, rates_of(self.gpu), compiler, self._policy).source


def printed_program(
    graph: Graph, hints: Mapping[str, int], device: torch.device, machine: Gpu | None = None
) -> PrintedProgram:
    """Plan a graph for a device of torch.

    A `machine` is planned for instead of the device. The CPU stands for Triton's interpreter.
    Raises DeviceKernelError and UnsupportedError for what no program does.
    """
    if machine is None:
        machine = gpu(_INTERPRETED) if device.type == "cpu" else _gpu_of_torch(device)
    machine = replace(machine, memory_bytes=_WHOLE)
    compiler = SelectingCompiler(rates_of(machine), TritonCompiler(None), policy_in_force())
    return PrintedProgram(plan_for_device(graph, hints, machine, compiler, Journal()), device)


def _gpu_of_torch(device: torch.device) -> Gpu:
    """Return the figures of a device as torch reports them."""
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return gpu(str(properties.gcnArchName).partition(":")[0])
    facts = {k: int(getattr(properties, name, 0) or 0) for k, name in _PROPERTIES.items()}
    arch = f"sm_{properties.major}{properties.minor}"
    return gpu_of_driver(str(properties.name), arch, facts)


def compile_printed(
    graph: Graph, hints: Mapping[str, int], device: torch.device
) -> tuple[PrintedProgram, Mapping[str, Index]]:
    """Return a graph's program, and its sizes by those of the graph."""
    program = printed_program(graph, hints, device)
    return program, {n: size(n) for n in program.size_names}


class PrintedSegment(Segment):
    """Printed files with tensors of a GPU in and out.

    A call waits for the device where positions are checked.
    """

    compiled: Any

    def arrays(self, tensors: Sequence[Any], sizes: tuple[int, ...]) -> Any:
        """Refuse to view tensors as arrays: the host does not see their elements."""
        raise UnsupportedError("kernels of a GPU are not measured on arrays of the host yet")

    def _runner(
        self, finish: Finish | None, extra_inputs: int, permutations: Permutations
    ) -> Runner:
        program: PrintedProgram = self.compiled

        def run(tensors: tuple[Any, ...], sizes: tuple[int, ...]) -> Sequence[Any]:
            passed = [
                t if (order := permutations.get(k)) is None else t.permute(order)
                for k, t in enumerate(tensors)
            ]
            results: Sequence[Any] = program.run(passed, sizes)
            results = results if finish is None else finish(results, tensors)
            if self.bounds_checks.flag is None:
                return results
            return [*results[:-1], bool(results[-1])]

        return run


def _product(einsum: ProductEinsum, *tensors: torch.Tensor) -> torch.Tensor:
    operands = [tensors[k] for k in einsum.operands]
    return torch.einsum(einsum.equation, *operands).contiguous()


@cache
def _folder() -> TemporaryDirectory[str]:
    """Return the folder of the files, which Triton reads again; it goes with the process."""
    return TemporaryDirectory(prefix="smelt-printed-")


@cache
def _loaded(text: str) -> Callable[..., Any]:
    """Return the launcher of a printed file."""
    name = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = Path(_folder().name) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    launch: Callable[..., Any] = module.launch
    return launch
