"""Find blocks of arrays that a tensor descriptor can copy: one thread asks for a whole block.

    desc_x = tl.make_tensor_descriptor(ptr_x, [size_m, size_k], [size_k, 1], [BLOCK_m, BLOCK_k])
    t1 = desc_x.load([start_m, start_k])

Elements outside of the array are zero, so that the copy needs no mask and its sum no selection. A
result is copied to memory in the same way, without the elements outside of its array.
Addresses and rows must be multiples of 16 bytes; a block has at most 256 elements along an axis.
NVIDIA, "CUDA Driver API", cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.codegen.triton.block_axes import dots_of
from smelt.codegen.triton.narrow_products import operand_loads
from smelt.kernel.ir import Kernel, Load, Param, Store, Stream
from smelt.kernel.walk import Axes, axes_of_body, axes_of_index, statements
from smelt.ops.contract import bare_axis
from smelt.types.dtype import bool_, f64
from smelt.types.expr import Index, evaluate, product

COPY_BYTES = 16
"""Rows and blocks of a row are multiples of it."""
MAX_BLOCK_EXTENT = 256
MAX_COPY_RANK = 5
MAX_OPERAND_BYTES = 2
"""Bytes of an element of an operand in any order: wider ones are contiguous along the sum."""


def row_strides(param: Param) -> list[Index]:
    """Return the distances of neighbours along all dimensions but the last one, in elements."""
    return [product(param.shape[d + 1 :]) for d in range(len(param.shape) - 1)]


def copied_loads(
    launch: Kernel,
    sizes: Mapping[str, int],
    lanes: Mapping[str, int],
    *,
    takes_tf32: bool = False,
) -> dict[Load, tuple[str | None, ...]]:
    """Return the operands of contractions that descriptors copy at these sizes.

    Each has the axis of every dimension of its array; None for those with one index. Tensor cores
    of tf32 (`takes_tf32`) read operands that are contiguous along the summed axis from shared
    memory; another one is copied element by element, and no copy of a descriptor beside it.
    """
    loads = operand_loads(launch)
    narrow = [x for x in loads if launch.param(x.param).dtype.itemsize <= MAX_OPERAND_BYTES]
    every = {
        x: _copied_axes(launch, x, sizes, lanes)
        for x in (loads if takes_tf32 else narrow)
        if x.other is None
    }
    result = {load: axes for load, axes in every.items() if axes is not None}
    if not takes_tf32:
        return result
    summed = Axes(a for d in dots_of(launch.body) for a in d.over)
    return result if all(x in result and result[x][-1] in summed for x in loads) else {}


def copied_stores(
    launch: Kernel, sizes: Mapping[str, int], lanes: Mapping[str, int]
) -> dict[Store, tuple[str | None, ...]]:
    """Return the results whose blocks descriptors copy to memory at these sizes, as above."""
    read = {p.name for p in launch.inputs}
    every = {
        s: _copied_axes(launch, s, sizes, lanes)
        for s in launch.body
        if isinstance(s, Store) and not s.join and s.where is None and s.param not in read
    }
    return {s: axes for s, axes in every.items() if axes is not None}


def _copied_axes(
    launch: Kernel, access: Load | Store, sizes: Mapping[str, int], lanes: Mapping[str, int]
) -> tuple[str | None, ...] | None:
    """Return the axes along which an access copies a block of its array, or None.

    The lanes that do not exist must be those outside of the array. Strides of several sizes, whose
    product may exceed 32 bits, are left out.
    """
    param = launch.param(access.param)
    is_plain = param.strides is None and not param.each and param.dtype not in (bool_, f64)
    if not is_plain or not 2 <= len(param.shape) <= MAX_COPY_RANK:
        return None
    if not evaluate(product(param.shape), sizes):
        return None  # a descriptor has at least one element along each dimension
    rows = row_strides(param)
    if len(param.shape) > 2 and not all(isinstance(n, int) for n in rows):
        return None
    if any(int(evaluate(n, sizes)) * param.dtype.itemsize % COPY_BYTES for n in rows):
        return None
    axes = _block_axes(launch, access, lanes)
    blocks = [a for a in axes or () if a is not None]
    if axes is None or len(blocks) != 2 or axes[-1] is None:
        return None
    if any(not 1 < lanes[a] <= MAX_BLOCK_EXTENT for a in blocks):
        return None
    return axes if lanes[axes[-1]] * param.dtype.itemsize >= COPY_BYTES else None


def _block_axes(
    launch: Kernel, access: Load | Store, lanes: Mapping[str, int]
) -> tuple[str | None, ...] | None:
    """Return the axis of each dimension; None where an index is another one along lanes."""
    names, cut = axes_of_body(launch.body), _cut_axes(launch)
    result: list[str | None] = []
    for e, extent in zip(access.index, launch.param(access.param).shape, strict=True):
        along = [a for a in axes_of_index((e,), names) if lanes.get(a, 1) > 1]
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
