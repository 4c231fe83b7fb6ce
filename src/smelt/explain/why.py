"""Why two operators are, or are not, in one kernel: the decisions between them, with their numbers.

    print(why(data, find(nodes, "exp"), find(nodes, "model.py:41")))

The planner decides about pairs of neighbours.  Of operators further apart the whole chain is told:
the decisions along the way from one to the other.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from smelt.dataclass import dataclass
from smelt.errors import REASONS
from smelt.explain.data import DecisionData, NodeData, ReportData
from smelt.explain.names import short
from smelt.explain.units import show_bytes, show_count, show_time

__all__ = ["Why", "decision_text", "pair_text", "why"]

WIDTH = 100
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Why:
    """An answer: `a` and `b` are node numbers, `decisions` the chain of decision numbers.

    `together` tells whether some kernel computes both, `kernels` which.  `others` counts further
    pairs that the same names mean."""

    data: ReportData
    a: int
    b: int
    together: bool
    kernels: tuple[int, ...]
    decisions: tuple[int, ...]
    others: int = 0

    @property
    def reasons(self) -> tuple[str, ...]:
        """The codes of the decisions, `F010`; of the rule that applies if none was recorded."""
        if self.decisions:
            return tuple(self.data.decisions[d].code for d in self.decisions)
        return (_rule(self),) if _rule(self) else ()

    def __str__(self) -> str:
        lines = [_verdict(self)]
        if self.decisions:
            for number in self.decisions:
                lines += ["", *decision_text(self.data.decisions[number])]
        else:
            lines += [f"  {line}" for line in _unrecorded(self)]
        if self.others:
            more = f"The names mean {show_count(self.others + 1, 'pair')}; this is the closest"
            lines += ["", f"{more}. Say which with a number, as in {_label(self, self.a)}."]
        return "\n".join(lines)


def why(data: ReportData, a: Sequence[int], b: Sequence[int]) -> Why:
    """The answer about the closest pair of the given nodes (numbers into `data.nodes`)."""
    pairs = [(x, y) for x in a for y in b if x != y] or [(a[0], b[0])]
    first, second = _closest(data, pairs)
    homes = [data.nodes[n].kernels for n in (first, second)]
    common = tuple(k for k in homes[0] if k in homes[1])
    if common:
        chain = _joined(data, first, second, common[0])
    else:
        chain = _parted(data, first, second)
    others = len({frozenset(p) for p in pairs}) - 1
    return Why(data, first, second, bool(common), common, tuple(chain), others)


# ---- finding the decisions ---------------------------------------------------------------------


def _closest(data: ReportData, pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """A pair that a decision is about if there is one, else the one with the shortest way."""
    decided = {frozenset((d.a_node, d.b_node)) for d in data.decisions}
    for pair in pairs:
        if frozenset(pair) in decided:
            return pair
    if len(pairs) == 1:
        return pairs[0]
    near = _neighbours(data)
    best, least = pairs[0], len(data.nodes) + 1
    for a in dict.fromkeys(a for a, _ in pairs):
        wanted = {y for x, y in pairs if x == a}
        found = _way(a, wanted, near)
        if found and len(found) < least:
            best, least = (a, found[-1]), len(found)
    return best


def _neighbours(data: ReportData) -> dict[int, list[int]]:
    near: dict[int, list[int]] = {n.id: [] for n in data.nodes}
    for n in data.nodes:
        for x in n.inputs:
            if data.nodes[x].kind != "constant":
                near[n.id].append(x)
                near[x].append(n.id)
    return near


def _way(start: int, goals: set[int], near: Mapping[int, Iterable[int]]) -> list[int]:
    """A shortest way from `start` to one of `goals`; empty if there is none."""
    before: dict[int, int] = {start: start}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if here in goals:
            way = [here]
            while way[-1] != start:
                way.append(before[way[-1]])
            return way[::-1]
        for there in near.get(here, ()):
            if there not in before:
                before[there] = here
                queue.append(there)
    return []


def _joined(data: ReportData, a: int, b: int, kernel: int) -> list[int]:
    """Decisions to fuse that lead from `a` to `b` inside a kernel."""
    inside = {n.id for n in data.nodes if kernel in n.kernels}
    near: dict[int, list[int]] = {}
    by_pair: dict[frozenset[int], int] = {}
    for d in data.decisions:
        if d.verdict == "fused" and d.a_node in inside and d.b_node in inside:
            assert d.a_node is not None and d.b_node is not None
            near.setdefault(d.a_node, []).append(d.b_node)
            near.setdefault(d.b_node, []).append(d.a_node)
            by_pair[frozenset((d.a_node, d.b_node))] = d.id
    start, goal = _decided(data, a, near), _decided(data, b, near)
    way = _way(start, {goal}, near)
    return [by_pair[frozenset(step)] for step in itertools.pairwise(way)]


def _decided(data: ReportData, node: int, known: Mapping[int, object]) -> int:
    """The operator whose decisions speak for a node: of a view, the one it looks at."""
    while node not in known and data.nodes[node].kind == "view" and data.nodes[node].inputs:
        node = data.nodes[node].inputs[0]
    return node


def _parted(data: ReportData, a: int, b: int) -> list[int]:
    """The refusals on the way from `a` to `b`: about them, or wherever the kernel changes."""
    split = [d for d in data.decisions if d.verdict == "split"]
    direct = _last(split, lambda d: {d.a_node, d.b_node} == {a, b})
    if direct is not None:
        return [direct]
    found: list[int] = []
    way = [n for n in _way(a, {b}, _neighbours(data)) if data.nodes[n].kernels]
    for x, y in itertools.pairwise(way):
        left, right = data.nodes[x].kernels, data.nodes[y].kernels
        if not set(left) & set(right):
            number = _between(data, split, x, y)
            found += [number] if number is not None and number not in found else []
    if not found and len(way) > 2:  # what lies between is computed in both kernels
        number = _between(data, split, a, b)
        found = [number] if number is not None else []
    return found


def _between(data: ReportData, split: Sequence[DecisionData], x: int, y: int) -> int | None:
    """The refusal between two nodes, or between anything of their kernels."""
    direct = _last(split, lambda d: {d.a_node, d.b_node} == {x, y})
    if direct is not None:
        return direct
    sides = [
        {n.id for n in data.nodes if set(n.kernels) & set(data.nodes[k].kernels)} for k in (x, y)
    ]
    return _last(
        split,
        lambda d: (
            (d.a_node in sides[0] and d.b_node in sides[1])
            or (d.a_node in sides[1] and d.b_node in sides[0])
        ),
    )


def _last(decisions: Sequence[DecisionData], fits: Callable[[DecisionData], bool]) -> int | None:
    """The last verdict counts: candidates come up again as kernels grow."""
    return next((d.id for d in reversed(decisions) if fits(d)), None)


# ---- words -------------------------------------------------------------------------------------


def _label(answer: Why, node: int) -> str:
    return answer.data.nodes[node].label


def _named(answer: Why, node: int) -> str:
    place = short(answer.data.nodes[node].place)
    return _label(answer, node) + (f" ({place})" if place else "")


def _verdict(answer: Why) -> str:
    a, b = _named(answer, answer.a), _named(answer, answer.b)
    if answer.a == answer.b:
        return f"{a} is one operator, in {_kernels(answer, answer.a)}."
    if answer.together:
        return f"{a} and {b} are in one kernel: {_names(answer, answer.kernels)}."
    homes = [_kernels(answer, n) for n in (answer.a, answer.b)]
    return f"{a} is in {homes[0]}, {b} in {homes[1]}: not in one kernel."


def _names(answer: Why, kernels: Sequence[int]) -> str:
    return ", ".join(answer.data.kernels[k].name for k in kernels)


def _kernels(answer: Why, node: int) -> str:
    found = answer.data.nodes[node]
    if found.kind == "input":
        return "memory (an input)"
    return _names(answer, found.kernels) or "no kernel"


def _free(node: NodeData) -> bool:
    return node.kind in ("view", "source", "constant")


def _rule(answer: Why) -> str:
    """The code of the reason that applies where nothing had to be decided."""
    nodes = [answer.data.nodes[n] for n in (answer.a, answer.b)]
    if answer.together:
        return REASONS["free-view"].code if any(_free(n) for n in nodes) else ""
    if any(n.kind == "call" for n in nodes):
        return REASONS["extern-barrier"].code
    if any(n.kind == "input" for n in nodes):
        return ""
    return REASONS["no-shared-data"].code


def _unrecorded(answer: Why) -> list[str]:
    """What to say where no decision was recorded."""
    nodes = [answer.data.nodes[n] for n in (answer.a, answer.b)]
    code = _rule(answer)
    if answer.a == answer.b:
        return []
    if not answer.together and any(n.kind == "input" for n in nodes):
        return ["An input is in memory before the first kernel starts; kernels read it from there."]
    if not code:
        return ["Nothing had to be decided: neither could be anywhere else."]
    row = next(r for r in REASONS.values() if r.code == code)
    about = next((n for n in nodes if _free(n) or n.kind == "call"), nodes[0])
    return [f"{row.code} {row.name}: {row.explain(op=about.label)}."]


def decision_text(d: DecisionData) -> list[str]:
    """A decision in a few lines: what it would save, what it would cost, how to override it."""
    fused = d.verdict == "fused"
    head = f"{'fused' if fused else 'not fused'}: {pair_text(d)}"
    code = f"{d.code} {d.reason}"
    place = short(d.b_place) or short(d.a_place)
    tail = f"{code}   {place}" if place else code
    lines = [f"{head:<{max(WIDTH - len(tail) - 3, len(head))}}   {tail}"]
    lines.append(f"  because      {d.sentence}")
    would = "" if fused else "would "
    if d.saves_bytes or d.saves_ns:
        ns = 0.0 if _is_net(d, d.saves_ns) and d.saves_bytes else d.saves_ns
        lines.append(_amount(f"{would}save{'s' if fused else ''}", d.saves_bytes, ns))
    if d.costs_bytes or d.costs_ns:
        ns = 0.0 if _is_net(d, d.costs_ns) and d.costs_bytes else d.costs_ns
        lines.append(_amount(f"{would}cost{'s' if fused else ''}", d.costs_bytes, ns))
    if d.terms and d.fused_ns is not None:
        lines.append(_terms(d.fused_ns, d.terms))
    lines.append(f"  {'verdict':<12} {_comparison(d):<27} {_override(d)}".rstrip())
    return lines


def pair_text(d: DecisionData) -> str:
    """`exp#3 -> reduce.sum#4`"""
    return f"{d.a_label} -> {d.b_label}"


def _terms(total: float, terms: Mapping[str, float]) -> str:
    """The parts of the fused kernel's time, largest first; some of it overlaps."""
    parts = sorted(terms.items(), key=lambda t: -t[1])
    shown = ", ".join(f"{name} {show_time(ns)}" for name, ns in parts if ns >= 0.005 * total)
    return f"  {'one kernel':<12} {show_time(total)}: {shown}"


