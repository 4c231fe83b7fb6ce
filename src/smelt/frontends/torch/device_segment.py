"""Run a graph of a program on a GPU, on torch's tensors, stream and allocator.

Results are tensors of torch's caching allocator, so that its streams, graphs and memory statistics
know them. Positions are checked on the device; an error appears at a later call.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from smelt import knobs
from smelt.compiler.device import DeviceProgram, compile_for_device
from smelt.errors import CaptureError, UnsupportedError
from smelt.frontends.torch.row import to_torch
from smelt.frontends.torch.segment import Finish, Permutations, Runner, Segment
from smelt.graph.bounds_checks import refuse_out_of_bounds
from smelt.graph.ir import Graph
from smelt.runtime.cuda.buffer import DeviceBuffer
from smelt.runtime.cuda.driver import Device, system_driver
from smelt.runtime.cuda.flags import deferred_flags, positions_are_checked
from smelt.runtime.cuda.memory import TorchMemory
from smelt.runtime.cuda.recorded_call import RecordedCall
from smelt.runtime.sliced_plan import VECTOR_BYTES
from smelt.types.dtype import DType, u8
from smelt.types.expr import Index, evaluate, size

_KNOWN: Final = 1024
"""Maximum calls of a graph, by sizes and strides, that are repeated natively."""
_RAW_STREAM: Final[Any] = getattr(
    importlib.import_module("torch._C"), "_cuda_getCurrentRawStream", None
)
"""Torch's way to a stream without an object for it, which generated code of torch takes too."""


def compile_plan(
    graph: Graph, hints: Mapping[str, int], device: torch.device
) -> tuple[DeviceProgram, Mapping[str, Index]]:
    """Compile a graph, and its programs for the sizes of the traced call.

    Also returns its sizes in terms of the graph's. Raises DeviceKernelError and UnsupportedError
    for what no program does, and CaptureError in a captured stream, which would record a race.
    """
    here = system_driver().device(device.index or 0)
    if here.is_capturing(current_stream(here)):
        raise CaptureError(reason="the program is compiled by its first call")
    program = compile_for_device(graph, hints, here)
    with here.current():
        program.executable.prepared(tuple(hints[n] for n in program.size_names))
    return program, {n: size(n) for n in program.size_names}


class DeviceSegment(Segment):
    """Compiled graph with tensors of a GPU in and out."""

    def _count_steps(self) -> int:
        return len(self.compiled.recipe.steps)

    def arrays(self, tensors: Sequence[Any], sizes: tuple[int, ...]) -> Any:
        """Refuse to view tensors as arrays: the host does not see their elements."""
        raise UnsupportedError("kernels of a GPU are not measured on arrays of the host yet")

    def _runner(
        self, finish: Finish | None, extra_inputs: int, permutations: Permutations
    ) -> Runner:
        executable: Any = self.compiled.executable
        device: Device = executable.device
        memory = TorchMemory(device)
        inputs = [v for v in executable.values if v.place == "input"]
        flags, checks = deferred_flags(device), self.bounds_checks
        fail = partial(refuse_out_of_bounds, checks.readers)
        repeats = _Repeats(executable, len(inputs), permutations)

        def run(tensors: tuple[Any, ...], sizes: tuple[int, ...]) -> Sequence[Any]:
            flags.check()
            stream = current_stream(device)
            if checks.flag is not None and device.is_capturing(stream):
                raise positions_are_checked()
            repeated = repeats.run(tensors, sizes, stream)
            if repeated is not None:
                flag = repeated[-1].data_ptr() if checks.flag is not None else 0
                return finished(repeated, tensors, flag, stream)
            copied = sum(t.nbytes for t in tensors if _is_between_vectors(t))
            if copied:
                executable.check_memory(sizes, stream, (), copied)
            buffers = [
                _buffer(t, permutations.get(k), inputs[k].dtype, device, stream)
                for k, t in enumerate(tensors)
            ]
            named = dict(zip(self.size_names, sizes, strict=True))
            for v in inputs[len(tensors) :]:  # their shapes pass sizes
                shape = tuple(int(evaluate(n, named)) for n in v.shape)
                buffers.append(DeviceBuffer(0, shape, (1,), v.dtype, device, stream, None))
            computed = executable.compute(buffers, sizes, stream, memory)
            repeats.note(tensors, buffers, sizes)
            flag = computed[-1].address if checks.flag is not None else 0
            return finished([as_tensor(b, device) for b in computed], tensors, flag, stream)

        def finished(
            results: Sequence[Any], tensors: Sequence[Any], flag: int, stream: int
        ) -> Sequence[Any]:
            if flag:
                flags.add(flag, stream, fail)
            results = results if finish is None else finish(results, tensors)
            return [*results[:-1], False] if flag else results

        return run


