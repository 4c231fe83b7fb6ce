"""Find the kernels of a report that share a launch on a GPU.

The runtime joins them in the same way: independent elementwise kernels that do the same to arrays
of any shape are one launch, whose table of addresses launches before it fill
(`smelt.runtime.cuda.array_tables`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from smelt.backend import Gpu
from smelt.codegen.triton.select import select
from smelt.dataclass import dataclass
from smelt.explain.device_code import policy_in_force, rates_of
from smelt.explain.entries import Entry
from smelt.kernel.canonical import canonical_kernel
from smelt.kernel.flat_map import flat_map, over_arrays
from smelt.kernel.ir import Kernel
from smelt.kernel.text import text
from smelt.runtime.cuda.array_tables import DIVISOR, families, launches_of, padded
from smelt.types.expr import evaluate, sizes_of

__all__ = ["SharedLaunch", "shared_launches"]


@dataclass(frozen=True, slots=True)
class SharedLaunch:
    """Entries that share a launch: their numbers, all launches that it takes, and its file."""

    numbers: tuple[int, ...]
    launches: int
    source: str


def shared_launches(
    entries: Sequence[Entry], groups: Sequence[Sequence[int]], machine: Gpu
) -> Iterator[SharedLaunch]:
    """Yield what the runtime joins of groups of entries that start together."""
    for group in groups:
        flat = {k: _flat(entries[k].kernel) for k in group}
        for numbers in families([_step(entries[k], flat[k]) for k in group]):
            first = flat[numbers[0]]
            if len(numbers) > 1 and first is not None:
                arrays = len(first.inputs) + len(first.outputs)
                launches = launches_of(len(numbers), arrays)
                elements = [_elements(entries[k]) for k in numbers]
                source = _source(first, elements, machine)
                yield SharedLaunch(tuple(numbers), launches, source)


def _flat(kernel: Kernel | None) -> Kernel | None:
    return None if kernel is None else flat_map(canonical_kernel(kernel)[0].kernel)


def _step(entry: Entry, flat: Kernel | None) -> tuple[int, str, int, int]:
    """Return an entry as `families` takes it."""
    if flat is None:
        return entry.number, "", 0, 0
    return entry.number, text(flat), _elements(entry), len(flat.inputs) + len(flat.outputs)


def _elements(entry: Entry) -> int:
    """Return the elements of each array of an elementwise kernel."""
    sizes: Mapping[str, int] = entry.sizes
    return int(evaluate(entry.arrays.outputs[-1].type.elements, sizes))


def _source(flat: Kernel, elements: Sequence[int], machine: Gpu) -> str:
    """Return the file of the program for arrays of so many elements each."""
    divisor = DIVISOR if all(n % DIVISOR == 0 for n in elements) else 1
    sizes = dict.fromkeys(sizes_of(flat.axes[0].extent), divisor)
    family = over_arrays(flat, padded(len(elements)))
    return select(family, sizes, rates_of(machine), None, policy_in_force()).source
