"""Choose who computes a pending program: NumPy, operator by operator, or compiled code.

Compiling takes longer than most programs ever run.  By `SMELT_TIERS=auto` each skeleton (see
`program`) has an account: when NumPy computes it, the predicted gain of compiled code is paid in,
and it is compiled once the account holds the predicted time of compiling.  That takes at most twice
the time of the best choice in hindsight, as far as predictions hold.  The rule reads counts and
sizes, never a clock or the disk, so equal programs take equal decisions in every process.

What NumPy computes has the bits of compiled code, but for sums and products of floats, whose order
differs: their last bits may change once, when a program is compiled.  Programs with functions whose
last bits differ (exponentials, sines) are therefore compiled at once.

>>> a = record(Map("add"), (leaf(np.ones(3)), leaf(np.ones(3))))
>>> compute(Program((a,)))
[array([2., 2., 2.])]
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import raised_by_signal_handler
from smelt.frontends.array.layouts import Buffer
from smelt.frontends.array.program import Map, Program, leaf, record
from smelt.knobs import TIERS, fingerprint
from smelt.ops.contract import Contract
from smelt.ops.create import Constant, Iota
from smelt.ops.elementwise import Cast
from smelt.ops.extern import Extern
from smelt.ops.index import Gather, Scatter
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.scalar import EXACT
from smelt.ops.spec import TensorOp
from smelt.ops.view import View
from smelt.origin import Origin

__all__ = ["Map", "TierRow", "by_numpy", "leaf", "record", "tier_rows"]


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predicted times in microseconds: constants of a release, not of a machine."""

    numpy_operator: float = 0.9
    numpy_element: float = 0.0009
    fused_program: float = 14.0
    fused_operator: float = 0.9
    fused_element: float = 0.00025
    fused_byte: float = 0.00008
    compile_program: float = 12_000.0
    compile_operator: float = 6_200.0


PREDICTED = Predictions()
RUNS_BEFORE = 2
"""Executions before a skeleton may be compiled: they show which sizes and numbers change."""
_ACCOUNTS_LIMIT = 4096


@dataclass(slots=True)
class Account:
    """Executions of a skeleton, and what it has paid for being compiled."""

    operators: int
    origin: Origin | None
    price: float
    is_exact: bool
    runs: int = 0
    paid: float = 0.0
    tier: str = "numpy"


class TierRow(NamedTuple):
    """Who computes the programs of one skeleton: "numpy" or "fused", and why."""

    place: str
    tier: str
    operators: int
    runs: int
    paid_us: float
    price_us: float
    reason: str


_ACCOUNTS: dict[Hashable, Account] = {}


def tier_rows() -> list[TierRow]:
    """Return a row for each skeleton that `SMELT_TIERS=auto` or `numpy` decided about."""
    return [
        TierRow(str(a.origin), a.tier, a.operators, a.runs, a.paid, a.price, _reason(a))
        for a in _ACCOUNTS.values()
    ]


def _reason(a: Account) -> str:
    if not a.is_exact:
        return "functions whose last bits differ from NumPy's"
    if a.tier == "fused":
        return "the account has paid the price of compiling"
    return f"computed by NumPy so far: {a.paid / a.price:.2f} of the price"


def by_numpy(program: Program) -> list[Buffer] | None:
    """Return the results if NumPy computes this execution, None if compiled code does."""
    mode = TIERS.get()
    if mode == "fused":
        return None
    key = program.skeleton, fingerprint()
    account = _ACCOUNTS.pop(key, None)
    if account is None:
        if len(_ACCOUNTS) >= _ACCOUNTS_LIMIT:
            del _ACCOUNTS[next(iter(_ACCOUNTS))]
        account = _open(program)
    _ACCOUNTS[key] = account  # least recently used first
    account.runs += 1
    if mode == "auto" and not _stays(account, program):
        return None
    if any(not _is_computable(x) for x in program.nodes):
        return None
    try:
        return compute(program)
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
        return None  # compiled code raises our error, or does what NumPy cannot


def _open(program: Program) -> Account:
    count = len(program.nodes)
    price = PREDICTED.compile_program + PREDICTED.compile_operator * count
    is_exact = all(_is_exact(x.op) for x in program.nodes)
    origin = program.nodes[-1].origin if program.nodes else None
    return Account(count, origin, price, is_exact, tier="numpy" if is_exact else "fused")


def _stays(account: Account, program: Program) -> bool:
    """Return whether NumPy computes a program, after paying its gain into the account."""
    if not account.is_exact:
        return False
    p, count = PREDICTED, account.operators
    elements, moved = _elements(program), _bytes(program)
    by_numpy = p.numpy_operator * count + p.numpy_element * elements
    fused = p.fused_program + p.fused_operator * count + p.fused_element * elements
    gain = by_numpy - fused - p.fused_byte * moved
    if gain <= 0:
        return True  # sizes at which compiled code does not pay, whatever it has cost
    if account.tier == "fused":
        return False
    if account.runs > RUNS_BEFORE and account.paid >= account.price:
        account.tier = "fused"
        return False
    account.paid += gain
    return True


def _elements(program: Program) -> int:
    """Return the elements of all nodes; of reductions and scans those that are read.

    Products take NumPy as long as compiled code, so they count as their results.
    """
    sources = [x.inputs[0] if isinstance(x.op, (Reduce, Scan)) else x for x in program.nodes]
    return sum(_count(x.type.shape) for x in sources)


def _bytes(program: Program) -> int:
    written = [x.type.dtype.itemsize * _count(x.type.shape) for x in program.outputs]
    return sum(written) + sum(x.nbytes for x in program.buffers)


def _count(shape: Any) -> int:
    return math.prod(shape)


def _is_exact(op: TensorOp) -> bool:
    """Return whether NumPy's results have the bits of compiled code, but for sums and products."""
    if isinstance(op, Map):
        return op.scalar in EXACT
    kinds = (View, Cast, Constant, Iota, Gather, Scatter, Reduce, Scan, Contract)
    return isinstance(op, kinds) and not isinstance(op, Extern)


def _is_computable(x: Any) -> bool:
    """Return whether positions are in bounds: NumPy counts negative ones from the end."""
    if not isinstance(x.op, (Gather, Scatter)):
        return True
    first = 2 if isinstance(x.op, Scatter) else 1
    return all(i.data is not None for i in x.inputs[first:])


def compute(program: Program) -> list[Buffer]:
    """Compute a program operator by operator; intermediates are dropped after their last use.

    Raises whatever NumPy raises.
    """
    values: dict[Any, Buffer] = dict(zip(program.leaves, program.buffers, strict=True))
    kept = {*program.outputs, *program.leaves}
    uses: dict[Any, int] = {}
    for x in program.nodes:
        for i in x.inputs:
            uses[i] = uses.get(i, 0) + 1
    with np.errstate(all="ignore"):  # as in compiled code: no floating-point warnings
        for x in program.nodes:
            operands = [_value(values, i) for i in x.inputs]
            values[x] = np.asarray(x.op.reference({}, *operands))
            for i in x.inputs:
                uses[i] -= 1
                if not uses[i] and i not in kept:
                    values.pop(i, None)
    results: list[Buffer] = []
    for x in program.outputs:
        data = _value(values, x)
        is_private = data.base is None and data.flags.c_contiguous and data.flags.writeable
        shared = [*program.buffers, *results]
        if not is_private or any(data is other for other in shared):
            data = np.array(data, order="C")
        results.append(data)
    return results


def _value(values: dict[Any, Buffer], x: Any) -> Buffer:
    data = values.get(x)
    if data is None:
        data = values[x] = np.asarray(x.op.reference({}))
    return data
