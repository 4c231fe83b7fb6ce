"""Run a printed Triton file in NumPy, and check what a GPU does not.

    outputs = launch(source, [x, y])

Every value knows which of its elements are defined: a lane that a load masks has no value. These
are failures (`CheckError`): an undefined element that is stored, used as an offset or a condition;
an access out of bounds; an element stored twice or never, or loaded after it was stored; shapes
that are not powers of two; operands of different types or ranks.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from tests.ops.numpy_machine import NumpyMachine

Array = Any
MAX_ELEMENTS = 1 << 20


class CheckError(AssertionError):
    """A printed program does what no program may do."""


NAMES = {
    "int1": np.dtype(bool),
    **{n: np.dtype(n) for n in ("int8", "int16", "int32", "int64")},
    **{n: np.dtype(n) for n in ("uint8", "uint16", "uint32", "uint64")},
    **{n: np.dtype(n) for n in ("float16", "float32", "float64")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == NAMES["bfloat16"]


class Value:
    """A tensor in registers; `defined` says which elements have a value."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Array, defined: Array = True) -> None:
        self.data = np.asarray(data)
        self.defined = np.broadcast_to(np.asarray(defined), self.data.shape)
        if any(n & (n - 1) for n in self.data.shape) or self.data.size > MAX_ELEMENTS:
            raise CheckError(f"a tensor of shape {self.data.shape}")

    def __bool__(self) -> bool:
        return bool(self._scalar("condition"))

    def __index__(self) -> int:
        return int(self._scalar("number"))

    def _scalar(self, what: str) -> Array:
        if self.data.ndim or not self.defined:
            raise CheckError(f"a {what} is no defined scalar")
        return self.data[()]

    def __getitem__(self, key: Any) -> Value:
        return Value(self.data[key], self.defined[key])

    def to(self, dtype: Any, bitcast: bool = False) -> Any:
        if isinstance(dtype, PointerType):
            tensor = tensor_at(int(self._scalar("address")), dtype.element)
            if tensor is None or tensor.data.dtype != dtype.element:
                raise CheckError(f"address {self.data} of {dtype.element}")
            return Pointer(tensor)
        if bitcast:
            if dtype.itemsize != self.data.dtype.itemsize:
                raise CheckError(f"bits of {self.data.dtype} as {dtype}")
            return Value(self.data.view(dtype), self.defined)
        with np.errstate(all="ignore"):
            return Value(self.data.astype(dtype), self.defined)

    def reshape(self, *shape: int) -> Value:
        return Value(self.data.reshape(shape), self.defined.reshape(shape))

    def __neg__(self) -> Value:
        return binary(0, self, np.subtract)  # as Triton does: the sign of zero is lost

    def __invert__(self) -> Value:
        return Value(~self.data, self.defined)

    def __and__(self, other: Any) -> Value:
        return logical(self, other, np.bitwise_and, decided_by=False)

    def __or__(self, other: Any) -> Value:
        return logical(self, other, np.bitwise_or, decided_by=True)

    def __floordiv__(self, other: Any) -> Value:
        return binary(self, other, truncated)

    def __rfloordiv__(self, other: Any) -> Value:
        return binary(other, self, truncated)

    def __mod__(self, other: Any) -> Value:
        return binary(self, other, lambda a, b: a - truncated(a, b) * b)


def _operators() -> None:
    table: dict[str, Callable[..., Any]] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "truediv": np.divide,
        "xor": np.bitwise_xor,
        "lshift": np.left_shift,
        "rshift": np.right_shift,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
    }
    for name, function in table.items():

        def forward(self: Value, other: Any, f: Any = function) -> Any:
            return NotImplemented if isinstance(other, Pointer) else binary(self, other, f)

        def backward(self: Value, other: Any, f: Any = function) -> Value:
            return binary(other, self, f)

        setattr(Value, f"__{name}__", forward)
        if name in ("add", "sub", "mul", "truediv"):
            setattr(Value, f"__r{name}__", backward)


