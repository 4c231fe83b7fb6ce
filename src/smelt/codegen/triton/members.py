"""Print launches over families of arrays: a table says which array a program belongs to.

The rows of the table are the first program of every member, the first one behind it, the sizes
that differ between members, and the addresses of the arrays. It is padded to a power of two with
members that no program belongs to. Addresses and sizes are multiples of DIVISOR, so that rows of
elements are read in vectors.
"""

from __future__ import annotations

from smelt.codegen.triton.writer import Writer, refuse, type_name
from smelt.kernel.ir import Each, Kernel, Param
from smelt.python.dataclass import dataclass
from smelt.types.expr import sizes_of

__all__ = ["DIVISOR", "Members", "members_of"]

DIVISOR = 16
"""A size that is a multiple lets rows be read in vectors of 16 bytes."""


@dataclass(frozen=True, slots=True)
class Members:
    """The sizes and arrays of a family's members, in the order of the table's rows."""

    count: int
    sizes: tuple[str, ...]
    params: tuple[Param, ...]

    def print(self, writer: Writer, index_type: str) -> None:
        """Write the member of a program, and its sizes and pointers."""
        writer.line("program = tl.program_id(0)")
        writer.line("ends = tl.load(ptr_members + MEMBERS + tl.arange(0, MEMBERS))")
        writer.line("member = tl.sum((ends <= program).to(tl.int32), 0)")
        first = "tl.load(ptr_members + member)"
        writer.line(f"program = (program - {first}).to({index_type})")
        rows = [f"size_{s}" for s in self.sizes] + [f"ptr_{p.name}" for p in self.params]
        types = [None] * len(self.sizes) + [p.dtype for p in self.params]
        for k, (name, dtype) in enumerate(zip(rows, types, strict=True)):
            entry = f"tl.load(ptr_members + {k + 2} * MEMBERS + member)"
            to = index_type if dtype is None else f"tl.pointer_type({type_name(dtype)})"
            value = f"{entry}.to({to})"
            is_scalar = k >= len(self.sizes) and not self.params[k - len(self.sizes)].shape
            writer.line(f"{name} = {value if is_scalar else f'tl.multiple_of({value}, DIVISOR)'}")


def members_of(kernel: Kernel) -> Members | None:
    """Return the members of a kernel's families; None for a kernel without any.

    Raises DeviceKernelError for families whose arrays have strides.
    """
    counts = [e.count for e in kernel.grid if isinstance(e, Each)]
    if not counts:
        return None
    params = {p.name: p for p in (*kernel.inputs, *kernel.outputs)}
    families = tuple(p for p in params.values() if p.each)
    if any(p.strides is not None for p in families):
        refuse(kernel.name, "families of arrays with strides")
    shared = {s for p in params.values() if not p.each for e in p.shape for s in sizes_of(e)}
    sizes = dict.fromkeys(s for p in families for e in p.shape for s in sizes_of(e))
    return Members(counts[0], tuple(s for s in sizes if s not in shared), families)
