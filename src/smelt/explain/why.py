"""Answer why two operators are, or are not, in one kernel, from the planner's decisions.

    print(why(data, find(nodes, "exp"), find(nodes, "model.py:41")))

The planner decides about pairs of neighbours. For operators further apart the answer has the
decisions along the path from one to the other.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from smelt.errors import REASONS, escape_controls
from smelt.explain.data import DecisionData, NodeData, ReportData
from smelt.explain.names import short_place
from smelt.explain.units import show_bytes, show_count, show_rate, show_time
from smelt.python.dataclass import dataclass

__all__ = ["Why", "decision_text", "is_net", "why"]

WIDTH = 100
_CODE = re.compile(r"`([^`]+)`")
_NUMBERED = re.compile(r"v\d+")  # a value without a name in the source: its label says more


@dataclass(frozen=True, slots=True)
class Why:
    """An answer: `a` and `b` are node numbers, `decisions` a chain of decision numbers.

    `together` is true if some kernel computes both; these are in `kernels`. `others` counts further
    pairs that match the same names.
    """

    data: ReportData
    a: int
    b: int
    together: bool
    kernels: tuple[int, ...]
    decisions: tuple[int, ...]
    others: int = 0

    @property
    def reasons(self) -> tuple[str, ...]:
        """Codes of the decisions, as `F010`, or of the applicable rule if none was recorded."""
        if self.decisions:
            return tuple(self.data.decisions[d].code for d in self.decisions)
        return (_implied_reason(self),) if _implied_reason(self) else ()

    def __str__(self) -> str:
        lines = [_verdict(self)]
        if self.decisions:
            for number in self.decisions:
                lines += ["", *decision_text(self.data.decisions[number])]
        else:
            lines += [f"  {line}" for line in _explain_unrecorded(self)]
        if self.others:
            more = f"The names mean {show_count(self.others + 1, 'pair')}; this is the closest"
            lines += ["", f"{more}. Say which with a number, as in {_label(self, self.a)}."]
        return escape_controls("\n".join(lines))


def why(data: ReportData, a: Sequence[int], b: Sequence[int]) -> Why:
    """Return the answer about the closest pair of the given nodes (numbers into `data.nodes`)."""
    pairs = [(x, y) for x in a for y in b if x != y] or [(a[0], b[0])]
    first, second = _closest_pair(data, pairs)
    homes = [data.nodes[n].kernels for n in (first, second)]
    common = tuple(k for k in homes[0] if k in homes[1])
    if common:
        chain = _fused_chain(data, first, second, common[0])
    else:
        chain = _refusals_between(data, first, second)
    others = len({frozenset(p) for p in pairs}) - 1
    return Why(data, first, second, bool(common), common, tuple(chain), others)


# ---- finding the decisions ---------------------------------------------------------------------


def _closest_pair(data: ReportData, pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return a pair with a decision, or else the pair with the shortest path."""
    decided = {frozenset((d.a_node, d.b_node)) for d in data.decisions}
    for pair in pairs:
        if frozenset(pair) in decided:
            return pair
    if len(pairs) == 1:
        return pairs[0]
    near = _neighbours(data)
    best, least = pairs[0], len(data.nodes) + 1
    for a in dict.fromkeys(a for a, _ in pairs):
        goals = {y for x, y in pairs if x == a}
        path = _shortest_path(a, goals, near)
        if path and len(path) < least:
            best, least = (a, path[-1]), len(path)
    return best


def _neighbours(data: ReportData) -> dict[int, list[int]]:
    near: dict[int, list[int]] = {n.id: [] for n in data.nodes}
    for n in data.nodes:
        for x in n.inputs:
            if data.nodes[x].kind != "constant":
                near[n.id].append(x)
                near[x].append(n.id)
    return near


def _shortest_path(start: int, goals: set[int], near: Mapping[int, Iterable[int]]) -> list[int]:
    """Return a shortest path from `start` to one of `goals`; empty if there is none."""
    predecessor: dict[int, int] = {start: start}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if node in goals:
            path = [node]
            while path[-1] != start:
                path.append(predecessor[path[-1]])
            return path[::-1]
        for neighbour in near.get(node, ()):
            if neighbour not in predecessor:
                predecessor[neighbour] = node
                queue.append(neighbour)
    return []


