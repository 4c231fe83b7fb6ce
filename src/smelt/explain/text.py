"""Render a report as plain text for a terminal, a notebook or a log.

    print(page(data))
    softmax: 5 operators became 1 kernel; 9.60 MB through memory became 2.40 MB (4.0x less)
    ...

The first line is what one would say aloud. Then come the totals, a line for each kernel, the
refused fusions that are worth most, and the slowest kernel. Lines have at most `WIDTH` columns
where names allow it; a small program fits a screen of `SCREEN` lines.
`level` 1 is the totals and a line for each kernel, 2 is the whole page, 3 has all kernels, 4 every
decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from textwrap import wrap

from smelt.explain.data import DecisionData, KernelData, LibraryData, ReportData, to_data
from smelt.explain.names import plain_name, short_place
from smelt.explain.repeats import Repeats
from smelt.explain.sentence import sentence
from smelt.explain.units import show_bytes, show_count, show_rate, show_time
from smelt.explain.why import decision_text, is_net

__all__ = ["kernel_line", "kernel_time", "page", "refusals"]

WIDTH = 100
SCREEN = 25
"""Lines that the page of a small program has at most."""
MAX_LINES, MIN_LINES = 14, 11
"""Maximum lines of a kernel's text on level 2: of a short page, and of a page beyond `SCREEN`."""
MAX_REFUSALS = 3
NAMES = 26
"""Width in columns of the operators in the table of kernels."""


def page(data: ReportData, level: int = 2, repeats: Repeats | None = None) -> str:
    """Return the page of a report; `repeats` is a loop that was unrolled."""
    parts = [[*_head(data), *_repeats_line(repeats)], _kernel_table(data)]
    slowest = max(
        (k for k in data.kernels if k.kind not in ("rounds", "loop")),
        default=None,
        key=lambda k: kernel_time(k) * k.rounds,
    )
    refused = refusals(data)
    if level == 2:
        parts += [_refusals(refused)] if refused else []
        if slowest is not None:
            above = sum(len(lines) + 1 for lines in parts)
            most = min(MAX_LINES, max(MIN_LINES, SCREEN - above - 3))
            parts.append(_kernel(data, slowest, most=most))
    elif level > 2:
        parts += [_kernel(data, k) for k in data.kernels]
        shown = data.decisions if level > 3 else refused
        parts += [decision_text(d) for d in shown]
    if level > 1 and not data.target.measured:
        parts.append(["Speeds of this machine are assumed; `smelt doctor --probe` measures them."])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


# ---- the head ----------------------------------------------------------------------------------


def _head(data: ReportData) -> list[str]:
    sizes = " ".join(f"{name}={n}" for name, n in data.sizes.items())
    m = data.target
    maker = m.name.replace("(R)", "").replace("(TM)", "").partition(" (")[0]
    name = maker.replace(" Processor", "").partition(" @")[0]
    machine = f"{name}, {show_count(m.cores, 'core')}, {m.isa}"
    return [
        f"{data.name}: {sentence(to_data(data.total))}",
        f"for      {'   '.join(part for part in (sizes, machine) if part)}",
        f"moves    {_memory(data)}",
        f"takes    {_time(data)}",
        *_constants_line(data),
        *_layout_line(data),
        *_library_lines(data),
    ]


def _constants_line(data: ReportData) -> list[str]:
    """Return the line about kept constants, as `once     2.4 MB packed, kept ..`.

    It lists constant subexpressions and packed operands, and those beyond the memory budget.
    """
    pairs = (data.memory.packed, "packed"), (data.memory.computed, "computed")
    words = [f"{show_bytes(n)} {what}" for n, what in pairs if n]
    sentences = [f"{', '.join(words)}, kept for the next calls"] if words else []
    refused = [c for c in data.constants if not c.kept]
    if refused:
        more, gain = sum(c.nbytes for c in refused), sum(c.saves_ns for c in refused)
        sentences.append(
            f"{show_bytes(more)} {'more' if words else 'of constants, kept,'} would save "
            f"{show_time(gain)} a call (constants_extra)"
        )
    return [f"once     {'; '.join(sentences)}"] if sentences else []


