"""Stand-ins of torch's tensors on the fake device, for programs that torch has traced.

torch has no GPU here: graphs have FakeTensors on "cuda", and are called with stand-ins of tensors
whose memory the fake driver owns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.runtime.cuda.fake_triton import FakeTriton
from torch.utils._pytree import tree_map_only

import smelt as sm
from smelt.compiler.device import use_compiler
from smelt.frontends.torch import device_segment
from smelt.runtime.cuda import memory as cuda_memory
from smelt.runtime.cuda.buffer import DeviceBuffer, copy_to_device, copy_to_host
from smelt.runtime.cuda.driver import system_driver
from smelt.runtime.cuda.memory import driver_memory
from smelt.types.dtype import from_numpy


class Tensor:
    """Stand-in of a tensor on the fake device."""

    is_cuda = True
    operators: ClassVar[list[str]] = []
    """Torch's operators that were called on stand-ins: the CPU computes them."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.operators.append(str(function))
        host = tree_map_only(cls, lambda x: torch.from_numpy(x.numpy()), (args, kwargs or {}))
        results = function(*host[0], **host[1])
        return tree_map_only(torch.Tensor, lambda x: put(x.contiguous().numpy()), results)

    def __init__(self, buffer: DeviceBuffer) -> None:
        self.buffer = buffer
        self.shape = torch.Size(buffer.shape)
        self.device = torch.device("cuda", 0)

    @property
    def dtype(self):
        return device_segment.to_torch(self.buffer.dtype)

    @property
    def nbytes(self):
        return self.buffer.nbytes

    def data_ptr(self):
        return self.buffer.address

    def stride(self, d=None):
        return self.buffer.strides if d is None else self.buffer.strides[d]

    def size(self, d):
        return self.shape[d]

    def dim(self):
        return len(self.shape)

    def is_contiguous(self):
        return self.buffer.is_contiguous

    def permute(self, order):
        buffer = self.buffer
        shape, strides = (tuple(x[a] for a in order) for x in (buffer.shape, buffer.strides))
        return Tensor(replace(buffer, shape=shape, strides=strides))

    def is_neg(self):
        return False

    _is_zerotensor = is_neg

    def resolve_neg(self):
        return self

    def to(self, dtype):
        assert dtype is self.dtype
        return self

    def contiguous(self):
        return self if self.is_contiguous() else self.clone()

    def clone(self):
        data = copy_to_host(self.buffer)
        return Tensor(copy_to_device(data, self.buffer.dtype, driver_memory(self.buffer.device), 0))

    def copy_(self, other):
        """Copy in the stream, as torch does; `other` has the same type and shape."""
        device = self.buffer.device
        with device.current():
            device.driver.call(
                "cuMemcpyDtoDAsync_v2", self.data_ptr(), other.data_ptr(), self.buffer.nbytes, 0
            )

    def numpy(self):
        return copy_to_host(self.buffer)


def new_tensor(shape, strides, dtype, device):
    """Stand-in of `torch.empty_strided`, counted by `new_tensor.calls`."""
    new_tensor.calls += 1
    nbytes = int(np.prod(shape)) * dtype.itemsize
    block = driver_memory(device).allocate(nbytes, 0)
    return Tensor(DeviceBuffer(block.address, shape, strides, dtype, device, 0, block))


new_tensor.calls = 0


def put(x):
    device = system_driver().device(0)
    return Tensor(copy_to_device(x, from_numpy(x.dtype), driver_memory(device), 0))


@contextmanager
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's stream is the default one, and its allocator the fake driver's."""

    class Memory(cuda_memory.DriverMemory):
        is_capturable = True

        def allocate(self, nbytes, stream):
            return super().allocate(nbytes, 0 if self.device.is_capturing(stream) else stream)

    monkeypatch.setattr(device_segment, "TorchMemory", Memory)
    monkeypatch.setattr(device_segment, "current_stream", lambda device: 0)
    monkeypatch.setattr(device_segment, "as_tensor", lambda buffer, device: Tensor(buffer))
    monkeypatch.setattr(device_segment, "new_tensor", new_tensor)
    with use_compiler(FakeTriton()), sm.config(cache=False):
        yield
