"""Run a plan on a device: tables built once per sizes, then one native call for all launches.

    executable = DeviceExecutable(device, ("n",), values, [[step]], (), (1,))
    (result,) = executable.run([buffer], (1000,), stream, memory)

Nothing waits for the device. Intermediates lie in one block per call that belongs to the stream:
it may be freed when the call returns, since memory is freed in stream order.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from itertools import compress

from smelt import knobs
from smelt.errors import CaptureError, DeviceError, DeviceLayoutError
from smelt.runtime.cuda.buffer import DeviceBuffer
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.kept_workspaces import Kept, KeptWorkspace
from smelt.runtime.cuda.memory import DeviceBlock, Memory
from smelt.runtime.cuda.recorded_call import RecordedCall
from smelt.runtime.cuda.stream import LaunchGraphs, is_replayed, launch_frame, launch_kept
from smelt.runtime.cuda.tables import DeviceStep, HostStep, PreparedLaunches, prepare_launches
from smelt.runtime.plan_tables import PlanExecutable, Value
from smelt.runtime.sliced_plan import VECTOR_BYTES
from smelt.types.dtype import u8
from smelt.types.expr import Index
from smelt.types.tensor import row_major


class DeviceExecutable(PlanExecutable[PreparedLaunches]):
    """Plan ready to run on a device; safe to call from several threads."""

    def __init__(
        self,
        device: Device,
        size_names: tuple[str, ...],
        values: Sequence[Value],
        groups: Sequence[Sequence[DeviceStep | HostStep]],
        arena: Sequence[Index],
        outputs: Sequence[int],
        constants: Collection[int] = (),
    ) -> None:
        """Build an executable; arguments as for `smelt.runtime.executable.Executable`.

        `constants` are inputs whose elements never change, by number.
        """
        self.device = device
        self.constants = frozenset(constants)
        self._kept: dict[KeptWorkspace, Kept] = {}
        super().__init__(size_names, values, groups, arena, outputs)
        self._graphs: dict[tuple[int, ...], LaunchGraphs] = {}

    prelude = None
    """Of constants, workspaces alone are computed once: by the first call."""

    def run(
        self,
        inputs: Sequence[DeviceBuffer],
        sizes: tuple[int, ...],
        stream: int,
        memory: Memory,
        names: Sequence[str] = (),
        out: Sequence[DeviceBuffer | None] = (),
    ) -> list[DeviceBuffer]:
        """Queue the plan's kernels in a stream and return its outputs; see `compute`.

        `out` has arrays to write into, by output (None: allocate): contiguous, of the right shape
        and dtype, and apart from all inputs. An output that is an input is returned as it is, and
        one that is another output, too.
        """
        computed = [n for n, v in enumerate(self.values) if v.place == "output"]
        targets = self._by_value(out)
        results = self.compute(inputs, sizes, stream, memory, names, targets)
        by_value = dict(zip(computed, results, strict=True))
        return [
            by_value[v] if v in by_value else inputs[self.values[v].number] for v in self.outputs
        ]

    def compute(
        self,
        inputs: Sequence[DeviceBuffer],
        sizes: tuple[int, ...],
        stream: int,
        memory: Memory,
        names: Sequence[str] = (),
        out: Sequence[DeviceBuffer | None] = (),
    ) -> list[DeviceBuffer]:
        """Queue the plan's kernels in a stream and return what they compute, each value once.

        `inputs` are the plan's inputs and `sizes` the values of `size_names`; `names` are the
        inputs' names, for messages. `out` has arrays for what is computed, as in `run`.

        Raises DeviceLayoutError, DeviceError, DeviceSizeError, DeviceMemoryError, OutOfMemory and
        CaptureError before anything runs, DriverCallError if a launch fails.
        """
        self._check_devices(inputs, names)
        with self.device.current():
            capturing = self.device.is_capturing(stream)
            p = self._prepared_for(sizes, capturing=capturing)
            if capturing and p.operations is None:
                raise CaptureError(reason="the host reads the condition of a loop or branch")
            if capturing and not memory.is_capturable:
                raise CaptureError(reason="results would lie outside of torch's memory pool")
            _check_layouts(p, inputs, names)
            p.check_limit(p.kept_bytes, passed=_nbytes(out))
            self._wait_for_inputs([*inputs, *(x for x in out if x is not None)], stream)
            if capturing:  # the graph refers to the code for as long as the caller keeps it
                self.device.captured.add(p)
            block, results = self._allocate(p, inputs, stream, memory, out)
            kept = self._kept_for(p, inputs, results, block, stream, memory)
            frame = _fill_frame(p, inputs, results, block, kept)
            replayed = is_replayed(p.operations) and not capturing
            launch_frame(
                self.device, p, frame, stream, self._graphs_of(sizes) if replayed else None
            )
        return results

    def check_memory(
        self,
        sizes: tuple[int, ...],
        stream: int,
        out: Sequence[DeviceBuffer | None],
        copied_bytes: int,
    ) -> None:
        """Raise OutOfMemory if a call needs more than the knob MAX_EXTRA_MEMORY allows.

        Copies of its arguments, which are made before it, count too. Other arguments as for `run`.
        """
        if knobs.MAX_EXTRA_MEMORY.get() is None:
            return
        with self.device.current():
            p = self._prepared_for(sizes, capturing=self.device.is_capturing(stream))
        p.check_limit(p.kept_bytes, copied_bytes, _nbytes(self._by_value(out)))

    def record(
        self,
        inputs: Sequence[DeviceBuffer],
        sizes: tuple[int, ...],
        passed: Collection[int] = (),
        *,
        arena_is_passed: bool = False,
    ) -> RecordedCall | None:
        """Return a record of a call with these inputs; other arguments as for `RecordedCall`.

        None for a call under a limit of memory, which may change.
        """
        p = self._prepared.get(sizes)
        if p is None or knobs.MAX_EXTRA_MEMORY.get() is not None:
            return None
        kept = [self._cached(k, inputs) for k in p.kept]
        if None in kept:
            return None
        return RecordedCall(
            p,
            self._graphs_of(sizes),
            inputs,
            self.device,
            passed,
            [k.buffer for k in kept if k is not None],
            arena_is_passed=arena_is_passed,
        )

    # ---- one call --------------------------------------------------------------------------------

    def _by_value(self, out: Sequence[DeviceBuffer | None]) -> list[DeviceBuffer | None]:
        """Return by computed value the array to write it to."""
        by_output = dict(reversed([*zip(self.outputs, out)]))
        return [by_output.get(n) for n, v in enumerate(self.values) if v.place == "output"]

    def _prepared_for(self, sizes: tuple[int, ...], *, capturing: bool) -> PreparedLaunches:
        """Return the table of a call; raise CaptureError for a captured first one."""
        if capturing and sizes not in self._prepared:
            raise CaptureError(reason="the program is loaded by its first call")
        return self.prepared(sizes)

    def _allocate(
        self,
        p: PreparedLaunches,
        inputs: Sequence[DeviceBuffer],
        stream: int,
        memory: Memory,
        out: Sequence[DeviceBuffer | None] = (),
    ) -> tuple[DeviceBlock | None, list[DeviceBuffer]]:
        """Return the block of the intermediates, and the results."""
        results: list[DeviceBuffer] = []
        for k, (_, shape, dtype, nbytes, over) in enumerate(p.results):
            target = out[k] if k < len(out) else None
            if target is not None:
                address, owner = target.address, target.owner
            elif over >= 0:
                address, owner = inputs[over].address, inputs[over].owner
            else:
                owner = memory.allocate(nbytes, stream)
                address = owner.address
            results.append(
                DeviceBuffer(address, shape, row_major(shape), dtype, self.device, stream, owner)
            )
        block = memory.allocate(p.arena_bytes, stream) if p.arena_bytes else None
        return block, results

    def _kept_for(
        self,
        p: PreparedLaunches,
        inputs: Sequence[DeviceBuffer],
        results: Sequence[DeviceBuffer],
        block: DeviceBlock | None,
        stream: int,
        memory: Memory,
    ) -> list[DeviceBuffer]:
        """Return the workspaces that outlive calls; those that are not there yet are computed.

        Threads that find one missing at once compute one each.
        """
        cached = [self._cached(k, inputs) for k in p.kept]
        self._wait_for_inputs([k.buffer for k in cached if k is not None], stream)
        new = [k is None for k in cached]
        buffers: list[DeviceBuffer] = []
        for workspace, earlier in zip(p.kept, cached, strict=True):
            if earlier is None:
                owner, n = memory.allocate(workspace.nbytes, stream), workspace.nbytes
                buffers.append(
                    DeviceBuffer(owner.address, (n,), (1,), u8, self.device, stream, owner)
                )
            else:
                buffers.append(earlier.buffer)
        if any(new):
            frame = _fill_frame(p, inputs, results, block, buffers)
            launch_kept(self.device, p, frame, stream, [*compress(range(len(new)), new)])
            for workspace, buffer in compress(zip(p.kept, buffers, strict=True), new):
                owners = tuple(inputs[k].owner for k in workspace.inputs)
                self._kept[workspace] = Kept(owners, buffer)
        return buffers

    def _cached(self, workspace: KeptWorkspace, inputs: Sequence[DeviceBuffer]) -> Kept | None:
        """Return a workspace that was computed from these inputs, if there is one."""
        kept = self._kept.get(workspace)
        return kept if kept is not None and kept.holds_for(workspace, inputs) else None

    def _wait_for_inputs(self, inputs: Sequence[DeviceBuffer], stream: int) -> None:
        """Order the stream after those that write the inputs."""
        for other in {x.stream for x in inputs} - {stream}:
            self.device.order(other, stream)
        for x in inputs:
            if x.stream != stream and hasattr(x.owner, "used_by"):
                x.owner.used_by(stream)

    def _check_devices(self, inputs: Sequence[DeviceBuffer], names: Sequence[str]) -> None:
        for k, x in enumerate(inputs):
            if x.device is not self.device:
                raise DeviceError(
                    f"{_name(names, k)} is on {x.device.name}, others are on {self.device.name}",
                    hint="Move one of them; nothing moves between devices by itself.",
                )

    def _build_tables(self, named: dict[str, int]) -> PreparedLaunches:
        return prepare_launches(self.values, self.launches, self.arena, named, self.constants)

    def _graphs_of(self, sizes: tuple[int, ...]) -> LaunchGraphs:
        return self._graphs.setdefault(sizes, LaunchGraphs(self.device))

    def _forget(self, sizes: tuple[int, ...]) -> None:
        super()._forget(sizes)
        self._graphs.pop(sizes, None)


def _fill_frame(
    p: PreparedLaunches,
    inputs: Sequence[DeviceBuffer],
    results: Sequence[DeviceBuffer],
    block: DeviceBlock | None,
    kept: Sequence[DeviceBuffer] = (),
) -> array[int]:
    """Return the arguments of a call with addresses and strides filled in."""
    where = [x.address for x in (*inputs, *results, *kept)]
    frame = p.fill(where, 0 if block is None else block.address)
    for slot, source, dimension in p.strides:
        frame[slot] = inputs[source].strides[dimension]
    return frame


def _check_layouts(
    p: PreparedLaunches, inputs: Sequence[DeviceBuffer], names: Sequence[str]
) -> None:
    for k, x in enumerate(inputs):
        if k not in p.strided and not x.is_contiguous:
            reason = f"it has strides {x.strides} for shape {x.shape}"
            raise DeviceLayoutError(argument=_name(names, k), reason=reason)
        if k in p.aligned and x.address % VECTOR_BYTES:
            reason = f"its address is {x.address % VECTOR_BYTES} bytes past a multiple of 16"
            raise DeviceLayoutError(argument=_name(names, k), reason=reason)


def _nbytes(out: Sequence[DeviceBuffer | None]) -> int:
    return sum(x.nbytes for x in out if x is not None)


def _name(names: Sequence[str], k: int) -> str:
    return names[k] if k < len(names) else f"input {k}"
