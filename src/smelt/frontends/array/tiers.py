"""Choose who computes a pending program: NumPy, operator by operator, or compiled code.

Most operators are computed as they are called (see `at_once`); what is pending are those that have
paid for being compiled, and what reads them.  Each skeleton of a program (see `program`) has an
account.  Its operators share one purse (see `at_once`); when NumPy computes the program, the
predicted gain of compiled code is paid in.  The program is compiled once the purse, with the gain
at hand, holds the predicted time of compiling, and the program has recurred or its gain alone is a
good part of the price.  The time that this takes is within a small factor of the best choice in
hindsight, as far as predictions hold.  The rule reads counts and sizes, never a clock or the disk,
so equal programs take equal decisions in every process.

>>> from smelt.frontends.array.value import leaf, record
>>> from smelt.ops.elementwise import Map
>>> a = record(Map("add"), (leaf(np.ones(3)), leaf(np.ones(3))))
>>> compute(Program((a,)))
[array([2., 2., 2.])]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from smelt.frontends.array import at_once
from smelt.frontends.array.at_once import PREDICTED, PRICE, Purse
from smelt.frontends.array.memory import Buffer
from smelt.frontends.array.program import Program
from smelt.frontends.array.value import sighting, sightings, tier
from smelt.knobs import fingerprint
from smelt.python.dataclass import dataclass
from smelt.python.origin import Origin

_ACCOUNTS_LIMIT = 4096
_RUNS = 3
"""Minimum executions of a program that is compiled: what came twice may never come again."""


@dataclass(slots=True)
class Account:
    """Executions of a skeleton, and the purse of its operators."""

    operators: int
    origin: Origin | None
    purse: Purse
    runs: int = 0
    tier: str = "numpy"


class TierRow(NamedTuple):
    """Who computes an operator or the programs of one skeleton: "numpy" or "fused", and why."""

    place: str
    """Line of a program's last operator, or an operator with the types of its operands."""
    tier: str
    operators: int
    runs: int
    paid_us: float
    price_us: float
    reason: str


_ACCOUNTS: dict[Hashable, Account] = {}


def tier_rows() -> list[TierRow]:
    """Return a row for each operator computed at once, and for each program decided about."""
    operators = [
        _row(f"{x.op.name}({', '.join(map(str, x.types))})", "numpy", 1, x, Purse.load + PRICE)
        for x in sightings()
        if x.runs
    ]
    programs = [
        _row(str(a.origin), a.tier, a.operators, a, _price(a.operators)) for a in _ACCOUNTS.values()
    ]
    return programs + sorted(operators, key=lambda row: -row.paid_us)


def _row(place: str, tier: str, operators: int, x: Any, price: float) -> TierRow:
    paid = x.purse.common_purse().paid
    reason = f"computed by NumPy so far: {paid / price:.2f} of the price of compiling"
    if tier == "fused":
        reason = "the price of compiling has been paid"
    return TierRow(place, tier, operators, x.runs, paid, price, reason)


def _price(operators: int) -> float:
    return Purse.load + PREDICTED.compile_program + PREDICTED.compile_operator * operators


def by_numpy(program: Program, behind: Sequence[Any] = ()) -> list[Buffer] | None:
    """Return the results if NumPy computes this execution, None if compiled code does.

    Elements of values `behind` the outputs follow, which NumPy computes on the way.
    """
    mode = tier()
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
    return compute(program, behind)


def _open(program: Program) -> Account:
    """Open an account: operators that are recorded together share one purse."""
    purse = Purse()
    for seen in map(_sighting, program.nodes):
        if seen.saved:
            seen.common_purse().join(purse)
            purse = seen.purse
    origin = program.nodes[-1].origin if program.nodes else None
    return Account(len(program.nodes), origin, purse)


def _stays(account: Account, program: Program) -> bool:
    """Return whether NumPy computes a program, after paying its gain."""
    if account.tier == "fused":
        return False
    outputs = {*program.outputs}
    saved = [_sighting(x).saved for x in program.nodes if x not in outputs]
    gain = sum(saved) - PREDICTED.fused_program
    if gain <= 0:
        return True  # sizes at which compiled code does not pay, whatever it has cost
    price = _price(account.operators)
    recurs = account.runs >= _RUNS or gain * _RUNS >= price
    purse = account.purse = account.purse.common_purse()
    if not recurs or purse.paid + gain < price:
        purse.pay(gain)
        return True
    account.tier = "fused"
    purse.paid = max(0.0, purse.paid + gain - price)
    Purse.load = 0.0
    return False


def _sighting(x: Any) -> at_once.Sighting:
    return sighting(x.op, tuple([i.type for i in x.inputs]))


def compute(program: Program, behind: Sequence[Any] = ()) -> list[Buffer] | None:
    """Compute a program operator by operator; intermediates are dropped after their last use.

    Returns the elements of its outputs, and of the intermediates `behind` them.

    None where NumPy cannot compute it, or where compiled code raises an error of ours.
    """
    values: dict[Any, Buffer] = dict(zip(program.leaves, program.buffers, strict=True))
    kept = {*program.outputs, *behind, *program.leaves}
    uses: dict[Any, int] = {}
    for x in program.nodes:
        for i in x.inputs:
            uses[i] = uses.get(i, 0) + 1
    private: dict[Any, Buffer] = {}
    """Intermediates in memory that no view shares."""
    with np.errstate(all="ignore"):  # it is not the line of the call that would warn
        for x in program.nodes:
            operands = tuple([_value(values, i) for i in x.inputs])
            seen = _sighting(x)
            data = at_once.in_recycled(seen, operands, _dead(x, uses, private))
            if data is None:
                data = at_once.result_or_view(seen, operands)
            if data is None:
                return None
            values[x] = data
            is_fresh = seen.memory is not None and data.base is None
            if is_fresh and x not in kept:
                private[x] = data
            for i in x.inputs:
                uses[i] -= 1
                if not uses[i] and i not in kept:
                    values.pop(i, None)
                if not (uses[i] and is_fresh):
                    private.pop(i, None)  # it is dropped, or the result may be a view of it
    results: list[Buffer] = []
    for x in (*program.outputs, *behind):
        data = _value(values, x)
        is_private = data.base is None and data.flags.c_contiguous and data.flags.writeable
        shared = [*program.buffers, *results]
        if not is_private or any(data is other for other in shared):
            data = np.array(data, order="C")
        results.append(data)
    return results


def _dead(x: Any, uses: dict[Any, int], private: dict[Any, Buffer]) -> Buffer | None:
    """Return the memory of an operand of the result's type that nothing else reads."""
    for i in x.inputs:
        if uses[i] == 1 and i.type is x.type and i in private:
            return private.pop(i)
    return None


def _value(values: dict[Any, Buffer], x: Any) -> Buffer:
    data = values.get(x)
    if data is None:
        data = values[x] = np.asarray(x.op.reference({}))
    return data