def _fused_chain(data: ReportData, a: int, b: int, kernel: int) -> list[int]:
    """Return the decisions to fuse on a path from `a` to `b` inside a kernel."""
    inside = {n.id for n in data.nodes if kernel in n.kernels}
    near: dict[int, list[int]] = {}
    by_pair: dict[frozenset[int], int] = {}
    for d in data.decisions:
        if d.verdict == "fused" and d.a_node in inside and d.b_node in inside:
            assert d.a_node is not None and d.b_node is not None
            near.setdefault(d.a_node, []).append(d.b_node)
            near.setdefault(d.b_node, []).append(d.a_node)
            by_pair[frozenset((d.a_node, d.b_node))] = d.id
    start, goal = _deciding_node(data, a, near), _deciding_node(data, b, near)
    path = _shortest_path(start, {goal}, near)
    return [by_pair[frozenset(step)] for step in itertools.pairwise(path)]


def _deciding_node(data: ReportData, node: int, decided_nodes: Mapping[int, object]) -> int:
    """Return the operator whose decisions apply to a node: for a view, the viewed one."""
    while node not in decided_nodes and data.nodes[node].kind == "view" and data.nodes[node].inputs:
        node = data.nodes[node].inputs[0]
    return node


def _refusals_between(data: ReportData, a: int, b: int) -> list[int]:
    """Return the refusals about `a` and `b`, or where the kernel changes between them."""
    split = [d for d in data.decisions if d.verdict == "split"]
    direct = _last_matching(split, lambda d: {d.a_node, d.b_node} == {a, b})
    if direct is not None:
        return [direct]
    numbers: list[int] = []
    path = [n for n in _shortest_path(a, {b}, _neighbours(data)) if data.nodes[n].kernels]
    for x, y in itertools.pairwise(path):
        left, right = data.nodes[x].kernels, data.nodes[y].kernels
        if not set(left) & set(right):
            number = _between(data, split, x, y)
            numbers += [number] if number is not None and number not in numbers else []
    if not numbers and len(path) > 2:  # the nodes between them are computed in both kernels
        number = _between(data, split, a, b)
        numbers = [number] if number is not None else []
    return numbers


def _between(data: ReportData, split: Sequence[DecisionData], x: int, y: int) -> int | None:
    """Return the refusal between two nodes, or between any nodes of their kernels."""
    direct = _last_matching(split, lambda d: {d.a_node, d.b_node} == {x, y})
    if direct is not None:
        return direct
    sides = [
        {n.id for n in data.nodes if set(n.kernels) & set(data.nodes[k].kernels)} for k in (x, y)
    ]
    return _last_matching(
        split,
        lambda d: (
            (d.a_node in sides[0] and d.b_node in sides[1])
            or (d.a_node in sides[1] and d.b_node in sides[0])
        ),
    )


def _last_matching(
    decisions: Sequence[DecisionData], fits: Callable[[DecisionData], bool]
) -> int | None:
    """Return the last matching decision; candidates come up again as kernels grow."""
    return next((d.id for d in reversed(decisions) if fits(d)), None)


# ---- text --------------------------------------------------------------------------------------


def _label(answer: Why, node: int) -> str:
    return answer.data.nodes[node].label


def _label_with_place(answer: Why, node: int) -> str:
    place = short_place(answer.data.nodes[node].place)
    return _label(answer, node) + (f" ({place})" if place else "")


def _verdict(answer: Why) -> str:
    a, b = _label_with_place(answer, answer.a), _label_with_place(answer, answer.b)
    if answer.a == answer.b:
        return f"{a} is one operator, in {_kernels(answer, answer.a)}."
    if answer.together:
        return f"{a} and {b} are in one kernel: {_names(answer, answer.kernels)}."
    homes = [_kernels(answer, n) for n in (answer.a, answer.b)]
    return f"{a} is in {homes[0]}, {b} in {homes[1]}: not in one kernel."


def _names(answer: Why, kernels: Sequence[int]) -> str:
    return ", ".join(answer.data.kernels[k].name for k in kernels)


def _kernels(answer: Why, node: int) -> str:
    data = answer.data.nodes[node]
    if data.kind == "input":
        return "memory (an input)"
    return _names(answer, data.kernels) or "no kernel"


def _is_free(node: NodeData) -> bool:
    return node.kind in ("view", "source", "constant")


def _implied_reason(answer: Why) -> str:
    """Return the code of the reason that applies without a recorded decision."""
    nodes = [answer.data.nodes[n] for n in (answer.a, answer.b)]
    if answer.together:
        return REASONS["free-view"].code if any(_is_free(n) for n in nodes) else ""
    if any(n.kind == "call" for n in nodes):
        return REASONS["extern-barrier"].code
    if any(n.kind == "input" for n in nodes):
        return ""
    return REASONS["no-shared-data"].code


