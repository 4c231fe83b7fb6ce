"""What the search promises: never worse than unfused, near the optimum, the same every time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from tests.fusion.dags import random_graph
from tests.fusion.formulas import MACHINE, Formula, between, calls, kernels, reasons
from tests.fusion.test_planning_time import encoder

from smelt import knobs
from smelt.errors import REASONS
from smelt.fusion import plan, streams
from smelt.fusion.bitsets import Hints, bits
from smelt.fusion.cost import Model
from smelt.fusion.legal import refuse_cost, refuse_region
from smelt.fusion.region import build_region, region_of
from smelt.fusion.search import MAX_SIBLINGS
from smelt.fusion.state import Reach
from smelt.fusion.text import text
from smelt.fusion.units import Units
from smelt.fusion.verify import verify
from smelt.graph.ir import Graph
from smelt.graph.text import name_values, parse
from smelt.graph.text import text as graph_text
from smelt.graph.walk import all_size_names
from smelt.journal.facts import Decision, Journal, Planned
from smelt.machine.target import Target
from smelt.types.expr import size


class Priced:
    """The model of a graph, asked about partitions of its units."""

    def __init__(self, graph: Graph, sizes: dict[str, int]) -> None:
        self.units = Units(graph)
        self.model = Model(self.units, MACHINE, Hints(sizes))
        self.known: dict[tuple[int, int], float | None] = {}

    def stored(self, members: int, apart: int) -> int:
        """Members that somebody in `apart` reads, or that are results."""
        return sum(
            1 << u
            for u in bits(members)
            if self.units.users[u] & apart or self.units.outputs >> u & 1
        )

    def burden(self, members: int, stored: int) -> float | None:
        key = members, stored
        if key not in self.known:
            region = build_region(self.units, members, stored)
            single = members.bit_count() == 1
            refused = not single and refuse_region(self.units, region) is not None
            cost = None if refused else self.model.cost(region)
            if cost is not None and not single and refuse_cost(self.model, cost) is not None:
                cost = None
            self.known[key] = None if cost is None else cost.objective_ns
        return self.known[key]

    def hangs_together(self, members: int) -> bool:
        """Whether its units read one another or the same values: what does not starts together
        with others, but shares no kernel with them."""
        left = members & (members - 1)
        joined = members ^ left
        reads = self.units.operands[joined.bit_length() - 1] | joined
        while left:
            near = [u for u in bits(left) if (self.units.operands[u] | 1 << u) & reads]
            if not near:
                return False
            for u in near:
                left ^= 1 << u
                reads |= self.units.operands[u] | 1 << u
        return True

    def partition(self, parts: list[int]) -> float | None:
        """The time of a partition, None if it is not legal."""
        everything = sum(parts)
        masks = [(p, self.stored(p, everything & ~p)) for p in parts]
        writer = {u: k for k, (_, stored) in enumerate(masks) for u in bits(stored)}
        successors = dict.fromkeys(range(len(parts)), 0)
        for k, (members, _) in enumerate(masks):
            for u in bits(members):
                for v in bits(self.units.operands[u] & ~members):
                    if v in writer:
                        successors[writer[v]] |= 1 << k
        if _cyclic(successors):
            return None
        total = 0.0
        for members, stored in masks:
            result = self.burden(members, stored) if self.hangs_together(members) else None
            if result is None:
                return None
            total += result
        return total


def _cyclic(successors: dict[int, int]) -> bool:
    left = dict(successors)
    while left:
        free = [k for k in left if not left[k]]
        if not free:
            return True
        for k in free:
            del left[k]
        gone = sum(1 << k for k in free)
        left = {k: s & ~gone for k, s in left.items()}
    return False


def partitions(items: list[int]) -> Iterator[list[int]]:
    """Every partition of units, as masks."""
    if not items:
        yield []
        return
    first, *rest = items
    for result in partitions(rest):
        yield [1 << first, *result]
        for k, part in enumerate(result):
            yield [*result[:k], part | 1 << first, *result[k + 1 :]]


def planned_burden(graph: Graph, sizes: dict[str, int], **options: bool) -> float:
    result = verify(plan(graph, MACHINE, None, sizes, **options))
    units = Units(graph)
    model = Model(units, MACHINE, Hints(sizes))
    return sum(model.cost(region_of(units, c)).objective_ns for c in result.clusters)


@pytest.mark.parametrize("seed", range(40))
def test_greedy_is_near_the_best_of_all_partitions(seed: int):
    g, graph = random_graph(seed, 9, results=2)
    priced = Priced(graph, g.sizes)
    numbers = [u.number for u in priced.units.units]
    if len(numbers) > 8:
        pytest.skip("too many partitions")
    best = min(t for p in partitions(numbers) if (t := priced.partition(p)) is not None)
    assert planned_burden(graph, g.sizes) <= 1.15 * best


@pytest.mark.parametrize("seed", range(30))
def test_fused_is_never_slower_than_apart(seed: int):
    g, graph = random_graph(seed, 40, sorts=0.05)
    apart = planned_burden(graph, g.sizes, fuse=False)
    assert planned_burden(graph, g.sizes) <= apart


@pytest.mark.parametrize("seed", range(10))
def test_equal_graphs_have_equal_plans(seed: int):
    g, graph = random_graph(seed, 60, sorts=0.05)
    first = text(plan(graph, MACHINE, None, g.sizes))
    assert text(plan(graph, MACHINE, None, g.sizes)) == first
    again = parse(graph_text(graph))
    assert text(plan(again, MACHINE, None, g.sizes)) == first


def test_planning_queries_the_model_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch):
    """Time itself is only watched: what is counted here is what takes it."""
    queries: list[int] = []
    cost = Model.cost
    monkeypatch.setattr(Model, "cost", lambda self, r: queries.append(1) or cost(self, r))
    g = Formula(n=4096, m=1024)
    x = g.input("x", "n", "m")
    for _ in range(12):
        r = g.input(f"r{len(g.inputs)}", "n", "m")
        x = g.silu(g.normalised(g.of("add", x, r), 1))
        x = g.of("abs", g.sort(x))
    graph = g.graph(x)
    plan(graph, MACHINE, None, g.sizes)
    assert len(queries) <= 6 * len(Units(graph).units)


def test_a_mask_by_positions_is_never_stored():
    """Even where reading it would be as cheap: streams look at the positions themselves."""
    graph = parse("""graph f(x: f32[h,n,m], y: f32[h,n,m]) {
      i = iota() {shape=(n, 1), axis=0, dtype=i64}
      j = iota() {shape=(1, m), axis=1, dtype=i64}
      mask = ge(i, j)
      wide = expand(mask) {shape=(h, n, m)}
      a = select(wide, x, 0.0:f32)
      b = extern.sort(a) {axis=2, descending=false, stable=true}
      c = select(wide, y, 1.0:f32)
      d = extern.sort(c) {axis=2, descending=false, stable=true}
      e = select(wide, b, d)
      return e
    }""")
    result = verify(plan(graph, MACHINE, None, {"h": 12, "n": 2048, "m": 2048}))
    stored = {node.op.name for c in result.clusters for node in c.outputs}
    assert stored == {"select", "extern.sort"}


# ---- decisions ---------------------------------------------------------------------------------


def test_every_decision_has_a_known_reason_and_numbers():
    for seed in range(12):
        g, graph = random_graph(seed, 40, sorts=0.1)
        journal = Journal()
        fused_plan = plan(graph, MACHINE, journal, g.sizes)
        assert journal.of(Decision) == list(fused_plan.decisions)
        (planned,) = journal.of(Planned)
        assert planned.kernels == len(fused_plan.clusters)
        assert planned.bytes <= planned.bytes_unfused
        for d in fused_plan.decisions:
            row = REASONS[d.reason]
            assert row.accepts == (d.verdict == "fused")
            assert "?" not in row.explain(**d.details), (d.reason, d.details)
            if d.verdict == "fused" and d.reason != "free-view":
                assert d.split_ns is not None and d.fused_ns is not None
                assert d.fused_ns <= d.split_ns


def test_every_neighbour_in_another_kernel_has_a_decision():
    g, graph = random_graph(3, 40, sorts=0.1)
    fused_plan = plan(graph, MACHINE, None, g.sizes)
    split = {(d.a, d.b) for d in fused_plan.decisions if d.verdict == "split"}
    count = 0
    for c in fused_plan.clusters:
        for other in fused_plan.clusters:
            count += bool(set(c.outputs) & set(other.inputs))
    assert count <= len(split)


def test_a_journal_that_keeps_nothing_costs_no_decisions():
    g, graph = random_graph(3, 40)
    assert plan(graph, MACHINE, Journal(keep=False), g.sizes).decisions == ()


# ---- wishes ------------------------------------------------------------------------------------


def chain(g: Formula):
    x = g.input("x", "n", "m")
    return g.of("log", g.of("add", g.of("exp", x), 1.0))


def test_never_fuse_keeps_two_operators_apart():
    g = Formula(n=1000, m=1000)
    y = chain(g)
    with knobs.config(never_fuse=[("exp", "add")]):
        fused_plan = g.plan(y)
    assert kernels(fused_plan) == 2
    assert {d.reason for d in between(fused_plan, "exp", "add")} == {"never-fuse"}
    assert kernels(g.plan(y)) == 1


def test_never_fuse_by_the_value_s_name():
    g = Formula(n=1000, m=1000)
    y = chain(g)
    with knobs.config(never_fuse=[("v1", "v2")]):
        assert kernels(g.plan(y)) == 2


def test_must_fuse_overrules_the_cost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        streams, "cheapest_stream", lambda *_, **__: None
    )  # a stream gains, and needs no must
    g = Formula(n=1 << 14, m=1 << 13)
    x = g.input("x", "n", "m")
    mean, variance = g.mean(x, 0, 1), g.centred(x, 0, 1)[1]
    assert kernels(g.plan(mean, variance)) == 2
    with knobs.config(must_fuse=[("reduce.sum", "sub")]):
        fused_plan = g.plan(mean, variance)
    assert kernels(fused_plan) == 1
    assert "must-fuse" in reasons(fused_plan, "fused")


def test_must_fuse_cannot_make_a_wrong_kernel():
    g = Formula(n=1000, m=1000)
    x = g.input("x", "n", "m")
    y = g.of("abs", g.sort(g.of("exp", x)))
    with knobs.config(must_fuse=[("exp", "abs"), ("exp", "extern.test_sorted")]):
        fused_plan = g.plan(y)
    assert (kernels(fused_plan), calls(fused_plan)) == (2, 1)


# ---- refusals ----------------------------------------------------------------------------------


def test_a_cycle_is_refused_by_name():
    g = Formula(n=1000, m=1000)
    x = g.input("x", "n", "m")
    a = x
    for _ in range(8):
        a = g.of("erf", a)
    y = g.of("add", g.sort(a), a)
    fused_plan = g.plan(y)
    assert (kernels(fused_plan), calls(fused_plan)) == (2, 1)
    (decision,) = [d for d in fused_plan.decisions if d.reason == "acyclic"]
    assert decision.details["between"].startswith("v")


def test_a_reduction_read_at_two_positions_is_stored():
    g = Formula(n=2048, m=512)
    x = g.input("x", "n", "m")
    r = g.fold("sum", x, 1)
    y = g.of("sub", g.reshape(r, "n", 1), g.reshape(r, 1, "n"))
    fused_plan = g.plan(y)
    assert kernels(fused_plan) == 2
    assert "reduction-crossing" in reasons(fused_plan, "split")


def test_no_part_of_a_long_reduction_sums_the_whole_row_again():
    """Products of a centred row with itself, shifted: 64 parts of their sum read one mean."""
    for dtype in ("f32", "f64"):
        lagged = parse(f"""graph lagged(x: {dtype}[400000]) {{
  v0 = reduce.sum(x) {{axes=(0,)}} : {dtype}[]
  v1 = sub(x, v0) : {dtype}[400000]
  v2 = slice(v1) {{starts=(4,), sizes=(399996,), steps=(1,)}} : {dtype}[399996]
  v3 = slice(v1) {{starts=(0,), sizes=(399996,), steps=(1,)}} : {dtype}[399996]
  v4 = mul(v2, v3) : {dtype}[399996]
  v5 = reduce.sum(v4) {{axes=(0,)}} : {dtype}[]
  return v5
}}""")
        fused_plan = plan(lagged, MACHINE, None, {})
        sums = [sum(n.op.name == "reduce.sum" for n in c.nodes) for c in fused_plan.clusters]
        assert max(sums) == 1


def test_a_reduction_read_once_at_every_position_stays_inside():
    """Reversed, or split and permuted, each sum is still computed once."""
    g = Formula(m=512, k=64)
    x = g.input("x", 32 * size("k"), "m")
    r = g.fold("sum", x, 1)
    transposed = g.of("exp", g.flip(r, 0))
    heads = g.of("exp", g.permute(g.reshape(r, "k", 32), 1, 0))
    for y in (transposed, heads):
        assert kernels(g.plan(y)) == 1


def test_a_reduction_read_several_times_is_stored():
    g = Formula(n=2048, m=512)
    x = g.input("x", "n", "m")
    spread = g.expand(g.reshape(g.fold("sum", x, 1), "n", 1), "n", 100)
    fused_plan = g.plan(g.of("exp", g.reshape(spread, 100 * size("n"))))
    assert kernels(fused_plan) == 2


def test_a_scan_of_which_one_element_is_read_is_stored():
    """Another one along the kernel's own axis does not make it run there."""
    g = Formula(n=33, m=64, k=64)
    x, y = g.input("x", "n", "m"), g.input("y", "n", "k")
    first = g.expand(g.cut(g.scan("sum", y, 1), 1, 0, 1), "n", "m")
    assert kernels(g.plan(g.of("mul", g.scan("sum", x, 1), first))) == 2