def _is_net(d: DecisionData, ns: float) -> bool:
    """Whether an amount is the difference of the totals, which the verdict tells already, rather
    than the time of the bytes."""
    return d.fused_ns is not None and d.split_ns is not None and ns == abs(d.split_ns - d.fused_ns)


def _amount(word: str, nbytes: int, ns: float) -> str:
    moved = show_bytes(nbytes) if nbytes else ""
    if not ns:
        return f"  {word:<12} {moved}".rstrip()
    if not moved:
        return f"  {word:<12} {show_time(ns)}"
    return f"  {word:<12} {moved:<27} = {show_time(ns)} at {nbytes / ns:.3g} GB/s"


def _comparison(d: DecisionData) -> str:
    if d.fused_ns is None or d.split_ns is None:
        return "fused" if d.verdict == "fused" else "split"
    gap = d.split_ns - d.fused_ns
    if not gap:  # how folds of one kernel follow one another, which costs nothing by itself
        return f"in one kernel of {show_time(d.fused_ns)}"
    return f"{'fused' if gap >= 0 else 'split'} is {show_time(abs(gap))} faster"


def _override(d: DecisionData) -> str:
    """How to get the opposite, ready to paste where there is a setting for it."""
    pair = f'("{d.a}", "{d.b}")'
    code = _CODE.search(d.override)
    if code is not None and "(a, b)" in code[1]:
        return f"try: {code[1].replace('(a, b)', pair)}"
    return d.override.partition(":")[0].partition(". ")[0].rstrip(".")
