"""Run a graph of a program on a GPU, on torch's tensors, stream and allocator.

Results are tensors of torch's caching allocator, so that its streams, graphs and memory statistics
know them. Positions are checked on the device; an error appears at a later call.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from smelt.device import DeviceProgram, compile_for_device
from smelt.errors import UnsupportedError
from smelt.frontends.torch.dtypes import to_torch
from smelt.frontends.torch.segment import Finish, Permutations, Runner, Segment
from smelt.graph.bounds_checks import refuse_out_of_bounds
from smelt.graph.ir import Graph
from smelt.runtime.cuda.buffer import DeviceBuffer
from smelt.runtime.cuda.driver import Device, system_driver
from smelt.runtime.cuda.executable import VECTOR_BYTES
from smelt.runtime.cuda.flags import deferred_flags
from smelt.runtime.cuda.memory import TorchMemory
from smelt.types.expr import Index, evaluate, size

__all__ = ["DeviceSegment", "compile_plan"]


def compile_plan(
    graph: Graph, hints: Mapping[str, int], device: torch.device
) -> tuple[DeviceProgram, Mapping[str, Index]]:
    """Compile a graph, and its programs for the sizes of the traced call.

    Also returns its sizes in terms of the graph's. Raises DeviceKernelError and UnsupportedError
    for what no program does.
    """
    program = compile_for_device(graph, hints, system_driver().device(device.index or 0))
    with program.executable.device.current():
        program.executable.prepared(tuple(hints[n] for n in program.size_names))
    return program, {n: size(n) for n in program.size_names}


class DeviceSegment(Segment):
    """Compiled graph with tensors of a GPU in and out."""

    def _count_steps(self) -> int:
        return len(self.compiled.plan.clusters)

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

        def run(tensors: tuple[Any, ...], sizes: tuple[int, ...]) -> Sequence[Any]:
            flags.check()
            stream = current_stream(device)
            buffers = [
                _buffer(t, permutations.get(k), inputs[k].dtype, device, stream)
                for k, t in enumerate(tensors)
            ]
            named = dict(zip(self.size_names, sizes, strict=True))
            for v in inputs[len(tensors) :]:  # their shapes pass sizes
                shape = tuple(int(evaluate(n, named)) for n in v.shape)
                buffers.append(DeviceBuffer(0, shape, (1,), v.dtype, device, stream, None))
            computed = executable.compute(buffers, sizes, stream, memory)
            results: Sequence[Any] = [as_tensor(b, device) for b in computed]
            results = results if finish is None else finish(results, tensors)
            if checks.flag is None:
                return results
            flags.add(computed[-1], stream, fail)
            return [*results[:-1], False]

        return run


def current_stream(device: Device) -> int:
    """Return the handle of torch's current stream of a device."""
    return int(torch.cuda.current_stream(device.ordinal).cuda_stream)


def _buffer(
    tensor: Any, permutation: tuple[int, ...] | None, dtype: Any, device: Device, stream: int
) -> DeviceBuffer:
    """Return the buffer of a tensor; one that starts between vectors is copied."""
    if tensor.data_ptr() % VECTOR_BYTES and tensor.dim():
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