def truncated(a: Array, b: Array) -> Array:
    """Divide as Triton and C do: towards zero."""
    if a.dtype.kind not in "iu":
        raise CheckError(f"// of {a.dtype}")
    safe = np.where(b == 0, 1, b)
    floor = a // safe
    inexact = (floor * safe != a) & ((a < 0) != (safe < 0))
    return (floor + inexact).astype(a.dtype)


def operands(a: Any, b: Any) -> tuple[Value, Value]:
    """Two operands of one type: numbers of Python take the tensor's."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        raise CheckError("arithmetic on two numbers is Python's, in double precision")
    dtype = a.data.dtype if isinstance(a, Value) else b.data.dtype
    x, y = (v if isinstance(v, Value) else number(v, dtype) for v in (a, b))
    if {x.data.dtype, y.data.dtype} == {NAMES["int32"], NAMES["int64"]}:
        x, y = x.to(NAMES["int64"]), y.to(NAMES["int64"])
    if x.data.dtype != y.data.dtype:
        raise CheckError(f"operands of types {x.data.dtype} and {y.data.dtype}")
    if x.data.ndim and y.data.ndim and x.data.ndim != y.data.ndim:
        raise CheckError(f"operands of shapes {x.data.shape} and {y.data.shape}")
    return x, y


def number(v: float | int | bool, dtype: np.dtype[Any]) -> Value:
    if isinstance(v, float) and not is_float(dtype):
        raise CheckError(f"the number {v} with a tensor of {dtype}")
    if dtype == NAMES["int32"] and not -(2**31) <= v < 2**31:
        dtype = NAMES["int64"]
    return Value(np.asarray(v).astype(dtype))


def binary(a: Any, b: Any, f: Callable[..., Array]) -> Value:
    x, y = operands(a, b)
    with np.errstate(all="ignore"):
        return Value(f(x.data, y.data), x.defined & y.defined)


def logical(a: Any, b: Any, f: Callable[..., Array], *, decided_by: bool) -> Value:
    """A mask is defined where one defined operand decides it."""
    x, y = operands(a, b)
    defined = x.defined & y.defined
    if x.data.dtype == bool:
        defined = defined | (x.defined & (x.data == decided_by))
        defined = defined | (y.defined & (y.data == decided_by))
    return Value(f(x.data, y.data), defined)


class PointerType:
    def __init__(self, element: np.dtype[Any]) -> None:
        self.element = element


COUNT = itertools.count(1)
ADDRESSES: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
"""Tensors by their addresses."""


MEMORY: list[Callable[[int, np.dtype[Any]], Tensor]] = []
"""Functions that find tensors by address where memory is not this module's; the last one counts."""


def tensor_at(address: int, element: np.dtype[Any]) -> Tensor | None:
    """Find the tensor that begins at an address."""
    return MEMORY[-1](address, element) if MEMORY else ADDRESSES.get(address)


NOBODY, MANY = -1, -2