def _explain_unrecorded(answer: Why) -> list[str]:
    """Return the explanation for a pair without a recorded decision."""
    nodes = [answer.data.nodes[n] for n in (answer.a, answer.b)]
    code = _implied_reason(answer)
    if answer.a == answer.b:
        return []
    if not answer.together and any(n.kind == "input" for n in nodes):
        return ["An input is in memory before the first kernel starts; kernels read it from there."]
    if not code:
        return ["Nothing had to be decided: neither could be anywhere else."]
    row = next(r for r in REASONS.values() if r.code == code)
    about = next((n for n in nodes if _is_free(n) or n.kind == "call"), nodes[0])
    return [f"{row.code} {row.name}: {row.explain(op=about.label, shared=_shared(answer))}."]


def _shared(answer: Why) -> str:
    """Return how much two operators' kernels both read, as text."""
    sides: list[dict[int | None, int]] = []
    for node in (answer.a, answer.b):
        kernels = [answer.data.kernels[k] for k in answer.data.nodes[node].kernels]
        reads = [p for k in kernels for p in k.params if p.role == "in"]
        sides.append({p.node: p.touched_bytes for p in reads})
    shared = sum(nbytes for node, nbytes in sides[0].items() if node in sides[1])
    if not shared:
        return "no data"
    return f"{shared:,} of the {min(sum(s.values()) for s in sides):,} bytes that one of them reads"


def decision_text(d: DecisionData) -> list[str]:
    """Return a decision as a few lines: savings, costs, and how to override it."""
    fused = d.verdict == "fused"
    head = f"{'fused' if fused else 'not fused'}: {_pair_text(d)}"
    code = f"{d.code} {d.reason}"
    place = short_place(d.b_place) or short_place(d.a_place)
    tail = f"{code}   {place}" if place else code
    lines = [f"{head:<{max(WIDTH - len(tail) - 3, len(head))}}   {tail}"]
    lines.append(f"  because      {d.sentence}")
    would = "" if fused else "would "
    if d.saves_bytes or d.saves_ns:
        ns = 0.0 if is_net(d, d.saves_ns) and d.saves_bytes else d.saves_ns
        lines.append(_amount(f"{would}save{'s' if fused else ''}", d.saves_bytes, ns))
    if d.costs_bytes or d.costs_ns:
        ns = 0.0 if is_net(d, d.costs_ns) and d.costs_bytes else d.costs_ns
        lines.append(_amount(f"{would}cost{'s' if fused else ''}", d.costs_bytes, ns))
    if d.terms and d.fused_ns is not None:
        lines.append(_terms(d.fused_ns, d.terms))
    lines.append(f"  {'verdict':<12} {_comparison(d):<27} {_override(d)}".rstrip())
    return lines


def _pair_text(d: DecisionData) -> str:
    """Return the labels of a pair, as in `exp#3 -> reduce.sum#4`."""
    return f"{d.a_label} -> {d.b_label}"


def _terms(total: float, terms: Mapping[str, float]) -> str:
    """List the parts of the fused kernel's time, largest first; some of it overlaps."""
    parts = sorted(terms.items(), key=lambda t: -t[1])
    shown = ", ".join(f"{name} {show_time(ns)}" for name, ns in parts if ns >= 0.005 * total)
    return f"  {'one kernel':<12} {show_time(total)}: {shown}"


def is_net(d: DecisionData, ns: float) -> bool:
    """Return whether an amount is the difference of the totals, not of transfer times.

    The verdict shows that difference already.
    """
    return d.fused_ns is not None and d.split_ns is not None and ns == abs(d.split_ns - d.fused_ns)


def _amount(word: str, nbytes: int, ns: float) -> str:
    moved = show_bytes(nbytes) if nbytes else ""
    if not ns:
        return f"  {word:<12} {moved}".rstrip()
    if not moved:
        return f"  {word:<12} {show_time(ns)}"
    return f"  {word:<12} {moved:<27} = {show_time(ns)} at {show_rate(1e9 * nbytes / ns)}"


def _comparison(d: DecisionData) -> str:
    if d.fused_ns is None or d.split_ns is None:
        return "fused" if d.verdict == "fused" else "split"
    gap = d.split_ns - d.fused_ns
    if not gap:  # a decision about reductions inside a kernel, which costs nothing by itself
        return f"in one kernel of {show_time(d.fused_ns)}"
    return f"{'fused' if gap >= 0 else 'split'} is {show_time(abs(gap))} faster"


def _override(d: DecisionData) -> str:
    """Return how to get the opposite, ready to paste where a setting exists."""
    sides = (d.a, d.a_label), (d.b, d.b_label)
    a, b = ((label if _NUMBERED.fullmatch(name) else name) for name, label in sides)
    pair = f'("{a}", "{b}")'
    code = _CODE.search(d.override)
    if code is not None and "(a, b)" in code[1]:
        return f"try: {code[1].replace('(a, b)', pair)}"
    return d.override.partition(":")[0].partition(". ")[0].rstrip(".")
