"""Find the kernels of a report that share launches on a GPU.

The runtime joins them in the same way: independent kernels that do the same to arrays of any
shapes, or reduce them as a whole, share launches, whose tables of addresses launches before them
fill (`smelt.runtime.cuda.array_tables`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from smelt.backend import Gpu
from smelt.codegen.triton.device_source import source_of_stages
from smelt.codegen.triton.select import select
from smelt.explain.entries import Entry
from smelt.kernel.canonical import canonical_kernel
from smelt.kernel.flat_kernels import FlatKernel, flat_kernels, over_arrays
from smelt.kernel.ir import Kernel
from smelt.kernel.text import text
from smelt.python.dataclass import dataclass
from smelt.runtime.cuda.array_tables import DIVISOR, families, launches_of, padded
from smelt.tune.scheduled_gpu import policy_in_force, rates_of
from smelt.types.expr import evaluate, product, sizes_of


@dataclass(frozen=True, slots=True)
class SharedLaunch:
    """Entries that share launches: their numbers, all launches that they take, and their files."""

    numbers: tuple[int, ...]
    launches: int
    sources: tuple[str, ...]


def shared_launches(
    entries: Sequence[Entry], groups: Sequence[Sequence[int]], machine: Gpu
) -> Iterator[SharedLaunch]:
    """Yield what the runtime joins of groups of entries that start together."""
    for group in groups:
        flat = {k: _flat(entries[k].kernel) for k in group}
        for numbers in families([_step(entries[k], flat[k]) for k in group]):
            every = flat[numbers[0]]
            if len(numbers) > 1 and every:
                launches = launches_of(len(numbers), [len(f.columns) for f in every])
                elements = [_elements(entries[k]) for k in numbers]
                sources = tuple(_source(f.kernel, elements, machine) for f in every)
                yield SharedLaunch(tuple(numbers), launches, sources)


def _flat(kernel: Kernel | None) -> tuple[FlatKernel, ...]:
    return () if kernel is None else flat_kernels(canonical_kernel(kernel)[0].kernel)


def _step(entry: Entry, flat: Sequence[FlatKernel]) -> tuple[int, str, int, list[int]]:
    """Return an entry as `families` takes it."""
    if not flat:
        return entry.number, "", 0, []
    texts = "".join(text(f.kernel) for f in flat)
    return entry.number, texts, _elements(entry), [len(f.columns) for f in flat]


def _elements(entry: Entry) -> int:
    """Return the elements of each array of a kernel; all have one shape."""
    sizes: Mapping[str, int] = entry.sizes
    assert entry.kernel is not None
    params = (*entry.kernel.inputs, *entry.kernel.outputs)
    return int(evaluate(product(next(p.shape for p in params if p.shape)), sizes))


def _source(flat: Kernel, elements: Sequence[int], machine: Gpu) -> str:
    """Return the program for arrays of such sizes, with a launcher if it has one.

    A launcher makes results like an argument: none for those of chunks, and for arrays of a number.
    """
    divisor = DIVISOR if all(n % DIVISOR == 0 for n in elements) else 1
    names = {n for a in flat.axes for n in sizes_of(a.extent)}
    family = over_arrays(flat, padded(len(elements)))
    sizes = dict.fromkeys(names, divisor)
    selection = select(family, sizes, rates_of(machine), None, policy_in_force())
    if {p.shape for p in flat.outputs} <= {p.shape for p in flat.inputs}:
        return selection.source
    return source_of_stages(family, selection.stages, sizes).text