def test_unrelated_spaces_do_not_share_a_kernel():
    g = Formula(n=1000, m=777)
    x, z = g.input("x", "n"), g.input("z", "m")
    s = g.input("s")
    fused_plan = g.plan(g.of("mul", x, s), g.of("mul", z, s))
    assert (kernels(fused_plan), len(fused_plan.launches)) == (2, 1)


def test_rows_beyond_fast_memory_say_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        streams, "cheapest_stream", lambda *_, **__: None
    )  # where no axis can be streamed
    g = Formula(n=64, m=1 << 20)
    x = g.input("x", "n", "m")
    fused_plan = g.plan(g.softmax(x))
    refused = [d for d in fused_plan.decisions if d.reason == "fast-memory"]
    assert refused and refused[0].details["bytes"] > refused[0].details["capacity"]


def test_long_chains_plan():
    g = Formula(n=4096, m=1024)
    x = g.input("x", "n", "m")
    y = g.of("sub", x, g.fold("max", x, 1, keep=True))
    for _ in range(2000):
        y = g.of("add", y, 1.0)
    fused_plan = g.plan(g.of("div", y, g.fold("sum", y, 1, keep=True)))
    assert 2 <= kernels(fused_plan) <= 20
    assert "code-size" in reasons(fused_plan, "split")


