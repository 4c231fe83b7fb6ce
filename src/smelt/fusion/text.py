"""Print and parse plans as text; names are those of the graph's text.

    plan    = "plan" NAME ["for" {NAME "=" NUMBER}] "{" {cluster} {slot} "}"
    cluster = STEP ":" NAME "(" [value {"," value}] ")" "->" value {"," value} "=" {value}
              ["again" {value}] ["walks" shape {shape}] ["streams" value "." NUMBER]
              [rounds | steps]
    steps   = "in steps of one kernel" | "in steps {" graph plan "}"
    rounds  = "in rounds of" NAME "=" NUMBER "over" expr "reads" {cut} "makes" {cut} "as" {pair}
              "{" graph plan "}"
    cut     = value "." (AXIS | "whole" | COMBINE) | "first row"
    pair    = VALUE "=" value
    slot    = value "@" ("out" | expr ["in" value] | "over" value) ":" expr "bytes" "," NAME
              "to" NAME
    shape   = "[" [expr {"," expr}] "]"

A cluster streams an axis that a reduction reduces, by number if the reduction has several. Clusters
with the same STEP start together. Constants belong to their readers and are left out unless they
are results. A chunked cluster has a graph and a plan of its own for the rows of one chunk: the cuts
say which values of the full graph its inputs and results are parts of, the pairs which values its
own nodes compute. A loop has the graph and the plan of a step, unless it is one kernel. `#` starts
a comment. If sizes are passed, comments say what each cluster moves and what its operators would
move as single kernels.

>>> from smelt.fusion.plan_single import plan
>>> from smelt.graph.text import parse as parse_graph
>>> from smelt.machine.target import Target
>>> graph = parse_graph('''graph f(x: f32[n,m], b: f32[m]) {
...   v0 = add(x, b)
...   v1 = max(v0, 0.0:f32)
...   v2 = log(v1)
...   return v2
... }''')
>>> found = plan(graph, Target.for_isa("avx2"), None, {"n": 1000, "m": 1000})
>>> print(text(found, {"n": 1000, "m": 1000}))
plan f {
  0: k0(x, b) -> v2 = v0 v1 v2  # 8004000 B moved (apart: 24004000 B)
  v2 @ out: m*n*4 bytes, k0 to k0
}
>>> text(parse(text(found), graph)) == text(found)
True
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from textwrap import indent
from typing import NoReturn

from smelt.errors import PlanTextError
from smelt.fusion.plan import Body, Cluster, LoopBody, Plan, Slot
from smelt.fusion.predict import traffic
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import Loop
from smelt.graph.text import name_values
from smelt.graph.text import parse as parse_graph
from smelt.graph.text import text as graph_text
from smelt.kernel.chunks import FIRST_ROW, WHOLE, Chunks, ChunkSlice
from smelt.ops.create import Constant
from smelt.types.expr import Index, size
from smelt.types.expr import text as expr_text
from smelt.types.tensor import Shape, shape_text
from smelt.types.text import parse as parse_expr

_CLUSTER = re.compile(
    r"(?P<step>\d+): (?P<name>[\w.]+)\((?P<ins>[^)]*)\) -> (?P<outs>[^=]*?) = (?P<nodes>.*?)"
    r"(?: again (?P<again>.*?))?(?: walks (?P<shapes>.*?))?"
    r"(?: streams (?P<reduction>\w+)\.(?P<ended>\d+))?(?: in rounds (?P<rounds>of .*) \{)?"
    r"(?: in steps (?P<steps>of one kernel|\{))?"
)
_ROUNDS = re.compile(
    r"of (?P<rows>\w+)=(?P<block>\d+) by (?P<small>\d+), (?P<large>\d+) over (?P<extent>.+?)"
    r" reads ?(?P<reads>.*?)"
    r" makes ?(?P<makes>.*?) as ?(?P<pairs>.*)"
)
_HEAD = re.compile(r"plan (?P<name>\S+)(?: for (?P<sizes>(?:\w+=\d+ ?)+))? \{")
_SLOT = re.compile(
    r"(?P<node>\S+) @ (?P<place>.+?): (?P<nbytes>.+) bytes, (?P<first>\S+) to (?P<last>\S+)"
)


def text(plan: Plan, hints: Mapping[str, int] | None = None, *, graph: bool = False) -> str:
    """Return the plan as text.

    With `hints` it includes the bytes moved at these sizes, with `graph` the graph comes first.
    """
    names = name_values(plan.graph)
    moved = None if hints is None else traffic(plan, hints)
    steps = {k: step for step, group in enumerate(plan.launches) for k in group}
    sizes_text = "".join(f" {n}={at}" for n, at in plan.sizes.items())
    lines = [f"plan {plan.graph.name}{' for' if sizes_text else ''}{sizes_text} {{"]
    for k, cluster in enumerate(plan.clusters):
        line = f"  {steps[k]}: {_cluster(cluster, names)}"
        if moved is not None:
            line += f"  # {moved[k][0]} B moved (apart: {moved[k][1]} B)"
        lines.append(line)
        if cluster.body is not None:
            inner = None if hints is None else _in_round(cluster.body, hints)
            lines += [indent(text(cluster.body.plan, inner, graph=True), "    "), "  }"]
        elif cluster.loop is not None and cluster.loop.plan is not None:
            lines += [indent(text(cluster.loop.plan, graph=True), "    "), "  }"]
    lines += [f"  {_slot(slot, names, plan)}" for slot in plan.slots]
    lines.append("}")
    return "\n".join([graph_text(plan.graph), *lines] if graph else lines)


def _in_round(body: Body, hints: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the first chunk."""
    return {**hints, body.chunks.rows: next(iter(body.chunks.lengths(hints)), 0)}


