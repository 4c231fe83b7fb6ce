"""Find blocks of arrays that a tensor descriptor can copy: one thread asks for a whole block.

    desc_x = tl.make_tensor_descriptor(ptr_x, [size_m, size_k], [size_k, 1], [BLOCK_m, BLOCK_k])
    t1 = desc_x.load([start_m, start_k])

Elements outside of the array are zero, so that the copy needs no mask and its sum no selection.
Addresses and rows must be multiples of 16 bytes; a block has at most 256 elements along an axis.
NVIDIA, "CUDA Driver API", cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.codegen.triton.free_axes import axes_of_body, axes_of_index
from smelt.codegen.triton.narrow_products import operand_loads
from smelt.kernel.ir import Kernel, Load, Param, Stream
from smelt.kernel.walk import statements
from smelt.ops.contract import bare_axis
from smelt.types.expr import Index, evaluate, product

__all__ = ["COPY_BYTES", "copied_loads", "row_strides"]

COPY_BYTES = 16
"""Rows and blocks of a row are multiples of it."""
MOST_BLOCK_EXTENT = 256
MOST_COPY_RANK = 5


def row_strides(param: Param) -> list[Index]:
    """Return the distances of neighbours along all dimensions but the last one, in elements."""
    return [product(param.shape[d + 1 :]) for d in range(len(param.shape) - 1)]


def copied_loads(
    launch: Kernel, sizes: Mapping[str, int], lanes: Mapping[str, int]
) -> dict[Load, tuple[str | None, ...]]:
    """Return the operands of contractions that descriptors copy at these sizes.

    Each has the axis of every dimension of its array; None for those with one index.
    """
    result: dict[Load, tuple[str | None, ...]] = {}
    for load in operand_loads(launch):
        axes = _copied_axes(launch, load, lanes)
        param = launch.param(load.param)
        rows = [int(evaluate(n, sizes)) * param.dtype.itemsize for n in row_strides(param)]
        if axes is not None and all(n % COPY_BYTES == 0 for n in rows):
            result[load] = axes
    return result


def _copied_axes(
    launch: Kernel, load: Load, lanes: Mapping[str, int]
) -> tuple[str | None, ...] | None:
    """Return the axes along which a load copies a block of its array, or None.

    The lanes that do not exist must be those outside of the array. Strides of several sizes, whose
    product may exceed 32 bits, are left out.
    """
    param = launch.param(load.param)
    is_plain = param.strides is None and not param.each and load.other is None
    if not is_plain or not 2 <= len(param.shape) <= MOST_COPY_RANK or param.dtype.itemsize > 2:
        return None
    if len(param.shape) > 2 and not all(isinstance(n, int) for n in row_strides(param)):
        return None
    axes = _block_axes(launch, load, lanes)
    blocks = [a for a in axes or () if a is not None]
    if axes is None or len(blocks) != 2 or axes[-1] is None:
        return None
    if any(not 1 < lanes[a] <= MOST_BLOCK_EXTENT for a in blocks):
        return None
    return axes if lanes[axes[-1]] * param.dtype.itemsize >= COPY_BYTES else None


def _block_axes(
    launch: Kernel, load: Load, lanes: Mapping[str, int]
) -> tuple[str | None, ...] | None:
    """Return the axis of each dimension; None where an index is another one along lanes."""
    names, cut = axes_of_body(launch.body), _cut_axes(launch)
    result: list[str | None] = []
    for e, extent in zip(load.index, launch.param(load.param).shape, strict=True):
        along = [a for a in axes_of_index(e, names) if lanes.get(a, 1) > 1]
        name = bare_axis(e)
        is_whole = name is not None and name not in cut and launch.axis(name).extent == extent
        if along and not is_whole:
            return None
        result.append(name if along else None)
    return tuple(result)


def _cut_axes(launch: Kernel) -> Sequence[str]:
    """Return the axes that a stream does not visit from 0 to their extent."""
    streams = [s for s in statements(launch) if isinstance(s, Stream)]
    ends = [b.axis for s in streams for b in s.blocks if b.start is not None or b.stop is not None]
    return [*ends, *(b.axis for s in streams for b in s.bounds)]
