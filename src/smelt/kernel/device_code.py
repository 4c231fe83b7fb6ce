"""Compiled code of a kernel for a GPU as plain data: images and how to launch them.

`DeviceCode` is to a GPU what `CompiledKernel` is to the CPU: the object cache stores it, and a
warm start needs neither the kernel nor a compiler. An image is a cubin or PTX. A kernel may take
several launches, which run one after another (parts of a row, then their merge).

>>> from smelt.types.expr import size
>>> launch = Launch("k", (size("n"),), 128, 0, (Argument("buffer", "x"), Argument("size", "n")))
>>> code = DeviceCode((b"one",), "sm_90", (launch,), (), ())
>>> DeviceCode.from_data(code.to_data(), b"one") == code
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from smelt.kernel.ir import Kernel
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index
from smelt.types.json_data import from_data, to_data

ArgumentKind = Literal["buffer", "size", "stride", "scratch", "null", "table"]
DESCRIPTOR_ALIGNMENT = 128
"""A descriptor of an array, which a program makes in its scratch memory, has this alignment."""
MAX_MAPPED_ELEMENTS = 1 << 22
"""Elements of an array in the table of a map: the launch of a larger one is little of its time."""
MAX_REDUCED_ELEMENTS = 1 << 30
"""Elements of an array in the tables of a reduction: positions in a chunk have 32 bits."""


class Argument(NamedTuple):
    """Argument of a launch: an address, a number, or a null address.

    A launch over many arrays has their table. Its grid is that of one of them.

    `name` is a parameter or a workspace of the code for a buffer, a size's name for a size, and a
    parameter for a stride, whose dimension is `dimension`; strides count elements. A workspace
    that is scratch memory begins at the next multiple of DESCRIPTOR_ALIGNMENT.
    """

    kind: ArgumentKind
    name: str = ""
    dimension: int = 0


class Launch(NamedTuple):
    """One launch: function, grid (programs per dimension), threads of a program, shared memory.

    The function is in image number `image`. `writes` are the buffers that it stores to, if that is
    known; it reads the others.
    """

    symbol: str
    grid: tuple[Index, ...]
    threads: int
    shared_bytes: int
    arguments: tuple[Argument, ...]
    image: int = 0
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """Images of a kernel and its launches.

    `workspaces` are buffers that live from the first launch to the last, with their bytes.
    `aligned` names the buffers whose addresses must be multiples of 16 bytes. `facts` are what a
    compiler reports (registers, spilled bytes, versions), for reports alone.
    """

    images: tuple[bytes, ...]
    arch: str
    launches: tuple[Launch, ...]
    workspaces: tuple[tuple[str, Index], ...]
    aligned: tuple[str, ...]
    is_wide: bool = False
    """Whether offsets have 64 bits."""
    facts: Mapping[str, Any] | None = None

    def to_data(self) -> dict[str, Any]:
        """Return everything but the images, which follow one another, as JSON data."""
        data: dict[str, Any] = to_data(replace(self, images=()))
        return data | {"images": [len(x) for x in self.images]}

    @staticmethod
    def from_data(facts: Mapping[str, Any], code: bytes) -> DeviceCode:
        """Rebuild code from `to_data` and its images.

        Raises KeyError, TypeError or ValueError for malformed data.
        """
        images: list[bytes] = []
        for length in facts["images"]:
            start = sum(map(len, images))
            images.append(code[start : start + int(length)])
        if b"".join(images) != code:
            raise ValueError("images of other lengths")
        built: DeviceCode = from_data(DeviceCode, {**facts, "images": []})
        return replace(built, images=tuple(images))


def joined_code(
    every: Sequence[DeviceCode], workspaces: tuple[tuple[str, Index], ...]
) -> DeviceCode:
    """Return the code of kernels that run one after another, with workspaces in common."""
    if len(every) == 1:
        return replace(every[0], workspaces=(*every[0].workspaces, *workspaces))
    images: tuple[bytes, ...] = ()
    launches: list[Launch] = []
    for code in every:
        launches += [x._replace(image=x.image + len(images)) for x in code.launches]
        images += code.images
    first = every[0]
    return DeviceCode(
        images,
        first.arch,
        tuple(launches),
        (*(w for code in every for w in code.workspaces), *workspaces),
        tuple(dict.fromkeys(n for code in every for n in code.aligned)),
        any(code.is_wide for code in every),
        {"entries": [e for code in every for e in (code.facts or {}).get("entries", ())]},
    )


class DeviceCompiler(Protocol):
    """Compiler of kernels for devices."""

    @property
    def identity(self) -> str:
        """Name of the compiler with its version, for cache keys."""
        ...

    @property
    def has_streams(self) -> bool:
        """Whether a kernel may visit rows in blocks, and split them into parts."""
        ...

    @property
    def has_tables(self) -> bool:
        """Whether a launch may have a table of arrays."""
        ...

    def prepare(
        self, kernel: Kernel, sizes: Mapping[str, int]
    ) -> tuple[str, Callable[[str], DeviceCode]]:
        """Return the text that decides the code at these sizes, and what compiles it.

        The latter takes an architecture such as sm_90. Raises DeviceKernelError for kernels that
        are not printed.
        """
        ...


class ScheduledLaunch(Protocol):
    """A schedule of one launch of a kernel."""

    @property
    def blocks(self) -> str:
        """The schedule in words."""
        ...


@runtime_checkable
class SchedulingCompiler(DeviceCompiler, Protocol):
    """Compiler that knows several schedules of a kernel, which a device may race."""

    def schedules(self, kernel: Kernel, sizes: Mapping[str, int]) -> Sequence[Sequence[Any]]:
        """Return the schedules of each launch of a kernel, the fastest predicted first.

        They are `ScheduledLaunch`es, whatever else the compiler keeps in them.
        """
        ...

    def compile_schedules(
        self,
        kernel: Kernel,
        sizes: Mapping[str, int],
        every: Sequence[Sequence[Any]],
        arch: str,
    ) -> DeviceCode:
        """Compile the first of the schedules of each launch that passes the gates.

        Raises DeviceCompileError and DeviceKernelError where none does.
        """
        ...