def _rounds(cluster: Cluster, body: Body, names: Mapping[Node, str]) -> str:
    inner_names, chunks = name_values(body.plan.graph), body.chunks

    def cut(c: ChunkSlice, values: tuple[Node, ...]) -> str:
        if c.axis == FIRST_ROW:
            return "first row"
        suffix = c.axis if c.axis != WHOLE else c.combine or "whole"
        return f"{names[values[c.place]]}.{suffix}"

    pairs = [
        f"{inner_names[x]}={names[n]}" for x, n in body.of.items() if not isinstance(x.op, Constant)
    ]
    small, large = chunks.multiples
    return (
        f"in rounds of {chunks.rows}={chunks.block} by {small}, {large}"
        f" over {expr_text(chunks.extent)} reads"
        f" {', '.join(cut(c, cluster.inputs) for c in chunks.reads)} makes"
        f" {', '.join(cut(c, cluster.outputs) for c in chunks.makes)} as {' '.join(pairs)} {{"
    )


def _cluster(cluster: Cluster, names: Mapping[Node, str]) -> str:
    def listed(nodes: tuple[Node, ...], between: str) -> str:
        return between.join(names[node] for node in nodes)

    visible = tuple(n for n in cluster.nodes if _is_printed(n, cluster))
    line = f"{cluster.name}({listed(cluster.inputs, ', ')}) -> {listed(cluster.outputs, ', ')}"
    line += f" = {listed(visible, ' ')}"
    if cluster.recomputed:
        line += f" again {listed(cluster.recomputed, ' ')}"
    if cluster.shapes:
        line += " walks " + " ".join(f"[{shape_text(s)}]" for s in cluster.shapes)
    if cluster.stream is not None:
        line += f" streams {names[cluster.stream[0]]}.{cluster.stream[1]}"
    if cluster.body is not None:
        line += f" {_rounds(cluster, cluster.body, names)}"
    if cluster.loop is not None:
        line += " in steps of one kernel" if cluster.loop.plan is None else " in steps {"
    return line


def _is_printed(node: Node, cluster: Cluster) -> bool:
    return not isinstance(node.op, Constant) or node in cluster.outputs


def _slot(slot: Slot, names: Mapping[Node, str], plan: Plan) -> str:
    if slot.reuses is not None:
        location = f"over {names[slot.reuses]}"
    else:
        location = "out" if slot.offset is None else expr_text(slot.offset)
        if slot.within is not None:
            location += f" in {names[slot.within]}"
    first, last = plan.clusters[slot.first].name, plan.clusters[slot.last].name
    return f"{names[slot.node]} @ {location}: {expr_text(slot.nbytes)} bytes, {first} to {last}"


# ---- parser ------------------------------------------------------------------------------------


