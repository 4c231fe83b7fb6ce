"""
What is not fused, and why
==========================

A good plan also refuses. Here an expensive function is applied to a table, whose rows are then
looked up. Fused, the function is computed for every look-up; apart, once for every row.
"""

# %%

from charts import curves

import smelt as sm


def looked_up(table, ids):
    return sm.take(sm.erf(table), ids, axis=0) + 1.0


report = sm.explain(looked_up, sm.spec("f32[4096,256]"), sm.spec("i64[65536]"))
print(report)

# %%
# Both alternatives have a predicted time, and the shorter one wins. With few look-ups that is the
# fused kernel, because it computes only the rows that somebody reads:

print(report.why("erf", "gather"))

# %%
# The two predictions over the number of look-ups:


def predictions(count):
    types = sm.spec("f32[4096,256]"), sm.spec(f"i64[{count}]")
    decisions = sm.explain(looked_up, *types).decisions
    last = [d for d in decisions if d.a_label.startswith("erf") and "gather" in d.b_label][-1]
    return last.split_ns / 1e6, last.fused_ns / 1e6, last.verdict


counts = [1024, 4096, 16384, 65536]
apart, fused, verdicts = zip(*[predictions(n) for n in counts], strict=True)
axes = curves(
    counts,
    {"two kernels": apart, "one kernel": fused},
    xlabel="rows that are looked up in a table of 4,096",
    ylabel="predicted ms",
)
axes.set_xscale("log", base=4)
axes.set_yscale("log")
axes.set_xticks(counts, [f"{n:,}" for n in counts])
axes.margins(y=0.2)
for count, a, b, verdict in zip(counts, apart, fused, verdicts, strict=True):
    axes.annotate(verdict, (count, min(a, b)), (0, -14), textcoords="offset points", ha="center")

# %%
# An operator that runs in a library is a border. Nothing fuses across it, and it costs one call:


def sorted_scores(x):
    return sm.sort(sm.exp(x) * 2.0, axis=-1) + 1.0


print(sm.explain(sorted_scores, sm.spec("f32[1000,1000]")).text(level=1))
