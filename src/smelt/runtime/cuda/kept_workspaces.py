"""Keep workspaces between calls that launches compute from constants alone.

    launch 0: w -> w_packed         first calls with these weights
    launch 1: x, w_packed -> y      every call

The order of a product's tiles is such a workspace. Constants are inputs of a plan whose elements
never change, as arrays that a function captures and nobody else writes to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from smelt.kernel.device_code import DeviceCode
from smelt.runtime.cuda.buffer import DeviceBuffer


class KeptWorkspace(NamedTuple):
    """A workspace that one launch of a kernel computes from constants.

    Launches with the same `name` and `key` compute the same from inputs `inputs`, by number.
    """

    name: str
    key: Hashable
    nbytes: int
    inputs: tuple[int, ...]


class Kept(NamedTuple):
    """The elements of a workspace, and the owners of the constants that they follow from."""

    owners: tuple[object, ...]
    buffer: DeviceBuffer

    def holds_for(self, workspace: KeptWorkspace, inputs: Sequence[DeviceBuffer]) -> bool:
        """Return whether the inputs of a call are these constants."""
        return all(a is inputs[k].owner for a, k in zip(self.owners, workspace.inputs, strict=True))


def constant_launches(
    code: DeviceCode, constants: Collection[str], nbytes: Mapping[str, int], room: int
) -> Iterator[int]:
    """Yield the launches that alone write a workspace, and read nothing but constants.

    `nbytes` are those of all workspaces. The yielded ones take at most `room` bytes together.
    """
    writers = Counter(name for launch in code.launches for name in launch.writes)
    for number, launch in enumerate(code.launches):
        if len(launch.writes) != 1 or any(
            a.kind not in ("buffer", "size", "null") for a in launch.arguments
        ):
            continue
        (name,) = launch.writes
        read = {a.name for a in launch.arguments if a.kind == "buffer"} - {name}
        is_alone = name in nbytes and writers[name] == 1
        if is_alone and read and read <= {*constants} and nbytes[name] <= room:
            room -= nbytes[name]
            yield number
