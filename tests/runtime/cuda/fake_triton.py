"""Run printed Triton programs in the fake driver, by the checked emulation of `tl`.

`FakeTriton` stands for the compiler: its image is the program's text with its constants. Launching
it reads the arguments as the driver does, by address, and executes every program of the grid.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from tests.codegen.checked_triton import LIBRARY, MEMORY, NAMES, Function, Language, Pointer, Tensor
from tests.runtime.cuda.fake_driver import FakeDriver, engine, image

from smelt.codegen.triton.device_source import (
    CompiledEntry,
    Entry,
    compile_source,
    device_source,
)
from smelt.kernel.device_code import DeviceCode
from smelt.kernel.ir import Kernel

DTYPES = {
    "i1": np.dtype(bool),
    **{f"{k}{b}": np.dtype(f"{'u' * (k == 'u')}int{b}") for k in "iu" for b in (8, 16, 32, 64)},
    **{f"fp{b}": np.dtype(f"float{b}") for b in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


class FakeTriton:
    """Compiler of entries; `compiled` lists their symbols with architectures, in order."""

    identity = "fake triton 1"
    has_streams = has_tables = True

    def __init__(self, shared_bytes: int = 0) -> None:
        self.shared_bytes = shared_bytes
        self.compiled: list[tuple[str, str]] = []

    def prepare(
        self, kernel: Kernel, sizes: Mapping[str, int]
    ) -> tuple[str, Callable[[str], DeviceCode]]:
        """Print a kernel at these sizes; see `DeviceCompiler`."""
        source = device_source(kernel, sizes)
        return repr(source), lambda arch: compile_source(source, arch, self)

    def __call__(self, text: str, entry: Entry, arch: str) -> CompiledEntry:
        self.compiled.append((entry.symbol, arch))
        kinds = ["ptr" if t.startswith("*") else t for t in entry.signature.values()]
        data = {
            "engine": "triton",
            "text": text,
            "symbol": entry.symbol,
            "constants": dict(entry.constants),
            "types": list(entry.signature.values()),
            "warps": entry.warps,
            "aligned": [name in entry.aligned for name in entry.signature],
            "arguments": [*kinds, "ptr", "ptr"],
        }
        data["scratch"] = scratch = 128 * text.count("tl.make_tensor_descriptor(")
        code = image(**{entry.symbol: data})
        facts = {"registers": 32}
        return CompiledEntry(
            code, entry.symbol, 32 * entry.warps, self.shared_bytes, 2, facts, scratch
        )


@engine
def triton(fake: FakeDriver, data: dict[str, Any], launch: dict[str, Any]) -> None:
    """Execute a printed program on the fake driver's memory."""
    *arguments, global_scratch, profile_scratch = launch["arguments"]
    assert profile_scratch == 0 and bool(global_scratch) == bool(data["scratch"])
    if global_scratch:
        block, offset = fake.block_at(global_scratch)
        assert global_scratch % 128 == 0
        assert offset + data["scratch"] * launch["grid"][0] <= block.nbytes
    assert launch["threads"] == 32 * data["warps"]
    tensors: dict[tuple[int, Any], tuple[Tensor, Any]] = {}  # one for parameters of one memory

    def find(address: int, dtype: Any, offset: int | None = None) -> Tensor:
        if (address, dtype) not in tensors:
            block, start = fake.block_at(address)
            view = block.view(start if offset is None else offset, dtype)
            tensor = Tensor(view, stored=True)
            tensor.address = address
            tensors[address, dtype] = tensor, view
        return tensors[address, dtype][0]

    values: list[Any] = []
    goes_back = any(a < 0 for a in arguments)  # a stride: elements lie before the first one
    for argument, kind, aligned in zip(arguments, data["types"], data["aligned"], strict=True):
        if kind.startswith("*"):
            assert not (aligned and argument % 16), "a vector is read between two vectors"
            block, offset = fake.block_at(argument)
            before, rest = divmod(offset, DTYPES[kind[1:]].itemsize) if goes_back else (0, offset)
            values.append(Pointer(find(argument, DTYPES[kind[1:]], rest), before))
        else:
            values.append(argument)
    constants = {k: NAMES[v[3:]] if isinstance(v, str) else v for k, v in data["constants"].items()}
    function = _load(data["text"], has_allocator=bool(global_scratch))[data["symbol"]]
    assert launch["grid"][1:] == (1, 1)
    MEMORY.append(find)
    try:
        function[launch["grid"][:1]](
            *values, num_warps=data["warps"], enable_fp_fusion=False, **constants
        )
    finally:
        MEMORY.pop()
    for tensor, view in tensors.values():
        is_written = tensor.was_stored | tensor.was_joined
        view[is_written] = tensor.data[is_written]


def _load(text: str, *, has_allocator: bool) -> dict[str, Any]:
    language = Language()
    language.has_allocator = has_allocator
    module = SimpleNamespace(jit=lambda f: Function(f, language), language=language)
    stand_ins = {
        "triton": module,
        "triton.language": module,
        "triton.language.extra": SimpleNamespace(libdevice=LIBRARY),
    }

    def load_module(name: str, *rest: Any) -> Any:
        return stand_ins[name]

    space: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": load_module}}
    exec(compile(text, "<printed>", "exec"), space)
    return space
