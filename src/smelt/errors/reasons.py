"""Fusion reasons (F-codes): why two operators are, or are not, in one kernel.

F0xx are reasons not to fuse, F1xx reasons to fuse. A decision stores the name of its reason and the
fields of its sentence; the planner never builds prose.

>>> REASONS["different-axes"].code
'F002'
>>> REASONS["too-many-operands"].explain(operands=40, limit=32)
'the kernel would read and write 40 arrays, 32 is the limit'
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from smelt.dataclass import dataclass
from smelt.errors.array import UnknownNameError
from smelt.errors.tree import nearest


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason: stable `code` and `name`, the `sentence` that follows *because*, a page of `doc`.

    `override` says how a user gets the opposite, where that is possible.
    """

    code: str
    name: str
    sentence: str
    doc: str
    override: str = ""

    @property
    def accepts(self) -> bool:
        """Whether it is a reason to fuse."""
        return self.code >= "F100"

    def explain(self, **fields: object) -> str:
        """Return the sentence with its numbers; a field that was not recorded reads `?`."""
        return _Blanks().vformat(self.sentence, (), fields)


class _Blanks(string.Formatter):
    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            return super().format_field(value, format_spec)
        except (ValueError, TypeError):  # a missing field, or a symbolic size
            return str(value)


_MUST = "`sm.config(must_fuse=[(a, b)])` or `SMELT_MUST_FUSE=a+b` fuses them in spite of the cost."
_NEVER = "`sm.config(never_fuse=[(a, b)])` or `SMELT_NEVER_FUSE=a+b` keeps them apart."
_LEGAL = "It cannot be overridden: the fused kernel could not compute the right answer."