def test_narrow_machines_plan_too():
    for isa in ("avx2", "portable", "neon"):
        g = Formula(n=4096, m=1024)
        x = g.input("x", "n", "m")
        assert kernels(g.plan(g.softmax(x), target=Target.for_isa(isa, cores=1))) == 1


# ---- reachability ------------------------------------------------------------------------------


def reachable(successors: dict[int, int], a: int) -> int:
    seen, pending = 0, [a]
    while pending:
        for s in bits(successors[pending.pop()]):
            if not seen >> s & 1:
                seen |= 1 << s
                pending.append(s)
    return seen


@pytest.mark.parametrize("seed", range(20))
def test_reachability_follows_merges(seed: int):
    import random

    r = random.Random(seed)
    size = 14
    successors = dict.fromkeys(range(size), 0)
    for k in range(size):
        for s in range(k + 1, size):
            successors[k] |= (r.random() < 0.2) << s
    reach = Reach(successors)
    for _ in range(8):
        a, b = r.sample(sorted(successors), 2)
        legal = not reach.between(a, b, successors[a]) and not reach.between(b, a, successors[b])
        both = {k: s for k, s in successors.items() if k != a}
        both[b] = (successors[a] | successors[b]) & ~(1 << a | 1 << b)
        for k, result in both.items():
            if k != b and result >> a & 1:
                both[k] = (result & ~(1 << a)) | 1 << b
        assert legal == (not _cyclic(both))
        if not legal:
            continue
        successors = both
        reach.join(a, b)
        for k in successors:
            live = sum(1 << j for j in successors)
            assert reach.after[k] & live == reachable(successors, k)


