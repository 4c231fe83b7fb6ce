"""Place the values between clusters in one arena, with offsets valid for all sizes.

1. A value lives from the launch that writes it to the last launch that reads it.
2. A flat kernel may write a result over an input that is not read later and is read at the same
   positions. In this way a result of the graph may take over the memory of an input that the caller
   donated.
3. Results have buffers of their own, idle until they are written. Values that are dead by then live
   in a result's buffer, if they fit there at all sizes.
4. Buffers are packed by size at the hints' sizes: largest first, into the lowest gap that fits.
5. Only the order of that packing is kept: of two buffers that live at the same time, one is below
   the other. The offset of a buffer is the largest end of those below it, as an expression: a
   maximum of sums of sizes. At other sizes the packing is less tight, but never wrong.

Sums are polynomials in the sizes, which are never negative. A sum is never smaller than another if
each of its coefficients (absent ones are 0) is at least the other's.

>>> n = size("n")
>>> upper_bounds(
...     [round_to_line(n * 256), round_to_line(n * 128), round_to_line(n * 100)], {"n": 10}
... )
[n*256, ((n*100 + 63)//64)*64]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache

from smelt.fusion.bitsets import at_hints
from smelt.fusion.plan import NOTHING, Cluster, Donated, Plan, Slot
from smelt.graph.ir import Graph, Node
from smelt.graph.text import name_values
from smelt.journal.facts import BufferPlanned
from smelt.kernel.offsets import pack
from smelt.python.dataclass import dataclass
from smelt.types.expr import (
    Atom,
    Expr,
    Index,
    Monomial,
    add,
    floordiv,
    maximum,
    mul,
    size,
    terms_of,
)

__all__ = ["assign", "round_to_line", "size", "upper_bounds"]

CACHE_LINE_BYTES = 64
"""Bytes of a cache line: buffers start at multiples of it."""
MAX_SUMS = 8
"""Maximum sums of which one offset is the maximum.

