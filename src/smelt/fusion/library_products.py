"""Choose which products and convolutions of a plan a numerical library computes.

A library's product may be faster than ours on a machine, but a call fuses with nothing: operators
around it store what they would have kept in registers. So by default only a product that has a
kernel of its own anyway is handed over, and only where this machine's figures, which
`smelt doctor --probe` measures, say that the library is faster for products of that shape and type.
Other choices are for `tune`, which races whole programs: the setting `library_products`.

>>> class_of(512, 512, 512), class_of(4, 1024, 1024), class_of(4096, 64, 64)
('large', 'few rows', 'skinny')
>>> class_of(1, 4096, 4096), class_of(64, 64, 64, batch=96)
('one row', 'batch')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from smelt.backend.machine import Machine
from smelt.fusion.bitsets import Hints, at_hints
from smelt.fusion.plan import Cluster, Plan
from smelt.fusion.predict import costs
from smelt.fusion.units import is_free
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.library_form import LibraryForm, library_form
from smelt.graph.text import name_values
from smelt.graph.walk import rebuild_from
from smelt.journal.facts import LibraryProduct
from smelt.ops.library_product import CLEAR_GAIN, Library, Provider, Wish

ShapeClass: TypeAlias = Literal["large", "one row", "few rows", "skinny", "batch"]

FEW_ROWS = 16
"""Maximum rows of a product that reads its second operand once, from memory."""
SKINNY = 96
"""Largest columns or terms of a product whose blocks do not fill a register tile's caches."""
SMALL = 128
"""Largest side of the matrices in a stack whose products stay in the caches of a core."""
MIN_NS = 20_000.0
"""Minimum predicted nanoseconds of a product that is handed over: a call takes some thousands."""


def class_of(rows: int, columns: int, terms: int, batch: int = 1) -> ShapeClass:
    """Return the class of shapes of which all products are assumed to compare alike."""
    if batch > 1 and max(rows, columns, terms) <= SMALL:
        return "batch"
    if min(rows, columns) == 1:
        return "one row"
    if min(rows, columns) <= FEW_ROWS:
        return "few rows"
    return "skinny" if min(columns, terms) <= SKINNY else "large"


def choose_products(
    graph: Graph,
    plan: Plan,
    machine: Machine,
    sizes: Mapping[str, int],
    wish: Wish,
    library: Library,
) -> dict[Node, LibraryProduct]:
    """Return the decision on each product of a graph that a library could compute.

    `plan` is the graph's plan without a library. Without a wish and without figures there is
    nothing to decide. Products in chunks of rows or in loops stay ours: a call there would take
    the threads that work on other rows.
    """
    if wish == "never" or (wish == "auto" and not library.ratios):
        return {}
    names, hints = name_values(graph), Hints(sizes)
    forms = {
        (k, node): form
        for (k, node), form in _forms(plan, library.provider).items()
        if node in names
    }
    predicted = costs(plan, machine, sizes) if forms else []
    decisions: dict[Node, LibraryProduct] = {}
    for (k, node), form in forms.items():
        m, n, terms = (at_hints(x, hints) for x in (form.rows, form.columns, form.terms))
        ratio = library.ratios.get(_class_name(node, form, hints))
        plain = _is_alone(plan.clusters[k], node)
        own_ns = predicted[k].total if plain else None
        reason = "chunks" if plan.clusters[k].body else _reason(wish, own_ns, ratio, library)
        decisions[node] = LibraryProduct(
            names[node],
            library.provider.title,
            (at_hints(form.batch, hints), m, n, terms),
            reason in _TAKEN,
            reason,
            own_ns,
            None if own_ns is None or ratio is None else own_ns * ratio,
            node.origin,
        )
    return decisions


def product_classes(plan: Plan, sizes: Mapping[str, int], provider: Provider) -> list[str]:
    """Return the classes, with types, of the products in kernels of their own."""
    hints = Hints(sizes)
    return sorted(
        {
            _class_name(node, form, hints)
            for cluster in plan.clusters
            if cluster.body is None and cluster.loop is None
            for node in cluster.nodes
            if _is_alone(cluster, node) and (form := library_form(node, provider))
        }
    )


def _forms(plan: Plan, provider: Provider) -> dict[tuple[int, Node], LibraryForm]:
    """Return the calls that a library has for nodes, by their clusters and themselves."""
    return {
        (k, node): form
        for k, cluster in enumerate(plan.clusters)
        if cluster.loop is None
        for node in cluster.nodes
        if (form := library_form(node, provider))
    }


def _class_name(node: Node, form: LibraryForm, hints: Hints) -> str:
    """Return the name of a product's figures: its class and type."""
    sizes = [at_hints(x, hints) for x in (form.rows, form.columns, form.terms, form.batch)]
    name = class_of(*sizes) if form.kind == "product" else form.kind
    return f"{name} {node.type.dtype.name}"


_TAKEN = ("faster", "setting")


def _reason(wish: Wish, own_ns: float | None, ratio: float | None, library: Library) -> str:
    """Return the reason of a decision: a key of `smelt.journal.facts.LIBRARY_REASONS`.

    `own_ns` is the predicted time of a product in a kernel of its own, None for others.
    """
    if not library.may_run:
        return "threads"
    if wish == "always" or (wish == "plain" and own_ns is not None):
        return "setting"
    if own_ns is None:
        return "fused"
    if ratio is None:
        return "unmeasured"
    if own_ns < MIN_NS:
        return "small"
    return "faster" if ratio < CLEAR_GAIN else "slower"


def _is_alone(cluster: Cluster, node: Node) -> bool:
    """Return whether a product has a kernel that stores nothing but its result."""
    others = [x for x in cluster.nodes if x is not node and not is_free(x)]
    return not others and cluster.outputs == (node,)


def stay_own(decisions: Mapping[Node, LibraryProduct]) -> dict[Node, LibraryProduct]:
    """Return the decisions with all products ours, since chunks of rows would call a library."""
    return {n: replace(d, taken=False, reason="chunks") for n, d in decisions.items()}


def calls_in_chunks(plan: Plan) -> bool:
    """Return whether a plan calls a library for one chunk of rows after another."""
    return any(
        cluster.body is not None and any(c.is_extern for c in cluster.body.plan.clusters)
        for cluster in plan.clusters
    )


def use_library(
    graph: Graph, decisions: Mapping[Node, LibraryProduct], provider: Provider
) -> Graph:
    """Replace the products that were handed over by calls of the library."""
    if not any(d.taken for d in decisions.values()):
        return graph

    def change(new: Node, old: Node) -> Node:
        form = None
        if old in decisions and decisions[old].taken:
            form = library_form(new, provider)
        if form is None:
            return new
        return build.apply(form.op, *form.operands, origin=new.origin)

    return rebuild_from(graph, change)
