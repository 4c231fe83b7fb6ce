"""Arrays in einops: `einops.rearrange(x, "b c h w -> b h w c")` without a wrapper.

einops asks the subclasses of its `AbstractBackend` whose arrays it is given. Ours is defined when
einops is imported, before or after Smelt; einops itself is imported by nobody here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from smelt.frontends.array import creation, einsum, manipulation
from smelt.frontends.array.array import Array


def define(module: ModuleType) -> None:
    """Define the back end as a subclass of einops' own class, where einops finds it."""

    class SmeltBackend(module.AbstractBackend):
        framework_name = "smelt"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Array)

        def from_numpy(self, x: Any) -> Array:
            return creation.asarray(x)

        def to_numpy(self, x: Array) -> Any:
            return x.__array__()

        def arange(self, start: int, stop: int) -> Array:
            return creation.arange(start, stop)

        def transpose(self, x: Array, axes: Sequence[int]) -> Array:
            return manipulation.permute_dims(x, tuple(axes))

        def stack_on_zeroth_dimension(self, tensors: list[Array]) -> Array:
            return manipulation.stack(tensors)

        def add_axis(self, x: Array, new_position: int) -> Array:
            return manipulation.expand_dims(x, axis=new_position)

        def tile(self, x: Array, repeats: Sequence[int]) -> Array:
            return manipulation.tile(x, tuple(repeats))

        def concat(self, tensors: Sequence[Array], axis: int) -> Array:
            return manipulation.concat(tensors, axis=axis)

        def is_float_type(self, x: Array) -> bool:
            return x.dtype.is_float

        def einsum(self, pattern: str, *x: Array) -> Array:
            return einsum.einsum(pattern, *x)

    setattr(module, SmeltBackend.__name__, SmeltBackend)
