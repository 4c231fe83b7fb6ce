"""Generate the table of torch operators and how each one is computed.

    python -m tools.torch_operators            prints it
    python -m tools.torch_operators --write docs/torch_operators.md

*Defined* operators have a row and are computed by our kernels; torch decomposes *composite* ones
before we see them; *extern* ones are calls of torch inside the plan.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smelt.frontends.torch.table import TABLE, decompositions

_RANDOM = "torch's own random stream is kept"
_DATA = "the size of the result depends on data"
EXTERN_REASONS: dict[str, str] = {
    "_fft_c2r": "complex numbers",
    "_fft_r2c": "complex numbers",
    "_local_scalar_dense": "a number for Python",
    "_pdist_forward": "no rule yet",
    "atan2": "writes into its operand",
    "empty_strided": "memory without values",
    "grid_sampler_2d": "no rule yet",
    "masked_scatter": _DATA,
    "nonzero": _DATA,
    "rand": _RANDOM,
    "randn": _RANDOM,
    "randperm": _RANDOM,
    "sort": "sorting",
    "sym_storage_offset": "a number of the caller's tensor",
}
"""Operator without overload -> why torch computes it."""
_ROWS_ONLY = (
    "one position for each place beside the axis, or for all behind it; small parts of large arrays"
    " are extern"
)
_EQUAL = "windows of one size, or of different ones along dimensions of known sizes"
PARTIAL_SUPPORT: dict[str, str] = {
    "aten.convolution.default": "all but transposed ones of tiny images or by far strides, and "
    "over 9 taps along one channel",
    "aten.max_pool2d_with_indices.default": "positions in windows of up to 27 elements",
    "aten.max_pool3d_with_indices.default": "positions in windows of up to 27 elements",
    "aten._adaptive_avg_pool2d.default": _EQUAL,
    "aten._adaptive_avg_pool2d_backward.default": _EQUAL,
    "aten._adaptive_avg_pool3d.default": _EQUAL,
    "aten.adaptive_avg_pool1d.default": _EQUAL,
    "aten.max_pool2d_with_indices_backward.default": "windows that do not overlap",
    "aten.convolution_backward.default": "windows of one element or of lines; images in groups; "
    "weights of one channel; images of transposed ones",
    "aten.index.Tensor": "integer indices side by side; masks are extern: " + _DATA,
    "aten.div.Tensor_mode": "integers by a number; by a tensor a zero must raise",
    "aten.remainder.Tensor": "integers by a number; by a tensor a zero must raise",
    "aten.fmod.Tensor": "integers by a number; by a tensor a zero must raise",
    "aten.slice_scatter.default": "without a step",
    "aten.topk.default": "up to 16 elements, up to 4 of rows over 1024; others are extern",
    "aten.scatter.value": _ROWS_ONLY,
    "aten.scatter.src": _ROWS_ONLY,
    "aten.scatter_add.default": _ROWS_ONLY,
    "aten.scatter_reduce.two": "one position for all behind the axis; no means",
    "aten.index_put.default": "index arrays side by side; small parts of large arrays are extern",
}
"""Operators whose row does not take every call -> the calls that it takes."""
_SIZES = ("sym_numel", "sym_size")
_KEYS: Any = torch._C.DispatchKey  # pyright: ignore[reportPrivateUsage]
_IMPLICIT: Any = _KEYS.CompositeImplicitAutograd
"""Dispatch key of operators that PyTorch always decomposes."""


_HEAD = """\
# Operators of torch

How each operator of PyTorch's core set is computed behind `torch.compile(backend="smelt")`.
*Defined*: by our kernels. *Composite*: torch takes it apart first. *Extern*: one call of torch
between our kernels. The page is written by
`python -m tools.torch_operators --write docs/torch_operators.md`.

Of {all} overloads {defined} are defined, {composite} composite and {extern} extern.
{more} more outside of the core set are defined.

| operator | status | note |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Status:
    """An operator and how it is computed: defined, composite or extern."""

    name: str
    status: str
    note: str


def core_operators() -> list[Status]:
    """Return every overload that torch tags as core, in alphabetical order."""
    decomposed = {str(op) for op in decompositions()}
    statuses: list[Status] = []
    registry: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    for name in registry._dispatch_get_all_op_names():  # `dir` lists only those used so far
        space, _, packet = name.partition("::")
        packet, _, overload = packet.partition(".")
        if space == "aten":
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if torch.Tag.core in op.tags:
                implicit = op.has_kernel_for_dispatch_key(_IMPLICIT)
                statuses.append(_status(str(op), packet, implicit or str(op) in decomposed))
    return sorted(statuses, key=lambda s: s.name)


def _status(name: str, packet: str, decomposed: bool) -> Status:
    if name in TABLE:
        return Status(name, "defined", PARTIAL_SUPPORT.get(name, ""))
    if packet in _SIZES:
        return Status(name, "defined", "an expression over sizes")
    if decomposed and packet not in EXTERN_REASONS:
        return Status(name, "composite", "")
    return Status(name, "extern", EXTERN_REASONS.get(packet, "no rule yet"))


def render_page(statuses: Sequence[Status]) -> str:
    """Render the table as a page in Markdown."""
    counts = {s: sum(x.status == s for x in statuses) for s in ("defined", "composite", "extern")}
    more = sum(x.name in TABLE for x in statuses)
    head = _HEAD.format(
        all=len(statuses),
        defined=counts["defined"],
        composite=counts["composite"],
        extern=counts["extern"],
        more=len(TABLE) - more,
    )
    return head + "".join(f"| `{x.name}` | {x.status} | {x.note} |\n" for x in statuses)


def main(arguments: Sequence[str]) -> None:
    """Print the page, or write it to the file after `--write`."""
    text = render_page(core_operators())
    if arguments[:1] == ["--write"]:
        Path(arguments[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