def _layout_line(data: ReportData) -> list[str]:
    """Return the line `order    channels last: 27 ms instead of 31 ms`.

    Present where data came in another layout.
    """
    return [
        f"order    channels last between kernels: {show_time(o.last_ns)} instead of "
        f"{show_time(o.first_ns)} (predicted)"
        for o in data.orders
        if o.last
    ]


def _library_lines(data: ReportData) -> list[str]:
    """Return a line for each reason why a library computes products, or does not.

    As `library  NumPy computes v3 (300x100x200): measured to be faster .. (1 ms, ours 2 ms)`.
    """
    alike: dict[tuple[str, bool, str], list[LibraryData]] = {}
    for p in data.libraries:
        alike.setdefault((p.library, p.taken, p.reason), []).append(p)
    lines: list[str] = []
    for (library, taken, reason), products in alike.items():
        first, more = products[0], len(products) - 1
        shape = "x".join(map(str, first.shape[1:]))
        named = f"{first.value} ({shape})" + (f" and {show_count(more, 'other')}" if more else "")
        verb = "computes" if taken else "does not compute"
        text = f"library  {library} {verb} {named}: {reason}"
        if first.own_ns is not None and first.library_ns is not None:
            times = show_time(first.library_ns), show_time(first.own_ns)
            text += f" ({times[0]}, ours {times[1]}, predicted)"
        lines += wrap(text, WIDTH, subsequent_indent="         ")
    return lines


def _repeats_line(repeats: Repeats | None) -> list[str]:
    """Return the line `unrolled  100 steps of 4 operators at f.py:5; sm.scan ..`."""
    if repeats is None:
        return []
    each = round(repeats.operators / repeats.copies)
    place = f"{PurePath(repeats.origin.file).name}:{repeats.origin.line}"
    steps = f"{repeats.copies} steps of {show_count(each, 'operator')} at {place}"
    return [f"unrolled {steps}; sm.scan or sm.fori_loop compiles one"]


def _memory(data: ReportData) -> str:
    t = data.total
    unfused = f" instead of {t.transfers_unfused}" if t.transfers_unfused > t.transfers else ""
    temp = data.memory.temp
    between = f"{show_bytes(temp)} of intermediates" if temp else "no intermediates"
    counted = f"{show_count(t.transfers, 'array')}{unfused}, {between} in memory"
    nodes = data.nodes
    replaced = [
        f"a result takes the place of {nodes[b.reuses].name}"
        for b in data.buffers
        if b.reuses is not None and nodes[b.reuses].kind == "input"
    ]
    return "; ".join([counted, *replaced])


def _time(data: ReportData) -> str:
    t = data.total
    words: list[str] = []
    if t.measured is not None:
        words.append(f"{show_time(t.measured.median_ns)} a call")
    if t.predicted_ns is not None:
        words.append(f"{show_time(t.predicted_ns)} predicted")
    words.append(f"{show_time(t.floor_ns)} for memory alone")
    shown = ", ".join(words)
    if t.compile_seconds is None:
        return shown
    return f"{shown}; compiled in {show_time(t.compile_seconds * 1e9)}{_cached(data)}"


def _cached(data: ReportData) -> str:
    """Return how many kernels were cached, as in ` (2 of 3 cached)`."""
    states = [k.compile.cache for k in data.kernels if k.kind in ("kernel", "check")]
    hits = sum(s.startswith("hit") for s in states)
    some = f"{hits} of {len(states)} " if hits < len(states) else ""
    return f" ({some}cached)" if hits else ""


# ---- the table of kernels ----------------------------------------------------------------------


def kernel_time(k: KernelData) -> float:
    """Return the best available time of a kernel in ns: measured, predicted, or the floor."""
    if k.measured is not None:
        return k.measured.median_ns
    return k.floor_ns if k.predicted_ns is None else k.predicted_ns


