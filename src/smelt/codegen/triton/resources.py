"""Describe a compiled program, and say why a device cannot run it well.

>>> from smelt.codegen.triton.device_limits import device_limits
>>> needs = Resources(registers=255, spills=48, shared_bytes=150_000, warps=8)
>>> gate(needs, device_limits("sm_90"))
'spills 48 bytes a thread'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from smelt.codegen.triton.device_limits import DeviceLimits
from smelt.python.dataclass import dataclass

AROUND_LOOPS_BYTES = 16
"""Bytes that a thread may store before its loops and load behind them: two addresses.

Assemblers spill addresses that are computed early, however many registers are free; the accesses
are as many as those of one block of a loop.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a program needs: registers and spilled bytes of a thread, shared memory, warps.

    `shared_bytes` is static and dynamic shared memory; `instructions` counts mnemonics. Without
    `loops_spill`, the program has loops and stores or loads no spilled register in them.
    """

    registers: int
    spills: int
    shared_bytes: int
    warps: int
    loops_spill: bool = True
    instructions: Mapping[str, int] = field(default_factory=dict[str, int])


def gate(needs: Resources, limits: DeviceLimits) -> str | None:
    """Return why another program is preferred; None for one that may run fast."""
    spills = f"spills {needs.spills} bytes a thread" if needs.spills else None
    return _excess(needs, limits) or spills


def spills_around_loops(needs: Resources) -> bool:
    """Return whether the few registers that a program spills cost its loops nothing."""
    return not needs.loops_spill and 0 < needs.spills <= AROUND_LOOPS_BYTES


def can_run(needs: Resources, limits: DeviceLimits) -> bool:
    """Return whether a program is within a device's limits, though it may spill registers."""
    return _excess(needs, limits) is None


def _excess(needs: Resources, limits: DeviceLimits) -> str | None:
    if needs.shared_bytes > limits.shared_bytes:
        return f"{needs.shared_bytes} bytes of shared memory, {limits.shared_bytes} are the limit"
    if needs.warps > limits.program_warps:
        return f"{needs.warps} warps, {limits.program_warps} are the limit"
    used = needs.registers * needs.warps * limits.lanes
    if used > limits.registers:
        return f"{used} registers a program, {limits.registers} are the limit"
    return None


KINDS: Final = {
    "HMMA": "tensor cores",
    "IMMA": "tensor cores",
    "HGMMA": "warp-group tensor cores",
    "IGMMA": "warp-group tensor cores",
    "QGMMA": "warp-group tensor cores",
    "UTCHMMA": "tensor cores by tcgen05",
    "UTCIMMA": "tensor cores by tcgen05",
    "UTCQMMA": "tensor cores by tcgen05",
    "LDGSTS": "copies to shared memory",
    "UTMALDG": "copies of tensors to shared memory",
    "LDG.128": "loads of 16 bytes",
    "STG.128": "stores of 16 bytes",
    "MUFU": "special functions",
    "ATOMG": "atomic operations",
    "RED": "atomic operations",
    "REDG": "atomic operations",
    "global_load_dwordx4": "loads of 16 bytes",
    "global_store_dwordx4": "stores of 16 bytes",
    "buffer_load_dwordx4": "loads of 16 bytes",
    "buffer_store_dwordx4": "stores of 16 bytes",
}
"""Mnemonics that say how a program computes and moves data."""


def key_instructions(instructions: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of telling mnemonics.

    >>> key_instructions({"HGMMA": 8, "IADD3": 40, "v_mfma_f32_32x32x8_bf16": 2})
    {'HGMMA': 8, 'v_mfma_f32_32x32x8_bf16': 2}
    """
    return {m: n for m, n in instructions.items() if m in KINDS or m.startswith("v_mfma")}