_REFUSALS = (
    Reason(
        "F001",
        "acyclic",
        "{between} lies on another path from one to the other, so that the fused kernel would wait "
        "for itself",
        "The two operators are connected by a second path through an operator that stays outside. "
        "A kernel that contained both would need its own result as an input. Clusters are joined "
        "only if the graph of clusters stays free of cycles.",
        "No setting helps; have what lies between fused as well, or computed from something else. "
        + _LEGAL,
    ),
    Reason(
        "F002",
        "different-axes",
        "they run over different axes: {a_axes} and {b_axes}",
        "A kernel runs over one set of named axes. Elementwise use and broadcasting make "
        "dimensions equal, reshapes split and join them; these two operators still disagree, so "
        "that no loop nest visits the elements of both in step.",
        _LEGAL,
    ),
    Reason(
        "F003",
        "reduction-crossing",
        "the consumer needs the whole reduction over {axis} before its first element",
        "The producer reduces an axis that the consumer iterates over again. The reduction must be "
        "complete first. Where the row fits fast memory it is swept twice in one kernel, where the "
        "correction is known it is streamed; neither was possible here.",
        "No setting helps; what reads the totals of its own row fuses (`keepdims=True`), what "
        "reads those of others waits. " + _LEGAL,
    ),
    Reason(
        "F004",
        "extern-barrier",
        "{op} runs outside the compiler",
        "Sorting, linear algebra and other library calls compute their result elsewhere. Their "
        "inputs and outputs are arrays in memory, so nothing fuses across them.",
        "No setting helps; each side of the call fuses by itself. Move to one side of it what does "
        "not need its result. " + _LEGAL,
    ),
    Reason(
        "F005",
        "scatter-root",
        "{op} writes to places that depend on data, so it ends its kernel, alone with elementwise "
        "operators that make its operands",
        "A scatter may write one place several times, in an order that matters. Other operators "
        "can be fused into what it reads, but nothing can be fused onto what it writes.",
        "No setting helps; a sum over a comparison of places (`where(index == places, x, 0)`) "
        "fuses with what reads it, and is worth it for few places. " + _LEGAL,
    ),
    Reason(
        "F006",
        "never-fuse",
        "the setting never_fuse forbids it",
        "`SMELT_NEVER_FUSE`, `sm.config(never_fuse=...)` or an option named this pair.",
        "Remove the pair from the setting.",
    ),
    Reason(
        "F007",
        "already-together",
        "they are in one kernel already",
        "Another decision joined the two operators before this candidate came up.",
        _NEVER,
    ),
    Reason(
        "F008",
        "alias-hazard",
        "{value} shares memory with an array that is still read",
        "A donated input or an `out=` array is overwritten by the fused kernel while other parts "
        "of it still have to be read.",
        _LEGAL + " Give `out=` memory of its own.",
    ),
    Reason(
        "F009",
        "rounding-barrier",
        "a row takes {bytes:,} bytes, {capacity:,} fit in fast memory, and rounding='{rounding}' "
        "streams no axis",
        "With `rounding='exact'` every sum keeps the order it has in a kernel of its own. To "
        "stream an axis adds up its blocks first, and passes over those that a mask rules out.",
        "`sm.config(rounding='eager')` allows it.",
    ),
    Reason(
        "F010",
        "cost",
        "the fused kernel is predicted to be {slower_ns:,.0f} ns slower",
        "The model's time for the fused kernel exceeds the sum of the separate kernels, their "
        "traffic and their launches. The decision lists both times, term by term.",
        _MUST,
    ),
    Reason(
        "F011",
        "register-pressure",
        "{live} values would be live in the inner loop, {registers} registers hold them",
        "Values beyond the vector registers are spilled to the stack in the innermost loop, which "
        "costs more than the traffic that is saved.",
        _MUST,
    ),
    Reason(
        "F012",
        "reads-transposed",
        "{operand} would be read across its rows, {ratio:.1f} times its bytes",
        "In the fused iteration order one operand is walked against its layout: each cache line is "
        "fetched for a few of its bytes. A separate transposing kernel reads it once in blocks.",
        _MUST,
    ),
    Reason(
        "F013",
        "too-many-operands",
        "the kernel would read and write {operands} arrays, {limit} is the limit",
        "Each array is a stream of its own for the hardware's prefetchers and an address in a "
        "register. Beyond the limit kernels get slower with every further array.",
        _MUST,
    ),
    Reason(
        "F014",
        "code-size",
        "the kernel would grow to {size} operations, {limit} is the limit",
        "Compile time grows with a kernel's size; code beyond the instruction cache runs slower.",
        _MUST,
    ),
    Reason(
        "F015",
        "recompute-dear",
        "{value} would be computed {times:.1f} times, {cost_ns:,.0f} ns more than storing it",
        "The producer has several consumers, or one that visits it repeatedly. Fusing means "
        "computing it again each time; writing it once is cheaper.",
        _MUST,
    ),
    Reason(
        "F016",
        "lost-parallelism",
        "independent tasks that would be left for {threads} threads: only {tasks}",
        "The axes that the two operators share are too short to keep every thread busy, while "
        "apart at least one of them spreads over all threads.",
        _MUST,
    ),
    Reason(
        "F017",
        "fast-memory",
        "a row takes {bytes:,} bytes, {capacity:,} fit in fast memory",
        "Sweeping a row several times in one kernel pays if the row stays in the first or second "
        "level of cache. This one does not, and the cascade cannot be streamed.",
        _MUST,
    ),
    Reason(
        "F018",
        "extra-memory",
        "{bytes:,} bytes of scratch would be needed, {limit:,} are allowed",
        "The fused kernel needs memory of its own beyond `SMELT_MAX_EXTRA_MEMORY`.",
        "Raise `max_extra_memory`.",
    ),
    Reason(
        "F020",
        "other-target",
        "{op} has no spelling for {target}",
        "The code generator of this target lacks the operator or the type, so that it runs by "
        "another way in a kernel of its own.",
        _LEGAL,
    ),
    Reason(
        "F021",
        "data-dependent-shape",
        "the size of {value} is known only after it has been computed",
        "What follows is planned when the size is known.",
        _LEGAL,
    ),
    Reason(
        "F022",
        "fuse-off",
        "fusion is switched off",
        "`SMELT_FUSE=off` gives every operator a kernel of its own, to compare or to find a bug.",
        "Unset `SMELT_FUSE`.",
    ),
    Reason(
        "F023",
        "index-depends-on-data",
        "each row of {value} would be computed {times:.1f} times, once for each use by index",
        "The consumer reads the producer through an array of indices. Fused, every use of a row "
        "computes that row again.",
        _MUST,
    ),
    Reason(
        "F024",
        "no-shared-data",
        "they share little or no data, so there is no traffic to save",
        "Neither reads what the other writes, and what they read in common is less than half of "
        "what either reads. One launch is all that could be saved, and it is cheaper than the lost "
        "parallelism.",
        _MUST,
    ),
    Reason(
        "F025",
        "not-in-rounds",
        "{value} is stored whole, {bytes:,} bytes, and not made for some rows at a time: {how}",
        "Values that no cache holds are made for a block of rows at a time where rows do not wait "
        "for one another but for sums over them, or for sums that can be made before. These do, "
        "cannot be cut, or would take too long for what they keep less.",
        "Sums, products and largest elements over rows may stand behind such a value; what mixes "
        "rows otherwise may not. With `max_extra_memory` time is no reason.",
    ),
    Reason(
        "F026",
        "written-over",
        "{value} is written over {old}, which is not read any more: a round of as many bytes takes "
        "more rows",
        "Rounds over rows read what is no row of theirs again in every round, so that fewer rounds "
        "are faster. A kernel that maps a large value alone writes its result in the same place; "
        "one that folds it as well needs a place of its own, and leaves room for half of the rows.",
        _MUST,
    ),
    Reason(
        "F027",
        "read-elsewhere",
        "the consumer reads the product over {axis} otherwise than element by element: a part of "
        "it, several places for one of its own, or in another order",
        "A product is computed once for each element of its result, by the kernel whose axes these "
        "are. What reads a slice, windows or pairs of its elements, or interleaves several, would "
        "compute some again and skip what others need. Slices of one value that are results as "
        "they are, two or more, are stored where it is computed.",
        "No setting helps; a product with a part of the weight, in place of a part of the product, "
        "is read element by element. " + _LEGAL,
    ),
)