def kernel_line(data: ReportData, k: KernelData) -> list[str]:
    """Return the cells of a kernel's row: number, operators, axes, time, rate, saved, place."""
    time = kernel_time(k)
    about = "" if k.measured is not None else "~"
    saved = k.bytes_unfused - k.bytes
    place = next((short_place(p) for p in reversed(k.places)), "")
    often = f" x{k.rounds}" if k.within is not None else ""
    return [
        f"{k.name}{often}",
        _operators(data, k),
        _axes(data, k),
        f"{about}{show_time(time)}",
        _rate(data, k, time),
        f"saved {show_bytes(saved)}" if saved > 0 else "",
        place,
    ]


def _rate(data: ReportData, k: KernelData, time: float) -> str:
    """Return `61 GB/s (91 % of roof)`, or GFLOP/s where arithmetic is the nearer roof.

    Empty for a call without a measurement, since the model covers its traffic only.
    """
    if not time or (k.kind == "call" and k.measured is None):
        return ""
    peak = k.flops / data.target.gflops if data.target.gflops else 0.0
    if peak > k.floor_ns:
        return f"{k.flops / time:.3g} GFLOP/s ({100 * peak / time:.0f} % of roof)"
    return f"{show_rate(k.bytes / time * 1e9)} ({100 * k.floor_ns / time:.0f} % of roof)"


def _operators(data: ReportData, k: KernelData) -> str:
    """Return the names of as many operators as fit, then the number of the others."""
    nodes = [data.nodes[o.node] for o in k.operators]
    names = [plain_name(n) for n in nodes if n.kind in ("operator", "call", "check")]
    names = names or [plain_name(n) for n in nodes if n.kind != "constant"]
    shown = " ".join(names) if names or k.within is None else _step_name(data, k.within)
    count = len(names)
    while len(shown) > NAMES and count > 1:
        count -= 1
        shown = f"{' '.join(names[:count])} +{len(names) - count}"
    return shown


def _step_name(data: ReportData, within: int) -> str:
    return "step" if data.kernels[within].kind == "loop" else "prepares a chunk"


def _axes(data: ReportData, k: KernelData) -> str:
    if k.kind == "call":
        return "library call"
    if k.kind == "rounds":
        return f"{k.rounds} rounds of {', '.join(f'{a.block} {a.name}' for a in k.axes)}"
    if k.kind == "loop":
        count = sum(x.within == k.id for x in data.kernels)
        kernels = f"{count} kernel{'s' if count != 1 else ''}"
        return f"loop of {k.rounds} steps: body compiled once, {kernels}"
    words = ["looks at positions"] if k.kind == "check" else []
    for role in ("grid", "stream"):
        cuts = [
            a.name + (f"/{a.block}" if a.block is not None and a.block > 1 else "")
            for a in k.axes
            if a.role == role
        ]
        parts = [f"{a.parts} parts of {a.name}" for a in k.axes if role == "grid" and a.parts]
        if cuts or parts:
            words.append(f"{role} {', '.join(cuts + parts)}")
    return "  ".join(words) or "one task"


def _kernel_table(data: ReportData) -> list[str]:
    rows = [kernel_line(data, k) for k in data.kernels]
    right = {3}
    widths = [max((len(row[c]) for row in rows), default=0) for c in range(7)]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(w) if c in right else cell.ljust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=True))
            if w
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


# ---- a kernel ----------------------------------------------------------------------------------


def _kernel(data: ReportData, k: KernelData, most: int = 0) -> list[str]:
    """Return a kernel's lines: its operators in order, then its text."""
    share = ""
    total = sum(kernel_time(x) for x in data.kernels if x.within is None)
    if len(data.kernels) > 1 and total:
        often = 1 if k.within is None else k.rounds
        share = f", {100 * often * kernel_time(k) / total:.0f} % of the time"
    lines = [f"{k.name}{share}: {_compiled(k)}"]
    lines += _wrapped(
        [
            _step(data, o.node, o.recomputed)
            for o in k.operators
            if data.nodes[o.node].kind != "constant"
        ]
    )
    if any(o.recomputed for o in k.operators):
        lines.append("  (* is computed in another kernel too)")
    text = (k.text or "").splitlines()
    if most and len(text) > most:
        left = len(text) - most + 1
        text = [*text[: most - 1], f"  ... {left} lines more: {_report_name(data, k)}.text"]
    return lines + [f"  {line}" for line in text]