class Tensor:
    """A torch tensor in memory: its elements by offset, which of them exist and were stored."""

    def __init__(self, array: Array, stored: bool) -> None:
        self.array = array
        self.shape, self.device, self.dtype = array.shape, "cuda:0", array.dtype
        self.steps = tuple(n // array.itemsize for n in array.strides)
        self.offsets = np.zeros(array.shape, np.int64)
        for index, step in zip(np.indices(array.shape), self.steps, strict=True):
            self.offsets += index * step
        self.size = int(self.offsets.max()) + 1 if array.size else 0
        self.data = np.zeros(self.size, array.dtype)
        self.data[self.offsets] = array
        self.exists = np.zeros(self.size, bool)
        self.exists[self.offsets] = True
        self.is_defined = np.full(self.size, stored)
        self.was_stored = np.zeros(self.size, bool)
        self.was_stored_before = np.zeros(self.size, bool)
        self.was_joined = np.zeros(self.size, bool)
        """Which elements atomic operations of this launch have changed."""
        self.epoch = np.zeros(self.size, np.int64)
        """When an element was stored: the number of barriers before, over all programs."""
        self.reader = np.full(self.size, NOBODY)
        """The program that has loaded an element, or MANY."""
        self.address = 16 * next(COUNT)
        ADDRESSES[self.address] = self

    def seal(self) -> None:
        """Begin a launch: what earlier ones stored is there to be read."""
        self.is_defined |= self.was_stored
        self.was_stored_before |= self.was_stored
        self.was_stored[:] = False
        self.was_joined[:] = False
        self.reader[:] = NOBODY

    def note_read(self, places: Array, program: int) -> None:
        """Remember which program loads elements."""
        seen = self.reader[places]
        self.reader[places] = np.where((seen == NOBODY) | (seen == program), program, MANY)

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.array.size

    def stride(self, dimension: int | None = None) -> Any:
        return self.steps if dimension is None else self.steps[dimension]

    def element_size(self) -> int:
        return self.data.itemsize

    def is_contiguous(self) -> bool:
        return bool(self.array.flags["C_CONTIGUOUS"])

    def result(self) -> Array:
        return self.data[self.offsets].reshape(self.shape)


class Pointer:
    def __init__(self, tensor: Tensor, offset: Any = 0) -> None:
        self.tensor, self.offset = tensor, offset

    def __add__(self, other: Any) -> Pointer:
        if isinstance(self.offset, Value) or isinstance(other, Value):
            other = binary(self.offset, other, np.add)
        else:
            other = self.offset + other
        return Pointer(self.tensor, other)

    def __sub__(self, other: Any) -> Pointer:
        return self + (binary(0, other, np.subtract) if isinstance(other, Value) else -other)

    def places(self, mask: Any, value: Value | None = None) -> tuple[Array, Array]:
        """Offsets and the mask, both of one shape; checked where the mask holds."""
        offset = self.offset if isinstance(self.offset, Value) else Value(np.int32(self.offset))
        enabled = Value(np.True_) if mask is None else mask
        if enabled.data.dtype != bool:
            raise CheckError(f"a mask of {enabled.data.dtype}")
        if not enabled.defined.all():
            raise CheckError("a mask is not defined")
        arrays = [offset.data, enabled.data, offset.defined]
        if value is not None:
            arrays.append(value.data)
        if len({a.ndim for a in arrays if a.ndim}) > 1:
            raise CheckError(f"an access with shapes {[a.shape for a in arrays]}")
        if np.broadcast_shapes(*(a.shape for a in arrays)) != offset.data.shape:
            raise CheckError(f"an access with shapes {[a.shape for a in arrays]}")
        at, on, defined = np.broadcast_arrays(*arrays)[:3]
        if not defined[on].all():
            raise CheckError("an offset is not defined")
        wrong = on & ((at < 0) | (at >= self.tensor.size))
        inside = on & ~wrong
        if inside.any():
            wrong = wrong | (inside & ~self.tensor.exists[np.where(inside, at, 0)])
        if wrong.any():
            raise CheckError(f"offset {at[wrong].flat[0]} is out of bounds")
        return at, on


class Descriptor:
    """A tensor descriptor: copies of blocks of an array, with zeros outside of it."""

    def __init__(
        self,
        language: Language,
        pointer: Pointer,
        shape: Sequence[int],
        strides: Sequence[int],
        block: Sequence[int],
    ) -> None:
        self.language = language
        self.tensor, self.shape, self.block = pointer.tensor, list(shape), list(block)
        self.strides = list(strides)
        width = self.tensor.data.itemsize
        if isinstance(pointer.offset, Value) or pointer.offset:
            raise CheckError("a tensor descriptor of a part of an array")
        if not len(shape) == len(strides) == len(block) <= 5 or strides[-1] != 1:
            raise CheckError(f"a tensor descriptor of strides {strides}")
        if self.tensor.address % 16 or any(n * width % 16 for n in strides[:-1]):
            raise CheckError(f"a tensor descriptor of rows of {strides} elements")
        if any(n & (n - 1) or not 1 <= n <= 256 for n in block) or block[-1] * width < 16:
            raise CheckError(f"a tensor descriptor of blocks of {block}")
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if min(shape) < 1 or last >= self.tensor.size:
            raise CheckError(f"a tensor descriptor of {shape} elements")

    def load(self, starts: Sequence[Any]) -> Value:
        at, inside = self._places(starts)
        if not self.tensor.is_defined[at[inside]].all():
            raise CheckError("an element is copied that has no value")
        zero = np.zeros((), self.tensor.data.dtype)
        self.tensor.note_read(at[inside], MANY)  # a copy has no program here
        return Value(np.where(inside, self.tensor.data[at], zero))

    def store(self, starts: Sequence[Any], value: Value) -> None:
        """Store the elements of a block that are in the array."""
        at, inside = self._places(starts)
        if list(value.data.shape) != self.block:
            raise CheckError(f"values of shape {value.data.shape} for a block of {self.block}")
        self.language.store(Pointer(self.tensor, Value(at)), value, Value(inside))

    def _places(self, starts: Sequence[Any]) -> tuple[Array, Array]:
        """Offsets of a block's elements, and which of them are in the array."""
        if len(starts) != len(self.block):
            raise CheckError(f"a block at {len(starts)} indices")
        for start in starts:
            if isinstance(start, Value) and start.data.dtype != np.int32:
                raise CheckError(f"a block at an index of {start.data.dtype}")
        offset, inside = np.zeros(self.block, np.int64), np.ones(self.block, bool)
        for d, start in enumerate(map(operator.index, starts)):
            index = np.arange(start, start + self.block[d])
            index = index.reshape(-1, *[1] * (len(self.block) - 1 - d))
            inside &= (index >= 0) & (index < self.shape[d])
            offset = offset + index * self.strides[d]
        if not inside.any():
            raise CheckError(f"a block at {starts} is outside of the array")
        return np.where(inside, offset, 0), inside


_operators()


def tf32(x: Array) -> Array:
    """Round to 10 bits behind the first one."""
    with np.errstate(all="ignore"):
        scaled = x * np.float32(2**13 + 1)
        return np.where(np.isfinite(scaled), scaled - (scaled - x), x)


class Language:
    """Stands for `triton.language`."""

    constexpr = int

    def __init__(self, least_dot: int = 16) -> None:
        self.program, self.programs, self.least_dot = 0, 1, least_dot
        self.has_allocator = False
        """Whether programs have memory for the tensor descriptors that they make."""
        self.begun, self.barriers = 0, 0
        for name, dtype in NAMES.items():
            setattr(self, name, dtype)

    def begin(self, program: int) -> None:
        """Start a program: no other one sees what it stores."""
        self.program = program
        self.debug_barrier()
        self.begun = self.barriers

    def debug_barrier(self) -> None:
        self.barriers += 1

    def pointer_type(self, element: np.dtype[Any]) -> PointerType:
        return PointerType(element)

    def is_late(self, tensor: Tensor, places: Array) -> bool:
        """Whether an element was stored by another program, or since the last barrier."""
        epoch = tensor.epoch[places]
        stored = tensor.was_stored[places]
        return bool((stored & ((epoch < self.begun) | (epoch == self.barriers))).any())

    def program_id(self, axis: int) -> Value:
        return Value(np.int32(self.program))

    def num_programs(self, axis: int) -> Value:
        return Value(np.int32(self.programs))

    def make_tensor_descriptor(
        self,
        base: Pointer,
        shape: Sequence[Any],
        strides: Sequence[Any],
        block_shape: Sequence[int],
    ) -> Descriptor:
        if not self.has_allocator:
            raise CheckError("no memory for tensor descriptors")
        numbers = [list(map(operator.index, x)) for x in (shape, strides, block_shape)]
        return Descriptor(self, base, *numbers)

    def arange(self, start: int, stop: int) -> Value:
        return Value(np.arange(start, stop, dtype=np.int32))

    def full(self, shape: Sequence[int], value: Any, dtype: np.dtype[Any]) -> Value:
        x = value if isinstance(value, Value) else Value(np.asarray(value))
        with np.errstate(all="ignore"):
            return Value(np.full(shape, x.data.astype(dtype)), np.full(shape, x.defined))

    def broadcast_to(self, x: Value, shape: Sequence[int]) -> Value:
        if x.data.ndim not in (0, len(shape)):
            raise CheckError(f"shape {x.data.shape} broadcast to {shape}")
        return Value(np.broadcast_to(x.data, shape), np.broadcast_to(x.defined, shape))

    def multiple_of(self, x: Any, divisor: int) -> Any:
        number = x.tensor.address if isinstance(x, Pointer) else x._scalar("number")
        if number % divisor:
            raise CheckError(f"{number} is no multiple of {divisor}")
        return x

    def cdiv(self, a: Any, b: int) -> Any:
        return (a + (b - 1)) // b

    def where(self, mask: Value, a: Any, b: Any) -> Value:
        if mask.data.dtype != bool:
            raise CheckError(f"a mask of {mask.data.dtype}")
        x, y = operands(a, b)
        chosen = np.where(mask.data, x.defined, y.defined)
        return Value(np.where(mask.data, x.data, y.data), mask.defined & chosen)

    def load(self, pointer: Pointer, mask: Any = None, other: Any = None) -> Value:
        at, on = pointer.places(mask)
        tensor = pointer.tensor
        inside = np.where(on, at, 0)
        dtype = tensor.data.dtype
        if not tensor.size:
            data, defined = np.zeros(at.shape, dtype), np.zeros(at.shape, bool)
        else:
            data = tensor.data[inside]
            defined = tensor.is_defined[inside] | tensor.was_stored[inside]
            if self.is_late(tensor, inside[on]) or tensor.was_joined[inside[on]].any():
                raise CheckError("an element is loaded after it was stored")
            tensor.note_read(inside[on], self.program)
        if not defined[on].all():
            raise CheckError("an element is loaded that has no value")
        if other is None:
            return Value(data, on)
        fill = other.data if isinstance(other, Value) else np.asarray(other)
        return Value(np.where(on, data, fill.astype(dtype)))

    def store(self, pointer: Pointer, value: Value, mask: Any = None) -> None:
        at, on = pointer.places(mask, value)
        tensor = pointer.tensor
        if value.data.dtype != tensor.data.dtype:
            raise CheckError(f"{value.data.dtype} is stored as {tensor.data.dtype}")
        shape = np.broadcast_shapes(at.shape, value.data.shape)
        if shape != at.shape:
            raise CheckError(f"values of shape {value.data.shape} for {at.shape} elements")
        if not np.broadcast_to(value.defined, at.shape)[on].all():
            raise CheckError("an element without a value is stored")
        places = at[on]
        if len(np.unique(places)) != places.size or self.is_late(tensor, places):
            raise CheckError("an element is stored twice")
        if tensor.was_joined[places].any():
            raise CheckError("an element is stored that an atomic operation changes")
        if tensor.was_stored_before[places].any() and not self.barriers:
            # only a program that combines values in order waits before it stores
            raise CheckError("an element is stored by two launches")
        if (~np.isin(tensor.reader[places], (NOBODY, self.program))).any():
            raise CheckError("an element is stored that another program loads")
        tensor.was_stored[places] = True
        tensor.epoch[places] = self.barriers
        tensor.data[places] = np.broadcast_to(value.data, at.shape)[on]

    def _atomic(
        self, pointer: Pointer, value: Value, mask: Any, sem: str, combine: Callable[..., Any]
    ) -> None:
        """Change elements that an earlier launch has stored, in any order."""
        at, on = pointer.places(mask, value)
        tensor, width = pointer.tensor, pointer.tensor.data.itemsize
        if value.data.dtype != tensor.data.dtype or width < 4 or sem != "relaxed":
            raise CheckError(f"an atomic operation of {value.data.dtype}, {sem}")
        if not np.broadcast_to(value.defined, at.shape)[on].all():
            raise CheckError("an element without a value is combined")
        places = at[on]
        if not (tensor.is_defined & ~tensor.was_stored)[places].all():
            raise CheckError("an atomic operation has no first value")
        order = np.random.default_rng(self.program).permutation(places.size)
        values = np.broadcast_to(value.data, at.shape)[on]
        combine.at(tensor.data, places[order], values[order])
        tensor.was_joined[places] = True

    def atomic_add(self, pointer: Pointer, value: Value, mask: Any = None, sem: str = "") -> None:
        self._atomic(pointer, value, mask, sem, np.add)

    def atomic_max(self, pointer: Pointer, value: Value, mask: Any = None, sem: str = "") -> None:
        self._atomic(pointer, value, mask, sem, np.maximum)

    def atomic_min(self, pointer: Pointer, value: Value, mask: Any = None, sem: str = "") -> None:
        self._atomic(pointer, value, mask, sem, np.minimum)

    # ---- arithmetic ----------------------------------------------------------------------------

    def range(
        self,
        start: Any,
        stop: Any,
        step: Any = 1,
        flatten: bool = False,
        warp_specialize: bool = False,
        num_stages: int | None = None,
    ) -> Any:
        return (Value(np.int32(k)) for k in range(*map(operator.index, (start, stop, step))))

    def trans(self, x: Value) -> Value:
        """Swap the last two axes."""
        return Value(x.data.swapaxes(-1, -2), x.defined.swapaxes(-1, -2))

    def split(self, x: Value) -> tuple[Value, ...]:
        assert x.data.shape[-1] == 2
        return tuple(Value(x.data[..., k], x.defined[..., k]) for k in range(2))

    def permute(self, x: Value, *axes: int) -> Value:
        return Value(x.data.transpose(axes), x.defined.transpose(axes))

    def dot(
        self, a: Value, b: Value, input_precision: str | None = None, out_dtype: Any = np.float32
    ) -> Value:
        """Multiply in the operands' type and add in the result's; float32 in its precision.

        Operands are two matrices, or as many on both sides.
        """
        x, y = a.data, b.data
        is_float32 = x.dtype == np.float32
        allowed = {"int8": np.int32, "bfloat16": np.float32, "float16": np.float32}
        if x.dtype != y.dtype or out_dtype != allowed.get(x.dtype.name, np.float32):
            raise CheckError(f"a contraction of {x.dtype} and {y.dtype} to {out_dtype}")
        if is_float32 != (input_precision is not None) or x.dtype.name == "float64":
            raise CheckError(f"a contraction of {x.dtype} with {input_precision}")
        least = max(self.least_dot, 32 if x.dtype == np.int8 and self.least_dot > 1 else 1)
        if x.ndim not in (2, 3) or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2]:
            raise CheckError(f"a contraction of {x.shape} and {y.shape}")
        if min(x.shape[-2], y.shape[-1]) < self.least_dot or x.shape[-1] < least:
            raise CheckError(f"a contraction of {x.shape} and {y.shape}")
        if input_precision == "tf32":
            x, y = tf32(x), tf32(y)
        with np.errstate(all="ignore"):
            defined = a.defined.all(-1)[..., None] & b.defined.all(-2)[..., None, :]
            return Value(x.astype(out_dtype) @ y.astype(out_dtype), defined)

    PropagateNan = SimpleNamespace(ALL="all")

    def maximum(self, a: Any, b: Any, propagate_nan: str = "") -> Value:
        return self._extreme(a, b, propagate_nan, np.maximum)

    def minimum(self, a: Any, b: Any, propagate_nan: str = "") -> Value:
        return self._extreme(a, b, propagate_nan, np.minimum)

    def _extreme(self, a: Any, b: Any, propagate_nan: str, function: Any) -> Value:
        """Of floats with NaN as NumPy has it, which Triton does only if it is told to."""
        result = binary(a, b, function)
        assert propagate_nan == "all" or result.data.dtype.kind in "iu"
        return result

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        operands(a, b), operands(b, c)
        data = NumpyMachine().fma(a.data, b.data, c.data)
        return Value(data, a.defined & b.defined & c.defined)

    def div_rn(self, a: Value, b: Value) -> Value:
        return binary(a, b, np.divide)

    def __getattr__(self, name: str) -> Callable[[Value], Value]:
        function = {"sqrt_rn": np.sqrt, "sqrt": np.sqrt, "abs": np.abs, "floor": np.floor}
        function |= {"ceil": np.ceil, "exp2": np.exp2, "log2": np.log2}
        function |= {"rsqrt": lambda x: 1 / np.sqrt(x)}

        def call(x: Value) -> Value:
            with np.errstate(all="ignore"):
                return Value(function[name](x.data), x.defined)

        if name not in function:
            raise AttributeError(name)
        return call

    # ---- reductions ----------------------------------------------------------------------------

    def sum(self, x: Value, axis: int) -> Value:
        """Sum in 32 bits at least, as Triton does."""
        kind, size = x.data.dtype.kind, x.data.dtype.itemsize
        data = x.data.astype(f"{kind}4") if kind in "iu" and size < 4 else x.data
        return self.reduce(Value(data, x.defined), axis, lambda a, b: a + b)

    def min(self, x: Value, axis: int) -> Value:
        return self.reduce(x, axis, self.minimum)

    def reduce(self, x: Any, axis: int, combine: Any) -> Any:
        """Reduce a tensor, or a tuple of tensors, by halves."""
        parts = x if isinstance(x, tuple) else (x,)
        moved = [first_axis(p, axis) for p in parts]
        while moved[0].data.shape[0] > 1:
            half = moved[0].data.shape[0] // 2
            result = combine(*(p[:half] for p in moved), *(p[half:] for p in moved))
            moved = list(result) if isinstance(result, tuple) else [result]
        results = tuple(p[0] for p in moved)
        return results if isinstance(x, tuple) else results[0]

    def associative_scan(self, x: Value, axis: int, combine: Any) -> Value:
        data, defined = np.moveaxis(x.data, axis, 0), np.moveaxis(x.defined, axis, 0)
        rows = [Value(data[0], defined[0])]
        for k in range(1, len(data)):
            rows.append(combine(rows[-1], Value(data[k], defined[k])))
        joined = np.stack([r.data for r in rows]), np.stack([r.defined for r in rows])
        return Value(*(np.moveaxis(a, 0, axis) for a in joined))


