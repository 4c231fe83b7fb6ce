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

from smelt.errors.array import UnknownNameError
from smelt.errors.tree import nearest
from smelt.python.dataclass import dataclass


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
        "{between} is on another path between them: the fused kernel would depend on itself",
        "The two operators are connected by a second path through an operator outside the kernel. "
        "A kernel that contained both would need its own result as an input. Clusters are merged "
        "only if the graph of clusters stays acyclic.",
        "No setting helps; fuse the operators on the other path as well, or compute them from "
        "something else. " + _LEGAL,
    ),
    Reason(
        "F002",
        "different-axes",
        "they run over different axes: one kernel would have no common positions to visit",
        "A kernel runs over one set of named axes. Elementwise use and broadcasting unify "
        "dimensions, reshapes split and join them; the axes of these two operators still differ, "
        "so that no loop nest can visit the elements of both together.",
        _LEGAL,
    ),
    Reason(
        "F003",
        "reduction-crossing",
        "the consumer needs the complete reduction over {axis} before its first element",
        "The producer reduces an axis that the consumer iterates over again, so the reduction must "
        "finish first. If a row fits in cache, one kernel makes several passes over it; if partial "
        "results can be rescaled, the axis is streamed (as in online softmax); neither was "
        "possible here.",
        "No setting helps; a consumer that reads the totals of its own row fuses "
        "(`keepdims=True`), one that reads those of other rows has to wait. " + _LEGAL,
    ),
    Reason(
        "F004",
        "extern-barrier",
        "{op} runs outside the compiler",
        "Sorting, linear algebra and other library calls run outside of kernels. Their inputs and "
        "outputs are arrays in memory, so nothing fuses across them.",
        "No setting helps; each side of the call fuses by itself. Move operators that do not need "
        "its result to one side of it. " + _LEGAL,
    ),
    Reason(
        "F005",
        "scatter-root",
        "{op} writes to data-dependent indices, so it ends its kernel, which contains only "
        "elementwise operators before it",
        "A scatter may write one element several times, in an order that matters. Elementwise "
        "operators can be fused into its operands, but nothing can be fused after its writes.",
        "No setting helps; a sum over a comparison of indices (`where(index == indices, x, 0)`) "
        "fuses with its readers, and pays off for few indices. " + _LEGAL,
    ),
    Reason(
        "F006",
        "never-fuse",
        "the setting never_fuse forbids it",
        "`SMELT_NEVER_FUSE`, `sm.config(never_fuse=...)` or an option named this pair.",
        "Remove the pair from the setting.",
    ),
    Reason(
        "F009",
        "rounding-barrier",
        "a row takes {bytes:,} bytes, {capacity:,} fit in fast memory, and rounding='{rounding}' "
        "streams no axis",
        "With `rounding='exact'` every sum keeps the order that it has in a kernel of its own. "
        "Streaming an axis sums its blocks first, and skips those that a mask excludes.",
        "`sm.config(rounding='eager')` allows it.",
    ),
    Reason(
        "F010",
        "cost",
        "the fused kernel is predicted to be {slower_ns:,.0f} ns slower",
        "The predicted time of the fused kernel exceeds the sum of the separate kernels, their "
        "traffic and their launches. The decision lists both times, term by term.",
        _MUST,
    ),
    Reason(
        "F013",
        "too-many-operands",
        "the kernel would read and write {operands} arrays, {limit} is the limit",
        "Each array is a stream for the hardware prefetchers and an address in a register. Beyond "
        "the limit a kernel gets slower with every array.",
        _MUST,
    ),
    Reason(
        "F014",
        "code-size",
        "the kernel would grow to {size} operations, {limit} is the limit",
        "Compile time grows with a kernel's size; code that exceeds the instruction cache is slow.",
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
        "independent tasks that would be left for {threads} cores: only {tasks}",
        "The axes that the two operators share are too short to keep every core busy (of a GPU, "
        "every multiprocessor), while at least one of them does in a kernel of its own.",
        _MUST,
    ),
    Reason(
        "F017",
        "fast-memory",
        "a row takes {bytes:,} bytes, {capacity:,} fit in fast memory",
        "Several passes over a row in one kernel pay off if the row stays in L1 or L2. This one "
        "does not, and the chain of reductions cannot be streamed.",
        _MUST,
    ),
    Reason(
        "F022",
        "fuse-off",
        "fusion is switched off",
        "`SMELT_FUSE=off` gives every operator a kernel of its own, to compare or to find a bug.",
        "Unset `SMELT_FUSE`.",
    ),
    Reason(
        "F024",
        "no-shared-data",
        "they share {shared}, so there is little or no traffic to save",
        "Neither reads what the other writes, and what they read in common is less than half of "
        "what either reads. One launch is all that could be saved, and it is cheaper than the lost "
        "parallelism.",
        _MUST,
    ),
    Reason(
        "F025",
        "not-in-rounds",
        "{value} is stored completely, {bytes:,} bytes, and not computed in row chunks: {how}",
        "Values that exceed every cache are computed for a chunk of rows at a time if rows depend "
        "on each other only through sums over rows, which are accumulated, or through sums that "
        "can be computed first. This value has other dependences, cannot be chunked, or would take "
        "too long for the memory that is saved.",
        "Sums, products and maxima over rows may follow such a value; other operators that mix "
        "rows may not. With `max_extra_memory` time does not count.",
    ),
    Reason(
        "F026",
        "written-over",
        "{value} is written over {old}, which is not read any more: a round of as many bytes takes "
        "more rows",
        "Every chunk of rows reads the operands without rows again, so that fewer chunks are "
        "faster. A kernel that only maps a large value writes its result in place; one that also "
        "reduces it needs memory for the result, and half of the rows fit in a chunk.",
        _MUST,
    ),
    Reason(
        "F027",
        "read-elsewhere",
        "the consumer does not read the product over {axis} element by element, but a part of it, "
        "several elements per result, or in another order",
        "A matrix product is computed once for each element of its result, by a kernel with the "
        "result's axes. A consumer of a slice, of windows or of pairs of elements would recompute "
        "some elements and skip others. If two or more slices of a product are results themselves, "
        "they are stored by the kernel that computes it.",
        "No setting helps; multiply by a slice of the weight instead of slicing the product, and "
        "its consumer reads it element by element. " + _LEGAL,
    ),
    Reason(
        "F028",
        "sum-order",
        "{op} rounds in an order that depends on its kernel, and rounding='exact' keeps its own",
        "The order of additions in a sum or product, and so their rounding, depends on what else "
        "its kernel reads and computes. With `rounding='exact'` it is a kernel of its own.",
        "`sm.config(rounding='eager')` allows it.",
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
        "The arrays are so small that launching a kernel costs more than its work.",
        _NEVER,
    ),
    Reason(
        "F103",
        "free-view",
        "{op} only renames indices",
        "Reshapes, permutations, slices, expansions and flips become index maps of their readers; "
        "they never become kernels.",
        "A view becomes a kernel only if it is a result: copy it with `sm.asarray(x, copy=True)`.",
    ),
    Reason(
        "F104",
        "recompute-cheap",
        "computing {value} {times:.1f} times takes {cost_ns:,.0f} ns, storing {store_ns:,.0f} ns",
        "A cheap producer is recomputed inside each of its consumers, and never stored.",
        _NEVER,
    ),
    Reason(
        "F105",
        "sibling",
        "both read {value}: {bytes:,} bytes less",
        "Neither reads the other, but they read the same array over the same axes.",
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
        "F111",
        "cascade",
        "{value} is used up block by block along {axis}, as its rows are made",
        "A chain of reductions over one axis runs in one pass: earlier partial results are "
        "rescaled to the newest reference, as in online softmax.",
        _NEVER,
    ),
    Reason(
        "F113",
        "carried",
        "{value} is carried block by block along {axis} while {gauge} still changes: {how}",
        "A reduction that reads another one over the same axis does not wait for it. Factors that "
        "are equal for all elements leave the reduction; a sum of exponentials is rescaled when "
        "its maximum grows; powers of differences are taken from a fixed element and shifted at "
        "the end; a monotone function is applied to the maximum only.",
        _NEVER,
    ),
    Reason(
        "F114",
        "visited-again",
        "{value} needs the last {gauge} first, so {axis} is visited again: blocks summed before "
        "cannot be corrected through {how}",
        "If the partial results of earlier blocks cannot be rescaled, the same kernel computes the "
        "elements again in a second pass, and stores nothing of the row. Exponentials and powers "
        "of differences, quotients and products can be rescaled; a logarithm of a softmax can if "
        "it is written as `log_softmax`. Rounding and most functions cannot.",
        _NEVER,
    ),
    Reason(
        "F115",
        "rounds",
        "{value} is computed for {rows} of {extent} rows at a time in {rounds} chunks: {bytes:,} "
        "bytes are never stored, {again:,} bytes are moved again",
        "The operators around values that exceed every cache run for one chunk of rows after the "
        "other; sums over rows are accumulated; sums over all rows that a chunk reads are computed "
        "first. It saves memory.",
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
