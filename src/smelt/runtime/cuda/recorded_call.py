"""Repeat a call of a plan on a device: one native call with the addresses of its arrays.

A `RecordedCall` holds for sizes, strides and a source of memory. It fixes everything else: the
table of launches, the frame of their arguments, where addresses go, the blocks to allocate.

    call = RecordedCall(prepared, graphs, inputs, device)
    words = call.run([x.address for x in inputs], stream)      # None: call the executable
    results = call.adopt(words, inputs, memory, stream)
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Collection, Sequence
from typing import Final

from smelt.runtime.cuda.buffer import DeviceBuffer
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.memory import DriverMemory
from smelt.runtime.cuda.native_call import DECLINED, device_words, native_calls
from smelt.runtime.cuda.stream import LaunchGraphs, is_replayed, launch_error, launch_frame
from smelt.runtime.cuda.tables import PreparedLaunches
from smelt.runtime.sliced_plan import VECTOR_BYTES
from smelt.types.dtype import DType
from smelt.types.tensor import row_major

STACK_WORDS: Final = 4096
"""Largest frame that native code puts on the stack: 32 KiB."""


class RecordedCall:
    """A call that repeats; safe to run from several threads.

    A result that replaces an input is computed there. The caller passes the addresses of the inputs
    and then of those other results that are in `passed`, by number, and with `arena_is_passed` the
    arena's. What else is needed comes from the driver's pool in the call.
    """

    __slots__ = (
        "_address",
        "_aligned",
        "_allocated",
        "_constants",
        "_device",
        "_frame",
        "_graphs",
        "_kept",
        "_launches",
        "_new",
        "_owned",
        "_room",
        "arena_bytes",
        "has_no_blocks",
        "passed",
        "results",
    )

    def __init__(
        self,
        p: PreparedLaunches,
        graphs: LaunchGraphs,
        inputs: Sequence[DeviceBuffer],
        device: Device,
        passed: Collection[int] = (),
        kept: Sequence[DeviceBuffer] = (),
        *,
        arena_is_passed: bool = False,
    ) -> None:
        """Record a call whose inputs have the shapes and strides of `inputs`.

        `kept` are the workspaces that outlive calls, computed from some of these inputs.
        """
        self._device, self._launches = device, p
        self._graphs = graphs if is_replayed(p.operations) else None
        self.arena_bytes = p.arena_bytes
        self.results: list[tuple[tuple[int, ...], tuple[int, ...], DType, int]] = [
            (shape, row_major(shape), dtype, nbytes) for _, shape, dtype, nbytes, _ in p.results
        ]
        """By result: shape, strides, dtype, bytes."""
        replaced = {k: over for k, (*_, over) in enumerate(p.results) if over >= 0}
        self.passed = tuple(k for k in passed if k not in replaced)
        """Results whose addresses the caller passes."""
        others = [k for k in range(len(p.results)) if k not in {*replaced, *self.passed}]
        self._allocated = tuple(others)
        first = len(inputs)
        word_of = replaced | {k: n for n, k in enumerate((*self.passed, *others), first)}
        self._new = [(k, word_of[k]) for k in (*replaced, *others)]
        """Results that the caller does not pass, with the number of their address."""
        passed_words = first + len(self.passed)
        words_of = [*range(first), *(word_of[k] for k in range(len(p.results)))]
        self._aligned = tuple(n for k in p.aligned if (n := words_of[k]) < passed_words)
        frame, words = p.frame[:], len(p.frame) - p.most_arguments
        for slot, source, dimension in p.strides:
            frame[slot] = inputs[source].strides[dimension]
        arena = passed_words + len(others)
        patches: list[tuple[int, int, int]] = []
        for slot, source, offset in p.addresses:
            if source < len(words_of):
                patches.append((slot, words_of[source], offset))
            else:
                frame[slot] = kept[source - len(words_of)].address + offset
        constants = {k for workspace in p.kept for k in workspace.inputs}
        self._constants = tuple((k, inputs[k].address) for k in constants)
        patches += [(slot, arena, offset) for slot, offset in p.arena]
        sizes = [max(self.results[k][-1], 1) for k in others]
        has_arena = p.arena_bytes > 0 and not arena_is_passed
        sizes += [p.arena_bytes] * has_arena
        self._owned = len(sizes)
        self.has_no_blocks = self._owned == 0
        """Whether a call allocates nothing."""
        tables = frame, array("q", itertools.chain(*patches)), array("q", sizes)
        at_frame, at_patches, at_sizes = (t.buffer_info()[0] for t in tables)
        is_native = self._graphs is None and not p.has_parts
        has_room = is_native and len(frame) <= STACK_WORDS
        self._room = 0 if has_room else words
        self._frame = frame
        description = array("q", device_words(device))
        description.extend([p.rows.ctypes.data, len(p.rows), at_frame, words, p.most_arguments])
        description.extend([at_patches, len(patches), at_sizes, self._owned, passed_words])
        description.append(int(has_arena))
        self._kept = description, tables, tuple(kept)
        self._address = description.buffer_info()[0]

    def run(self, addresses: Sequence[int], stream: int) -> array[int] | None:
        """Queue the kernels and return all addresses; None if Python has to make the call.

        Raises DriverCallError if a launch fails.
        """
        for k in self._aligned:
            if addresses[k] % VECTOR_BYTES:
                return None
        if not self._device.is_ours or any(addresses[k] != a for k, a in self._constants):
            return None
        words = array("q", addresses)
        words.extend([0] * self._owned)
        at = words.buffer_info()[0]
        if not self._room:
            failed = native_calls().call(self._address, at, stream, 0)
            if failed > 0:
                self._release(words, stream, len(self._allocated))
                raise launch_error(self._device, self._launches, failed)
            return None if failed == DECLINED else words
        frame = self._frame[:]
        if native_calls().call(self._address, at, stream, frame.buffer_info()[0]) == DECLINED:
            return None
        try:
            with self._device.current():
                launch_frame(self._device, self._launches, frame, stream, self._graphs)
        except Exception:
            self._release(words, stream, self._owned)
            raise
        return words

    def _release(self, words: array[int], stream: int, count: int) -> None:
        """Free the first blocks that a failed call has allocated."""
        first = len(words) - self._owned
        for address in words[first : first + count] if self._owned else ():
            native_calls().free(self._address, address, stream)

    def adopt(
        self, words: array[int], inputs: Sequence[DeviceBuffer], memory: DriverMemory, stream: int
    ) -> list[DeviceBuffer | None]:
        """Return the results of a call on these inputs; None where the caller passed one."""
        if self._room and self._owned > len(self._allocated):  # native code has not freed the arena
            memory.adopt(words[-1], self.arena_bytes, stream)
        results: list[DeviceBuffer | None] = [None] * len(self.results)
        for k, word in self._new:
            shape, strides, dtype, nbytes = self.results[k]
            address = words[word]
            owner = (
                memory.adopt(address, nbytes or 1, stream)
                if word >= len(inputs)
                else inputs[word].owner
            )
            results[k] = DeviceBuffer(address, shape, strides, dtype, self._device, stream, owner)
        return results