def first_axis(x: Value, axis: int) -> Value:
    return Value(np.moveaxis(x.data, axis, 0), np.moveaxis(x.defined, axis, 0))


class Function:
    """A `triton.jit` function: called by another one, or launched on a grid."""

    def __init__(self, function: Callable[..., Any], language: Language) -> None:
        self.function, self.language = function, language

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(
            *args: Any, num_warps: int, enable_fp_fusion: bool, num_stages: int = 3, **blocks: Any
        ) -> None:
            if not 1 <= num_stages <= 8:
                raise CheckError(f"{num_stages} stages")
            if num_warps & (num_warps - 1) or not 1 <= num_warps <= 32 or enable_fp_fusion:
                raise CheckError(f"{num_warps} warps")
            numbers = [n for n in blocks.values() if not isinstance(n, np.dtype)]
            if any(n & (n - 1) for n in numbers):
                raise CheckError(f"blocks of {blocks}")
            for tensor in ADDRESSES.values():
                tensor.seal()
            self.language.programs = grid[0]
            for program in np.random.default_rng(0).permutation(grid[0]):
                self.language.begin(int(program))
                self.function(*map(_argument, args), **blocks)

        return launch


def _argument(x: Any) -> Any:
    """Convert an argument as a launch does: the number 1 is a constant of the program."""
    if isinstance(x, Pointer):
        return x
    if isinstance(x, Tensor):
        return Pointer(x)
    return x if x == 1 else Value(np.int32(x) if x < 2**31 else np.int64(x))


