"""Where values between clusters live: one arena, with offsets that are right for all sizes.

1. A value lives from the launch that writes it to the last launch that reads it.
2. A flat kernel may write a result over an input that dies there and is read at the same positions;
   a result of the graph may so take the place of an input that the caller has given away.
3. What dies before a large result is written lives in that result's memory, if it fits there at
   all sizes: results have blocks of their own, which would lie idle until then.
4. Buffers are packed by size at the hints' sizes: largest first, into the lowest gap that fits.
5. Only the order of that packing is kept: of two buffers that live at the same time, one stands
   below the other.  The offset of a buffer is the largest end of those below it, as an expression:
   a maximum of sums of sizes.  At other sizes the packing is less tight, but never wrong.

Sums are polynomials in the sizes, which are never negative: a sum whose coefficients are
all at least another's, absent ones being 0, is never smaller.

>>> n = size("n")
>>> ceiling([rounded(n * 256), rounded(n * 128), rounded(n * 100)], {"n": 10})
[n*256, ((n*100 + 63)//64)*64]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache

from smelt.dataclass import dataclass
from smelt.fusion.bitsets import at_hints
from smelt.fusion.plan import NOTHING, Cluster, Donated, Plan, Slot
from smelt.graph.ir import Graph, Node
from smelt.graph.text import name_values
from smelt.journal import BufferPlanned
from smelt.offsets import pack
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

__all__ = ["assign", "ceiling", "rounded", "size"]

LINE = 64
"""Bytes of a cache line: buffers start at multiples of it."""
MOST_SUMS = 8
"""Sums that one offset is the maximum of; beyond, two are replaced by a common upper bound."""

Reuses = Mapping[Node, Sequence[Node]]
"""For a result, the inputs of its cluster whose memory it may take over."""


def rounded(nbytes: Index) -> Index:
    """Bytes rounded up to whole cache lines.

    >>> n, m = size("n"), size("m")
    >>> rounded(n * m * 4), rounded(n * 64), rounded(n * m * 64 + n * 4)
    (((m*n*4 + 63)//64)*64, n*64, m*n*64 + ((n*4 + 63)//64)*64)
    """
    if isinstance(nbytes, int):
        return -(-nbytes // LINE) * LINE
    whole: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for m, c in nbytes.terms:
        if not m or any(atom.kind != "size" for atom in m) or c <= 0:
            lines = floordiv(add(nbytes, LINE - 1), LINE)
            # parts may be negative, and sums are compared part by part: as one that never is
            return mul(lines if _adds(nbytes) else maximum(0, lines), LINE)
        (rest if c % LINE else whole).append((m, c))
    if not rest:
        return nbytes
    lines = Atom("//", args=(add(Expr(tuple(rest)), LINE - 1), LINE))  # nothing to simplify here
    return add(Expr(tuple(whole)) if whole else 0, Expr((((lines,), LINE),)))


def _adds(e: Index) -> bool:
    """Whether no part of an expression over sizes is ever negative.

    >>> n, m = size("n"), size("m")
    >>> _adds(n * floordiv(m + 15, 16) + 4), _adds(n * 64 - m), _adds(n + floordiv(n * -1, 2))
    (True, False, False)
    """
    if isinstance(e, int):
        return e >= 0
    return all(c >= 0 and all(map(_is_never_negative, m)) for m, c in e.terms)


def _is_never_negative(atom: Atom) -> bool:
    if atom.kind == "max":
        return any(map(_adds, atom.args))
    return atom.kind == "size" or (atom.kind == "//" and all(map(_adds, atom.args)))


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory of one value, or of several one after the other."""

    nodes: list[Node]
    nbytes: Index
    hint: int
    first: int
    last: int
    at: int = -1
    """Offset at the hints' sizes."""
    below: list[Buffer] = field(default_factory=list["Buffer"])
    """Those that it must stand above: enough of them to imply the others."""
    sums: list[Index] = field(default_factory=list[Index])
    """Its offset is the largest of these."""
    within: Node | None = None
    """The result in whose memory it stands; None: the arena."""
    filled: Index = 0
    """Bytes of it that are written; the rest lies before the next one."""

    def meets(self, other: Buffer) -> bool:
        """Whether both live at some time."""
        return self.first <= other.last and other.first <= self.last


def assign(
    graph: Graph,
    clusters: Sequence[Cluster],
    launches: Sequence[Sequence[int]],
    hints: Mapping[str, int],
    reuses: Reuses,
    donated: Donated = NOTHING,
) -> tuple[Slot, ...]:
    """A slot for each value that a cluster writes, in order of writing.  Inputs in `donated` may
    be overwritten once nobody reads them any more."""
    when = {k: step for step, group in enumerate(launches) for k in group}
    last: dict[Node, int] = {}
    for k, cluster in enumerate(clusters):
        for node in cluster.inputs:
            last[node] = max(last.get(node, 0), k)
    results = set(graph.outputs)
    home: dict[Node, Buffer] = {}
    taken: dict[Node, Node] = {}
    free = {x for x in donated if x not in results}
    for k, cluster in enumerate(clusters):
        for node in cluster.outputs:
            if node in results:
                for given in reuses.get(node, ()):
                    wanted = given in free and donated[given] in (None, node)
                    if wanted and _read_last(given, cluster, k, last, when, clusters):
                        free.remove(given)
                        taken[node] = given
                        break
                continue
            end = when[last.get(node, k)]
            old = _dying(node, cluster, k, home, reuses, last, when, clusters)
            if old is not None:
                buffer = home[node] = home[old]
                buffer.nodes.append(node)
                buffer.last = end
                taken[node] = old
                continue
            filled = node.type.nbytes
            nbytes = rounded(filled)
            home[node] = Buffer(
                [node], nbytes, at_hints(nbytes, hints), when[k], end, filled=filled
            )
    own = {
        n: when[k]
        for k, c in enumerate(clusters)
        for n in c.outputs
        if n in results and n not in taken
    }
    _place(_guests(list(dict.fromkeys(home.values())), own, hints), hints)
    slots: list[Slot] = []
    for k, cluster in enumerate(clusters):
        for node in cluster.outputs:
            buffer = home.get(node)
            final = len(clusters) - 1 if node in results else last.get(node, k)
            offset = None if buffer is None else _largest(buffer.sums)
            within = None if buffer is None else buffer.within
            slots.append(Slot(node, node.type.nbytes, offset, k, final, taken.get(node), within))
    return tuple(slots)


def _guests(
    buffers: list[Buffer], results: Mapping[Node, int], hints: Mapping[str, int]
) -> list[Buffer]:
    """Finds places in `results`, told with the times at which they are written, for buffers that
    are dead by then; gives those that are left, which need the arena."""
    for host in sorted(results, key=lambda n: -at_hints(n.type.nbytes, hints)):
        room = host.type.nbytes
        guests = [b for b in buffers if b.last < results[host] and _covers(room, b.filled)]
        while guests:
            _place(guests, hints)
            fits = [
                b for b in guests if all(_covers(room, _at_most(add(s, b.filled))) for s in b.sums)
            ]
            if len(fits) == len(guests):
                break
            guests = fits
        for b in guests:
            b.within = host
        buffers = [b for b in buffers if b.within is None]
    return buffers


def _dying(
    node: Node,
    cluster: Cluster,
    k: int,
    home: Mapping[Node, Buffer],
    reuses: Reuses,
    last: Mapping[Node, int],
    when: Mapping[int, int],
    clusters: Sequence[Cluster],
) -> Node | None:
    """An input of a cluster whose memory a result may take over: nobody else needs it any more."""
    for old in reuses.get(node, ()):
        buffer = home.get(old)
        if buffer is None or buffer.nodes[-1] is not old or buffer.last != when[k]:
            continue
        if _read_last(old, cluster, k, last, when, clusters):
            return old
    return None


def _read_last(
    node: Node,
    cluster: Cluster,
    k: int,
    last: Mapping[Node, int],
    when: Mapping[int, int],
    clusters: Sequence[Cluster],
) -> bool:
    """Whether cluster `k` is the last to read a value, and no other reads it at that time."""
    together = (c for j, c in enumerate(clusters) if when[j] == when[k] and c is not cluster)
    return last[node] == k and not any(node in c.inputs for c in together)


def facts(plan: Plan, hints: Mapping[str, int]) -> list[BufferPlanned]:
    """Where every written value lives at the sizes of the first call; times count launches."""
    names = name_values(plan.graph)
    when = {k: step for step, group in enumerate(plan.launches) for k in group}
    found: list[BufferPlanned] = []
    for slot in plan.slots:
        place = "output" if slot.offset is None else "arena"
        place = place if slot.within is None else names[slot.within]
        offset = 0 if slot.offset is None else at_hints(slot.offset, hints)
        reuses = "" if slot.reuses is None else names[slot.reuses]
        nbytes = at_hints(slot.nbytes, hints)
        first, last = when[slot.first], when[slot.last]
        found.append(BufferPlanned(names[slot.node], nbytes, offset, first, last, place, reuses))
    return found


# ---- packing at the hints ----------------------------------------------------------------------


def _place(buffers: list[Buffer], hints: Mapping[str, int]) -> None:
    """Packs buffers, remembers who stands on whom, and makes offsets of that."""
    pack(buffers)
    standing = sorted(buffers, key=lambda b: (b.at, b.first))
    for k, b in enumerate(standing):
        under = [c for c in standing[:k] if b.meets(c)]
        covered = {id(d) for c in under for d in c.below}
        b.below = [c for c in under if id(c) not in covered]
        ends = [add(s, c.nbytes) for c in b.below for s in c.sums]
        b.sums = ceiling(ends, hints) if ends else [0]


# ---- offsets -----------------------------------------------------------------------------------


def ceiling(sums: Iterable[Index], hints: Mapping[str, int]) -> list[Index]:
    """Few sums of which one is at least as large as each of `sums`, for all sizes; the largest at
    the hints first.  Raises nothing, and is exact as long as there are few to begin with."""
    ranked = sorted(dict.fromkeys(sums), key=lambda e: (-at_hints(e, hints), str(e)))
    kept: list[Index] = []
    for e in ranked:
        if not any(_covers(k, e) for k in kept):
            kept = [k for k in kept if not _covers(e, k)] + [e]
    while len(kept) > MOST_SUMS:
        a, b = kept.pop(), kept.pop()  # the least at the hints
        kept.append(_common(a, b))
        kept.sort(key=lambda e: (-at_hints(e, hints), str(e)))
    return kept


@lru_cache(maxsize=1 << 12)
def _covers(a: Index, b: Index) -> bool:
    """a >= b, seen by every coefficient of either: `a` may take something away that `b` has not.

    >>> n, m = size("n"), size("m")
    >>> _covers(n * m, n * m - n), _covers(n * m - n, n * m)
    (True, False)
    """
    mine, other = dict(terms_of(a)), dict(terms_of(b))
    parts = {m: mine.get(m, 0) - other.get(m, 0) for m in mine.keys() | other.keys()}
    return all(c == 0 or (c > 0 and all(map(_is_never_negative, m))) for m, c in parts.items())


def _at_most(e: Index) -> Index:
    """A sum that is never smaller, in which lines are not rounded up together but term by term.

    >>> n = size("n")
    >>> _at_most(rounded(n * 68) + n * 256)
    n*384
    """
    total: Index = 0
    for m, c in terms_of(e):
        lines = m[0] if len(m) == 1 and m[0].kind == "//" else None
        inner = dict(terms_of(lines.args[0])) if lines is not None else {}
        rest = inner.pop((), 0)
        sums = all(k > 0 and all(a.kind == "size" for a in n) for n, k in inner.items())
        if lines is not None and lines.args[1] == LINE and rest == LINE - 1 and sums and c > 0:
            for n, k in inner.items():
                total = add(total, Expr(((n, -(-k // LINE) * c),)))
        else:
            total = add(total, Expr(((m, c),)) if m else c)
    return total


def _common(a: Index, b: Index) -> Index:
    """A sum that is at least as large as both.

    >>> n, m = size("n"), size("m")
    >>> _common(n * m - n, m * 4)
    m*4 + m*n
    """
    mine, other = dict(terms_of(a)), dict(terms_of(b))
    total: Index = 0
    for m in mine | other:
        c = max(mine.get(m, 0), other.get(m, 0))
        if c:
            total = add(total, Expr(((m, c),)) if m else c)
    return total


def _largest(sums: Sequence[Index]) -> Index:
    found = sums[0]
    for e in sums[1:]:
        found = _larger(found, e)
    return found


_larger = lru_cache(maxsize=1024)(maximum)