_ACCEPTED = (
    Reason(
        "F101",
        "saves-traffic",
        "{value} is not written and read again: {bytes:,} bytes less",
        "The intermediate value stays in registers or in fast memory.",
        _NEVER,
    ),
    Reason(
        "F102",
        "saves-launch",
        "one kernel starts instead of two",
        "The arrays are so small that starting a kernel costs more than its work.",
        _NEVER,
    ),
    Reason(
        "F103",
        "free-view",
        "{op} only renames indices",
        "Reshapes, permutations, slices, expansions and flips are index maps of whoever reads "
        "them; they never become kernels.",
        "A view becomes a kernel only if it is a result: copy it with `sm.asarray(x, copy=True)`.",
    ),
    Reason(
        "F104",
        "recompute-cheap",
        "computing {value} {times:.1f} times takes {cost_ns:,.0f} ns, storing {store_ns:,.0f} ns",
        "A cheap producer is repeated inside each of its consumers, so that it is never stored.",
        _NEVER,
    ),
    Reason(
        "F105",
        "sibling",
        "both read {value}: {bytes:,} bytes less",
        "Neither reads the other, but they read the same array over the same axes, once.",
        _NEVER,
    ),
    Reason(
        "F106",
        "multi-output",
        "{value} is needed outside and also used here: {bytes:,} bytes are not read again",
        "The value is written for its other reader, and used from registers in this kernel.",
        _NEVER,
    ),
    Reason(
        "F107",
        "must-fuse",
        "the setting must_fuse asks for it",
        "`SMELT_MUST_FUSE`, `sm.config(must_fuse=...)` or an option named this pair, legally.",
        "Remove the pair from the setting.",
    ),
    Reason(
        "F108",
        "row-in-fast-memory",
        "a row of {bytes:,} bytes stays in {level} and is swept {sweeps} times",
        "A reduction and what follows it share a kernel: the row is read from memory once.",
        _NEVER,
    ),
    Reason(
        "F109",
        "prologue",
        "{value} is computed while {op} reads it",
        "Fuse-on-read: an operator in front of a contraction is applied while its panel is packed.",
        _NEVER,
    ),
    Reason(
        "F110",
        "epilogue",
        "{value} is computed before the result of {op} leaves fast memory",
        "Fuse-on-write: an operator behind a contraction works on the tile that was just finished.",
        _NEVER,
    ),
    Reason(
        "F111",
        "cascade",
        "{value} is used up block by block along {axis}, as its rows are made",
        "A chain of reductions over one axis runs in one pass: earlier partial results are "
        "transported to the newest reference.",
        _NEVER,
    ),
    Reason(
        "F113",
        "carried",
        "{value} is carried block by block along {axis} while {gauge} still changes: {how}",
        "A fold that reads another one over the same axis does not wait for it. What is the same "
        "for every element leaves the fold; a sum of exponentials is rescaled when its maximum "
        "grows; powers of differences are taken from a fixed element and shifted at the end; a "
        "monotone function is applied to the largest element alone.",
        _NEVER,
    ),
    Reason(
        "F114",
        "visited-again",
        "{value} needs the last {gauge} first, so {axis} is visited again: blocks summed before "
        "cannot be corrected through {how}",
        "Where no correction of the earlier blocks is known, the elements are computed once more "
        "in a second sweep of the same kernel, and nothing of the row is kept. Exponentials and "
        "powers of differences, quotients and products can be corrected; a logarithm of a softmax "
        "can where it is written as `log_softmax`. Rounding and most functions cannot.",
        _NEVER,
    ),
    Reason(
        "F115",
        "rounds",
        "{value} is made for {rows} of {extent} rows at a time in {rounds} rounds: {bytes:,} "
        "bytes are never stored, {again:,} bytes are moved again",
        "The operators around values that no cache holds run for a block of rows after the other; "
        "what is summed over rows is added to; sums over all rows that a block reads are made "
        "before. It is done for the memory.",
        "`SMELT_FUSE=off` keeps every value.",
    ),
    Reason(
        "F112",
        "measured",
        "the fused kernel took {fused_ns:,.0f} ns, the separate ones {split_ns:,.0f} ns",
        "Both candidates were compiled and raced on this machine.",
        _NEVER,
    ),
)

REASONS: Mapping[str, Reason] = {row.name: row for row in (*_REFUSALS, *_ACCEPTED)}
_BY_CODE: Mapping[str, Reason] = {row.code: row for row in REASONS.values()}


def reason(name: str) -> Reason:
    """Return the reason with a name (`cost`) or a code (`F010`); raise `UnknownNameError`."""
    row = REASONS.get(name) or _BY_CODE.get(name.upper())
    if row is None:
        close = nearest(name, [*REASONS, *_BY_CODE])
        suggestion = f"; did you mean {close}?" if close else "; `smelt errors` lists them"
        raise UnknownNameError(kind="reason", name=name, suggestion=suggestion)
    return row
