"""The text of a plan: clusters with their operators, what each reads and writes, where values live.

print(plan_text(compiled.plan))
plan softmax
  k0: max#0 sub#2 exp#3 sum#4 div#6
    reads  x: f32[r,c]
    writes div#6: f32[r,c] -> result
"""

from __future__ import annotations

from smelt.explain.labels import Labels
from smelt.fusion.plan import Cluster, Plan, Slot
from smelt.graph.ir import Node
from smelt.ops.create import Input
from smelt.types.expr import text

__all__ = ["plan_text"]


def plan_text(plan: Plan) -> str:
    """All clusters in order of launching; decisions are the journal's business."""
    labels = Labels(plan.graph)
    slots = {s.node: s for s in plan.slots}
    lines = [f"plan {plan.graph.name}"]
    for group in plan.launches:
        together = len(group) > 1
        for number in group:
            lines += _cluster(plan.clusters[number], labels, slots, together)
    return "\n".join(lines)


def _cluster(
    cluster: Cluster, labels: Labels, slots: dict[Node, Slot], together: bool
) -> list[str]:
    again = set(cluster.recomputed)
    shown = [
        labels.label[n] + ("*" if n in again else "")
        for n in cluster.nodes
        if not (n.op.is_view or n.op.is_source) or isinstance(n.op, Input)
    ]
    views = [labels.label[n] for n in cluster.nodes if n.op.is_view]
    head = f"  {cluster.name}: {' '.join(shown or views)}"
    lines = [head + ("   # starts with the kernels beside it" if together else "")]
    if shown and views:
        lines.append(f"    views  {' '.join(views)}")
    lines += [f"    reads  {labels.label[n]}: {n.type}" for n in cluster.inputs]
    lines += [f"    writes {labels.label[n]}: {n.type}{_where(slots.get(n))}"
              for n in cluster.outputs]  # fmt: skip
    return lines


def _where(slot: Slot | None) -> str:
    if slot is None or slot.offset is None:
        return " -> result"
    return f" -> arena + {text(slot.offset)}, until kernel {slot.last}"