If there are more, two are replaced by a common upper bound.
"""

Reuses = Mapping[Node, Sequence[Node]]
"""For a result, the inputs of its cluster whose memory it may take over."""


def round_to_line(nbytes: Index) -> Index:
    """Round bytes up to full cache lines.

    >>> n, m = size("n"), size("m")
    >>> round_to_line(n * m * 4), round_to_line(n * 64), round_to_line(n * m * 64 + n * 4)
    (((m*n*4 + 63)//64)*64, n*64, m*n*64 + ((n*4 + 63)//64)*64)
    """
    if isinstance(nbytes, int):
        return -(-nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
    aligned: list[tuple[Monomial, int]] = []
    unaligned: list[tuple[Monomial, int]] = []
    for m, c in nbytes.terms:
        if not m or any(atom.kind != "size" for atom in m) or c <= 0:
            lines = floordiv(add(nbytes, CACHE_LINE_BYTES - 1), CACHE_LINE_BYTES)
            # terms may be negative, and sums are compared term by term: keep it as one term
            return mul(
                lines if _is_sum_of_nonnegatives(nbytes) else maximum(0, lines), CACHE_LINE_BYTES
            )
        (unaligned if c % CACHE_LINE_BYTES else aligned).append((m, c))
    if not unaligned:
        return nbytes
    # known to be irreducible
    lines = Atom("//", args=(add(Expr(tuple(unaligned)), CACHE_LINE_BYTES - 1), CACHE_LINE_BYTES))
    return add(Expr(tuple(aligned)) if aligned else 0, Expr((((lines,), CACHE_LINE_BYTES),)))


def _is_sum_of_nonnegatives(e: Index) -> bool:
    """Return whether no term of an expression over sizes is ever negative.

    >>> n, m = size("n"), size("m")
    >>> _is_sum_of_nonnegatives(n * floordiv(m + 15, 16) + 4)
    True
    >>> _is_sum_of_nonnegatives(n * 64 - m)
    False
    >>> _is_sum_of_nonnegatives(n + floordiv(n * -1, 2))
    False
    """
    if isinstance(e, int):
        return e >= 0
    return all(c >= 0 and all(map(_is_never_negative, m)) for m, c in e.terms)


def _is_never_negative(atom: Atom) -> bool:
    if atom.kind == "max":
        return any(map(_is_sum_of_nonnegatives, atom.args))
    return atom.kind == "size" or (
        atom.kind == "//" and all(map(_is_sum_of_nonnegatives, atom.args))
    )


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory of one value, or of several one after another."""

    nodes: list[Node]
    nbytes: Index
    hint: int
    first: int
    last: int
    at: int = -1
    """Offset at the hints' sizes."""
    below: list[Buffer] = field(default_factory=list["Buffer"])
    """Buffers that must be below it: enough of them to imply the others."""
    sums: list[Index] = field(default_factory=list[Index])
    """Its offset is the largest of these."""
    within: Node | None = None
    """The result in whose memory it is; None: the arena."""
    filled: Index = 0
    """Bytes that are written; the rest pads to the next buffer."""

    def overlaps_in_time(self, other: Buffer) -> bool:
        """Return whether both live at some time."""
        return self.first <= other.last and other.first <= self.last


def assign(
    graph: Graph,
    clusters: Sequence[Cluster],
    launches: Sequence[Sequence[int]],
    hints: Mapping[str, int],
    reuses: Reuses,
    donated: Donated = NOTHING,
) -> tuple[Slot, ...]:
    """Return a slot for each value that a cluster writes, in order of writing.

    Inputs in `donated` may be overwritten after their last read.
    """
    when = {k: step for step, group in enumerate(launches) for k in group}
    last_reader: dict[Node, int] = {}
    for k, cluster in enumerate(clusters):
        for node in cluster.inputs:
            last_reader[node] = max(last_reader.get(node, 0), k)
    results = set(graph.outputs)
    buffer_of: dict[Node, Buffer] = {}
    overwritten: dict[Node, Node] = {}
    available = {x for x in donated if x not in results}
    for k, cluster in enumerate(clusters):
        for node in cluster.outputs:
            if node in results:
                for donated_input in reuses.get(node, ()):
                    is_allowed = donated_input in available and donated[donated_input] in (
                        None,
                        node,
                    )
                    if is_allowed and _read_last(
                        donated_input, cluster, k, last_reader, when, clusters
                    ):
                        available.remove(donated_input)
                        overwritten[node] = donated_input
                        break
                continue
            last_step = when[last_reader.get(node, k)]
            reused = _overwritable_input(
                node, cluster, k, buffer_of, reuses, last_reader, when, clusters
            )
            if reused is not None:
                buffer = buffer_of[node] = buffer_of[reused]
                buffer.nodes.append(node)
                buffer.last = last_step
                overwritten[node] = reused
                continue
            filled = node.type.nbytes
            nbytes = round_to_line(filled)
            buffer_of[node] = Buffer(
                [node], nbytes, at_hints(nbytes, hints), when[k], last_step, filled=filled
            )
    result_times = {
        n: when[k]
        for k, c in enumerate(clusters)
        for n in c.outputs
        if n in results and n not in overwritten
    }
    _pack_buffers(
        _place_in_results(list(dict.fromkeys(buffer_of.values())), result_times, hints), hints
    )
    slots: list[Slot] = []
    for k, cluster in enumerate(clusters):
        for node in cluster.outputs:
            buffer = buffer_of.get(node)
            final = len(clusters) - 1 if node in results else last_reader.get(node, k)
            offset = None if buffer is None else _maximum(buffer.sums)
            within = None if buffer is None else buffer.within
            slots.append(
                Slot(node, node.type.nbytes, offset, k, final, overwritten.get(node), within)
            )
    return tuple(slots)


def _place_in_results(
    buffers: list[Buffer], results: Mapping[Node, int], hints: Mapping[str, int]
) -> list[Buffer]:
    """Place buffers whose lifetime ends before a result is written in that result's memory.

    `results` maps results to the times at which they are written. Returns the buffers that still
    need arena space.
    """
    for host in sorted(results, key=lambda n: -at_hints(n.type.nbytes, hints)):
        available = host.type.nbytes
        guests = [b for b in buffers if b.last < results[host] and _covers(available, b.filled)]
        while guests:
            _pack_buffers(guests, hints)
            fitting = [
                b
                for b in guests
                if all(_covers(available, _at_most(add(s, b.filled))) for s in b.sums)
            ]
            if len(fitting) == len(guests):
                break
            guests = fitting
        for b in guests:
            b.within = host
        buffers = [b for b in buffers if b.within is None]
    return buffers


def _overwritable_input(
    node: Node,
    cluster: Cluster,
    k: int,
    buffer_of: Mapping[Node, Buffer],
    reuses: Reuses,
    last: Mapping[Node, int],
    when: Mapping[int, int],
    clusters: Sequence[Cluster],
) -> Node | None:
    """Return an input, not read later, whose memory a result may take over."""
    for candidate in reuses.get(node, ()):
        buffer = buffer_of.get(candidate)
        if buffer is None or buffer.nodes[-1] is not candidate or buffer.last != when[k]:
            continue
        if _read_last(candidate, cluster, k, last, when, clusters):
            return candidate
    return None


def _read_last(
    node: Node,
    cluster: Cluster,
    k: int,
    last: Mapping[Node, int],
    when: Mapping[int, int],
    clusters: Sequence[Cluster],
) -> bool:
    """Return whether cluster `k` alone reads a value last.

    No later cluster reads it, and no concurrent one.
    """
    concurrent = (c for j, c in enumerate(clusters) if when[j] == when[k] and c is not cluster)
    return last[node] == k and not any(node in c.inputs for c in concurrent)


def facts(plan: Plan, hints: Mapping[str, int]) -> list[BufferPlanned]:
    """Return where every written value lives at the sizes of the first call.

    Times count launches.
    """
    names = name_values(plan.graph)
    when = {k: step for step, group in enumerate(plan.launches) for k in group}
    planned: list[BufferPlanned] = []
    for slot in plan.slots:
        location = "output" if slot.offset is None else "arena"
        location = location if slot.within is None else names[slot.within]
        offset = 0 if slot.offset is None else at_hints(slot.offset, hints)
        reuses = "" if slot.reuses is None else names[slot.reuses]
        nbytes = at_hints(slot.nbytes, hints)
        first, last = when[slot.first], when[slot.last]
        planned.append(
            BufferPlanned(names[slot.node], nbytes, offset, first, last, location, reuses)
        )
    return planned


# ---- packing at the hints ----------------------------------------------------------------------


def _pack_buffers(buffers: list[Buffer], hints: Mapping[str, int]) -> None:
    """Pack buffers, record which are on top of which, and derive their offsets."""
    pack(buffers)
    by_offset = sorted(buffers, key=lambda b: (b.at, b.first))
    for k, b in enumerate(by_offset):
        lower = [c for c in by_offset[:k] if b.overlaps_in_time(c)]
        covered = {id(d) for c in lower for d in c.below}
        b.below = [c for c in lower if id(c) not in covered]
        ends = [add(s, c.nbytes) for c in b.below for s in c.sums]
        b.sums = upper_bounds(ends, hints) if ends else [0]


# ---- offsets -----------------------------------------------------------------------------------


def upper_bounds(sums: Iterable[Index], hints: Mapping[str, int]) -> list[Index]:
    """Return few sums of which one is at least as large as each given sum.

    This holds for all sizes. The largest at the hints comes first. Exact as long as there are few
    sums to begin with.
    """
    ranked = sorted(dict.fromkeys(sums), key=lambda e: (-at_hints(e, hints), str(e)))
    bounds: list[Index] = []
    for e in ranked:
        if not any(_covers(k, e) for k in bounds):
            bounds = [k for k in bounds if not _covers(e, k)] + [e]
    while len(bounds) > MAX_SUMS:
        a, b = bounds.pop(), bounds.pop()  # the smallest at the hints
        bounds.append(_common_bound(a, b))
        bounds.sort(key=lambda e: (-at_hints(e, hints), str(e)))
    return bounds


@lru_cache(maxsize=1 << 12)
def _covers(a: Index, b: Index) -> bool:
    """Return whether a >= b can be seen term by term.

    `a` may subtract terms that `b` has not.

    >>> n, m = size("n"), size("m")
    >>> _covers(n * m, n * m - n), _covers(n * m - n, n * m)
    (True, False)
    """
    left, right = dict(terms_of(a)), dict(terms_of(b))
    differences = {m: left.get(m, 0) - right.get(m, 0) for m in left.keys() | right.keys()}
    return all(
        c == 0 or (c > 0 and all(map(_is_never_negative, m))) for m, c in differences.items()
    )


def _at_most(e: Index) -> Index:
    """Return an upper bound of a sum, rounding cache lines term by term.

    >>> n = size("n")
    >>> _at_most(round_to_line(n * 68) + n * 256)
    n*384
    """
    total: Index = 0
    for m, c in terms_of(e):
        line_count = m[0] if len(m) == 1 and m[0].kind == "//" else None
        bytes_terms = dict(terms_of(line_count.args[0])) if line_count is not None else {}
        constant = bytes_terms.pop((), 0)
        is_sum = all(k > 0 and all(a.kind == "size" for a in n) for n, k in bytes_terms.items())
        if (
            line_count is not None
            and line_count.args[1] == CACHE_LINE_BYTES
            and constant == CACHE_LINE_BYTES - 1
            and is_sum
            and c > 0
        ):
            for n, k in bytes_terms.items():
                total = add(total, Expr(((n, -(-k // CACHE_LINE_BYTES) * c),)))
        else:
            total = add(total, Expr(((m, c),)) if m else c)
    return total


def _common_bound(a: Index, b: Index) -> Index:
    """Return a sum that is at least as large as both.

    >>> n, m = size("n"), size("m")
    >>> _common_bound(n * m - n, m * 4)
    m*4 + m*n
    """
    left, right = dict(terms_of(a)), dict(terms_of(b))
    total: Index = 0
    for m in left | right:
        c = max(left.get(m, 0), right.get(m, 0))
        if c:
            total = add(total, Expr(((m, c),)) if m else c)
    return total


def _maximum(sums: Sequence[Index]) -> Index:
    result = sums[0]
    for e in sums[1:]:
        result = _larger(result, e)
    return result


_larger = lru_cache(maxsize=1024)(maximum)