def test_the_search_has_no_dead_members():
    for seed in range(10):
        g, graph = random_graph(seed, 40)
        units = Units(graph)
        for cluster in plan(graph, MACHINE, None, g.sizes).clusters:
            region = region_of(units, cluster)
            assert set(bits(region.members)) == set(region.masks)


@pytest.mark.parametrize("layers", [2, 3])
def test_kernels_that_share_an_input_have_a_decision_with_numbers(layers):
    graph = encoder(layers)
    hints = dict.fromkeys(all_size_names(graph), 16)
    planned = plan(graph, MACHINE, Journal(), hints)
    names = {v: k for k, v in name_values(graph).items()}
    split = [d for d in planned.decisions if d.verdict == "split"]
    computed = [{*c.nodes} for c in planned.clusters]
    missing = []
    for (k, a), (j, b) in combinations(enumerate(planned.clusters), 2):
        shared = {*a.inputs} & {*b.inputs}
        if (
            {k, j} & {*planned.checks}
            or not shared
            or {*a.outputs} & {*b.inputs}
            or a.is_extern
            or b.is_extern
        ):
            continue
        readers = [c for c in planned.clusters if shared & {*c.inputs}]
        about = [
            d
            for d in split
            if any(
                names[d.a] in x and names[d.b] in y
                for x, y in ((computed[k], computed[j]), (computed[j], computed[k]))
            )
        ]
        if len(readers) <= MAX_SIBLINGS and not any(d.saves_bytes or d.fused_ns for d in about):
            missing.append((a.name, b.name, about))
    assert not missing