def _report_name(data: ReportData, k: KernelData) -> str:
    """Return the expression that accesses an entry in a report."""
    attribute = "checks" if k.kind == "check" else "kernels"
    same_kind = [x.id for x in data.kernels if (x.kind == "check") == (k.kind == "check")]
    return f"report.{attribute}[{same_kind.index(k.id)}]"


def _compiled(k: KernelData) -> str:
    """Return `reads 1.20 MB, writes 1.20 MB, 1.5 M flops, compiled in 34 ms`."""
    words = [f"reads {show_bytes(k.read_bytes)}", f"writes {show_bytes(k.written_bytes)}"]
    if k.flops:
        words.append(f"{_millions(k.flops)} flops")
    if k.transcendentals:
        words.append(f"{_millions(k.transcendentals)} special functions")
    c = k.compile
    seconds = sum(s for s in (c.lower_seconds, c.emit_seconds, c.load_seconds) if s is not None)
    how = {
        "hit-memory": "code known already",
        "hit-disk": "code from the cache",
        "miss": f"compiled in {show_time(seconds * 1e9)}",
        "none": "",
    }[c.cache]
    return ", ".join(words + ([how] if how else []))


def _millions(count: int) -> str:
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return str(count)


def _step(data: ReportData, node: int, recomputed: bool) -> str:
    place = short_place(data.nodes[node].place)
    mark = "*" if recomputed else ""
    return f"{data.nodes[node].label}{mark}" + (f" {place}" if place else "")


def _wrapped(words: Sequence[str]) -> list[str]:
    """Wrap words into lines; omit a place that equals that of the previous word."""
    lines: list[str] = []
    before = ""
    for word in words:
        name, _, place = word.partition(" ")
        shown = name if place == before or not place else f"{name} [{place}]"
        before = place or before
        if lines and len(lines[-1]) + 2 + len(shown) <= WIDTH:
            lines[-1] += f"  {shown}"
        else:
            lines.append(f"  {shown}")
    return lines


# ---- refused fusions ---------------------------------------------------------------------------


def refusals(data: ReportData) -> list[DecisionData]:
    """Return the refused fusions that would have saved most, in descending order.

    They are the last verdicts. Pairs that share a kernel after all are left out.
    """
    last_verdicts: dict[tuple[str, str], DecisionData] = {}
    for d in data.decisions:
        if d.verdict == "split" and not _share_kernel(data, d):
            last_verdicts[d.a, d.b] = d
    costly = [d for d in last_verdicts.values() if d.saves_bytes or d.saves_ns]
    costly.sort(key=lambda d: (-d.saves_ns, -d.saves_bytes, d.id))
    return costly[:MAX_REFUSALS]


def _share_kernel(data: ReportData, d: DecisionData) -> bool:
    if d.a_node is None or d.b_node is None:
        return False
    return bool(set(data.nodes[d.a_node].kernels) & set(data.nodes[d.b_node].kernels))


def _refusals(refused: Sequence[DecisionData]) -> list[str]:
    """Return a call to paste, then what is at stake for each pair, and why."""
    first = refused[0]
    call = f'report.why("{first.a_label}", "{first.b_label}")'
    lines = [f"kept apart, most to save first ({call} says more)"]
    for d in refused:
        place = short_place(d.b_place) or short_place(d.a_place)
        pair = f"{d.a_label} and {d.b_label}" + (f" [{place}]" if place else "")
        lines.append(f"  {pair}: one kernel {_stake(d)}")
        lines += wrap(
            f"{d.code} {d.reason}: {d.sentence}",
            WIDTH,
            initial_indent="    ",
            subsequent_indent="      ",
        )
    return lines


def _stake(d: DecisionData) -> str:
    """Return `would move 25.2 MB less, but take 910 us longer`."""
    saved = f"move {show_bytes(d.saves_bytes)} less" if d.saves_bytes else ""
    saved = saved or f"save {show_time(d.saves_ns)}"
    if not d.costs_ns:
        return f"would {saved}"
    if is_net(d, d.costs_ns):
        return f"would {saved}, but take {show_time(d.costs_ns)} longer"
    return f"would {saved}, but spend {show_time(d.costs_ns)} on other work"