def parse(source: str, graph: Graph | None = None) -> Plan:
    """Parse a plan, of `graph` or of the graph whose text comes first.

    Raises PlanTextError with the line that is not part of a plan or names an unknown value.
    """
    start = 0
    if graph is None:
        head = re.match(r"\s*(graph.*?^\})\s*$", source, re.DOTALL | re.MULTILINE)
        if head is None:
            _fail(source, 0, "the text of a graph before that of its plan")
        graph = parse_graph(head[1])
        start = head.end()
    return _Reader(source, start, graph).plan()


def _fail(source: str, at: int, expected: str) -> NoReturn:
    rest = source[at:].split("\n", 1)[0].strip()
    line, column = PlanTextError.position(source, at).values()
    raise PlanTextError(
        expected=expected,
        found=repr(rest) if rest else "the end",
        source=source,
        line=line,
        column=column,
    )


class _Reader:
    """Parses the lines after the graph's."""

    def __init__(self, source: str, start: int, graph: Graph) -> None:
        self.source, self.graph = source, graph
        self.at = start
        self.values: dict[str, Node] = {}
        for node, name in name_values(graph).items():
            self.values.setdefault(name, node)
        self.clusters: list[Cluster] = []
        self.numbers: dict[str, int] = {}
        self.launches: list[list[int]] = []
        self.slots: dict[Node, Slot] = {}

    def plan(self) -> Plan:
        """Parse everything from `plan` to the brace."""
        head = _HEAD.fullmatch(self.line())
        if head is None or head["name"] != self.graph.name:
            _fail(self.source, self.at, f"`plan {self.graph.name} {{`")
        pairs = (pair.split("=") for pair in (head["sizes"] or "").split())
        while (line := self.next()) != "}":
            cluster = _CLUSTER.fullmatch(line)
            slot = None if cluster else _SLOT.fullmatch(line)
            if cluster is not None:
                self.cluster(cluster)
            elif slot is not None:
                self.slot(slot)
            else:
                _fail(self.source, self.at, "a cluster, a buffer or `}`")
        launches = tuple(map(tuple, self.launches))
        return Plan(
            self.graph,
            tuple(self.clusters),
            launches,
            (),
            tuple(self.slots.values()),
            {name: int(n) for name, n in pairs},
        )

    def line(self) -> str:
        """Return the next non-blank line without its comment; `at` is its start."""
        while self.at < len(self.source):
            end = self.source.find("\n", self.at)
            end = len(self.source) if end < 0 else end
            content = self.source[self.at : end].partition("#")[0].strip()
            if content:
                return content
            self.at = end + 1
        _fail(self.source, len(self.source), "`}`")

    def next(self) -> str:
        """Return the line after the one at `at`."""
        end = self.source.find("\n", self.at)
        self.at = len(self.source) if end < 0 else end + 1
        return self.line()

    def read(self, what: str, source: str, function: Callable[[str], Index]) -> Index:
        try:
            return function(source)
        except (ValueError, ZeroDivisionError):
            _fail(self.source, self.at, what)

    def expression(self, source: str) -> Index:
        return self.read("an expression over sizes", source, lambda s: parse_expr(s, size))

    def nodes(self, source: str) -> tuple[Node, ...]:
        """Return values by name, separated by commas or blanks."""
        nodes: list[Node] = []
        for name in source.replace(",", " ").split():
            if name not in self.values:
                _fail(self.source, self.at, f"a value of graph {self.graph.name}, not {name},")
            nodes.append(self.values[name])
        return tuple(nodes)

    def shapes(self, source: str | None) -> tuple[Shape, ...]:
        rows = re.findall(r"\[([^\]]*)\]", source or "")
        return tuple(tuple(self.expression(d) for d in row.split(",") if d.strip()) for row in rows)

    def cluster(self, m: re.Match[str]) -> None:
        """Parse one cluster, adding the constants that its nodes read."""
        listed = self.nodes(m["nodes"])
        nodes = dict.fromkeys(listed)
        for node in listed:
            nodes |= dict.fromkeys(x for x in node.inputs if isinstance(x.op, Constant))
        order = {node: k for k, node in enumerate(self.graph.nodes())}
        step = int(m["step"])
        if step not in (len(self.launches) - 1, len(self.launches)):
            _fail(self.source, self.at, f"step {len(self.launches)}")
        if step == len(self.launches):
            self.launches.append([])
        self.launches[step].append(len(self.clusters))
        self.numbers[m["name"]] = len(self.clusters)
        ins, outs = self.nodes(m["ins"]), self.nodes(m["outs"])
        self.clusters.append(
            Cluster(
                m["name"],
                tuple(sorted(nodes, key=order.__getitem__)),
                ins,
                outs,
                self.nodes(m["again"] or ""),
                self.shapes(m["shapes"]),
                (self.nodes(m["reduction"])[0], int(m["ended"])) if m["reduction"] else None,
                self.body(m["rounds"], ins, outs) if m["rounds"] else None,
                self.loop(m["steps"], outs) if m["steps"] else None,
            )
        )

    def body(self, head: str, ins: tuple[Node, ...], outs: tuple[Node, ...]) -> Body:
        """Parse a chunked body: the rest of the line, then lines up to the brace."""
        m = _ROUNDS.fullmatch(head)
        if m is None:
            form = "`of NAME=ROWS by ROWS, ROWS over .. reads .. makes .. as ..`"
            _fail(self.source, self.at, form)
        cuts = [
            [self.cut(c.strip(), values) for c in m[side].split(",") if c.strip()]
            for side, values in (("reads", ins), ("makes", outs))
        ]
        extent = self.expression(m["extent"])
        plan = self.nested_plan()
        inner_values = {name: x for x, name in name_values(plan.graph).items()}
        pairs = [pair.split("=") for pair in m["pairs"].split()]
        if any(len(p) != 2 or p[0] not in inner_values or p[1] not in self.values for p in pairs):
            _fail(self.source, self.at, "values of the rounds and of the whole")
        multiples = int(m["small"]), int(m["large"])
        reads, makes = map(tuple, cuts)
        chunks = Chunks(reads, makes, extent, m["rows"], int(m["block"]), multiples)
        return Body(chunks, plan, {inner_values[x]: self.values[n] for x, n in pairs})

    def loop(self, steps: str, outs: tuple[Node, ...]) -> LoopBody:
        """Parse how the step of a loop runs, up to the brace of its plan."""
        ops = [x.op for x in outs]
        wanted = tuple(op.which for op in ops if isinstance(op, Loop))
        if not isinstance(ops[0], Loop) or len(wanted) < len(ops):
            _fail(self.source, self.at, "results of a loop")
        return LoopBody(ops[0], wanted, self.nested_plan() if steps == "{" else None)

    def nested_plan(self) -> Plan:
        """Parse a graph and its plan, up to the brace that ends them."""
        lines: list[str] = []
        depth = 1
        while depth:
            line = self.next()
            depth += line.endswith("{") - (line == "}" or line.startswith("}} : "))
            lines.append(line)
        return parse("\n".join(lines[:-1]))

    def cut(self, source: str, values: tuple[Node, ...]) -> ChunkSlice:
        """Parse one operand or result of chunks."""
        if source == "first row":
            return ChunkSlice(-1, FIRST_ROW)
        name, _, suffix = source.rpartition(".")
        (node,) = self.nodes(name)
        if node not in values:
            _fail(self.source, self.at, f"a value that the cluster reads or writes, not {name},")
        if suffix.isdigit():
            return ChunkSlice(values.index(node), int(suffix))
        return ChunkSlice(values.index(node), WHOLE, "" if suffix == "whole" else suffix)

    def slot(self, m: re.Match[str]) -> None:
        """Parse one buffer."""
        (node,) = self.nodes(m["node"])
        nbytes = self.expression(m["nbytes"])
        if m["first"] not in self.numbers or m["last"] not in self.numbers:
            _fail(self.source, self.at, "clusters that stand above")
        first, last = self.numbers[m["first"]], self.numbers[m["last"]]
        reuses: Node | None = None
        offset: Index | None = None
        within: Node | None = None
        if m["place"].startswith("over "):
            (reuses,) = self.nodes(m["place"][5:])
            if reuses in self.slots:
                offset, within = self.slots[reuses].offset, self.slots[reuses].within
            elif reuses not in self.graph.inputs:
                _fail(self.source, self.at, "a buffer that stands above, or an input")
        elif m["place"] != "out":
            offset_text, _, host = m["place"].partition(" in ")
            offset = self.expression(offset_text)
            within = self.nodes(host)[0] if host else None
        self.slots[node] = Slot(node, nbytes, offset, first, last, reuses, within)