def _of_library(function: Any) -> Callable[..., Value]:
    def call(*args: Value) -> Value:
        with np.errstate(all="ignore"):
            data = function(*(a.data for a in args))
        return Value(data, functools.reduce(np.logical_and, [a.defined for a in args]))

    return call


LIBRARY = SimpleNamespace(**{n: _of_library(getattr(np, n)) for n in ("sin", "cos", "tan", "fmod")})


def modules(least_dot: int) -> dict[str, Any]:
    """Stand-ins of `torch` and `triton` by the names they are imported under."""
    language = Language(least_dot)

    def empty(shape: tuple[int, ...], dtype: Any, device: str) -> Tensor:
        return Tensor(np.zeros(shape, dtype), stored=False)

    def tensor(rows: Any, dtype: Any, device: str) -> Tensor:
        return Tensor(np.array(rows, dtype), stored=True)

    torch = SimpleNamespace(empty=empty, tensor=tensor, bool=NAMES["int1"], **NAMES)

    def set_allocator(allocate: Any) -> None:
        if allocate(256, 128, None).numel() != 256:
            raise CheckError("memory of another size for tensor descriptors")
        language.has_allocator = True

    triton = SimpleNamespace(
        jit=lambda f: Function(f, language),
        set_allocator=set_allocator,
        cdiv=lambda a, b: -(-a // b),
        next_power_of_2=lambda n: 1 << max(math.ceil(n) - 1, 0).bit_length(),
        language=language,
    )
    extra = SimpleNamespace(libdevice=LIBRARY)
    return {
        "torch": torch,
        "triton": triton,
        "triton.language": triton,
        "triton.language.extra": extra,
    }


def launch(
    source: str, arrays: Sequence[Array], *, least_dot: int = 16, **sizes: int
) -> tuple[Any, ...]:
    """Run the `launch` of a printed file on arrays, and return its outputs.

    `least_dot` is the least extent of a matrix: smaller ones than Triton's make small blocks.
    Raises CheckError for a program that does what none may do.
    """
    stand_ins = modules(least_dot)

    def load_module(
        name: str, globals_: Any = None, locals_: Any = None, names: Any = (), level: int = 0
    ) -> Any:
        if name == "triton.language" and not names:
            return stand_ins["triton"]
        return stand_ins[name]

    space: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": load_module}}
    exec(compile(source, "<printed>", "exec"), space)
    result = space["launch"](*map(_tensor, arrays), **sizes)
    return tuple(map(_result, result if isinstance(result, tuple) else (result,)))


def _tensor(a: Any) -> Any:
    return [_tensor(x) for x in a] if isinstance(a, list) else Tensor(np.asarray(a), stored=True)


def _result(t: Any) -> Any:
    if isinstance(t, list):
        return [_result(x) for x in t]
    if not (t.was_stored | t.was_stored_before)[t.offsets].all():
        raise CheckError("an element is never stored")
    return t.result()


def named_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes as keywords of `launch`."""
    return {f"size_{n}": v for n, v in sizes.items()}