class _Repeats:
    """Native calls of one graph, by sizes and strides of the tensors."""

    def __init__(self, executable: Any, inputs: int, permutations: Permutations) -> None:
        self._executable = executable
        self._inputs = inputs
        self._permuted = tuple(permutations)
        """Tensors whose strides are compared; others have to be contiguous."""
        self._known: dict[tuple[Any, ...], RecordedCall] = {}

    def run(
        self, tensors: tuple[Any, ...], sizes: tuple[int, ...], stream: int
    ) -> list[Any] | None:
        """Return the results of a recorded call; None if Python has to make it."""
        native = self._known.get(self._key(tensors, sizes))
        if native is None:
            return None
        device: Device = self._executable.device
        addresses = [t.data_ptr() for t in tensors]
        addresses += [0] * (self._inputs - len(addresses))
        results = [
            new_tensor(shape, strides, dtype, device) for shape, strides, dtype, _ in native.results
        ]
        addresses += [t.data_ptr() for t in results]
        if native.arena_bytes:  # it belongs to the stream, and so may be released at the end
            arena = new_tensor((native.arena_bytes,), (1,), u8, device)
            addresses.append(arena.data_ptr())
        return None if native.run(addresses, stream) is None else results

    def note(
        self, tensors: tuple[Any, ...], buffers: Sequence[DeviceBuffer], sizes: tuple[int, ...]
    ) -> None:
        """Remember a call that Python has made."""
        key = self._key(tensors, sizes)
        if key is None or not knobs.NATIVE_CALLS.get():
            return
        results = range(sum(v.place == "output" for v in self._executable.values))
        native = self._executable.record(buffers, sizes, results, arena_is_passed=True)
        if native is not None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[key] = native

    def _key(self, tensors: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
        permuted = self._permuted
        for k, t in enumerate(tensors):
            if not t.is_contiguous() and k not in permuted:
                return None
        return (*sizes, *[tensors[k].stride() for k in permuted]) if permuted else sizes


def current_stream(device: Device) -> int:
    """Return the handle of torch's current stream of a device."""
    if _RAW_STREAM is not None:
        return int(_RAW_STREAM(device.ordinal))
    return int(torch.cuda.current_stream(device.ordinal).cuda_stream)


def new_tensor(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, device: Device
) -> Any:
    """Return a tensor of torch's allocator, in the current stream; elements are not set."""
    return torch.empty_strided(
        shape, strides, dtype=to_torch(dtype), device=torch.device("cuda", device.ordinal)
    )


def _is_between_vectors(tensor: Any) -> bool:
    return bool(tensor.data_ptr() % VECTOR_BYTES and tensor.dim())


def _buffer(
    tensor: Any, permutation: tuple[int, ...] | None, dtype: Any, device: Device, stream: int
) -> DeviceBuffer:
    """Return the buffer of a tensor; one that starts between vectors is copied."""
    if _is_between_vectors(tensor):
        tensor = tensor.clone()
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if permutation is not None:
        shape, strides = (tuple(x[a] for a in permutation) for x in (shape, strides))
    return DeviceBuffer(tensor.data_ptr(), shape, strides, dtype, device, stream, tensor)


def as_tensor(buffer: DeviceBuffer, device: Device) -> Any:
    """Return the tensor of a result, which torch's allocator owns."""
    kind, shape = to_torch(buffer.dtype), buffer.shape
    if not buffer.nbytes:
        return torch.empty(shape, dtype=kind, device=torch.device("cuda", device.ordinal))
    return buffer.owner.tensor.view(kind).view(shape)
