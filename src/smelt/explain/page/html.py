r"""Write the page of a report from its JSON data alone.

    text = html(report.to_data(page=True))

The page requests nothing: styles and scripts are inline, and its Content-Security-Policy allows
them by digest and nothing else. Scripts are ES modules in `static`, joined into one script. The
overview is plain HTML too, for readers without scripts.

>>> _escaped_json({"name": "</script>"})
'{"name": "\\u003c/script\\u003e"}'
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from smelt.explain.sentence import sentence
from smelt.explain.units import show_bytes, show_count, show_time
from smelt.python.dataclass import dataclass

FOLDER = Path(__file__).parent / "static"
MODULES = (
    "core",
    "overview",
    "why",
    "cells",
    "kernel",
    "decision",
    "graph",
    "blocks",
    "accesses",
    "steps",
    "transfers",
    "memory",
    "compile",
    "learn",
    "main",
)
"""Modules of the page, each after those that it imports."""
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (const|function) (\w+)", re.MULTILINE)

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A program of a page with several: what it is, its source and its report's data.

    Programs without source are the parts of one, which run one after another.
    """

    title: str
    text: str
    code: str
    data: Data


def html(data: Data) -> str:
    """Return the page of a report that has the page's data."""
    return _page(f"{data['name']}: what was fused", data, _summary(data), [("report", data)])


def lessons_html(lessons: Sequence[Lesson], title: str) -> str:
    """Return one page with several programs; it opens on the first one."""
    listed = [
        {
            "title": x.title,
            "text": x.text,
            "code": x.code,
            "name": x.data["name"],
            "sentence": sentence(x.data["total"]),
            "under": _under(x.data),
        }
        for x in lessons
    ]
    scripts: list[tuple[str, Any]] = [("lessons", listed)]
    scripts += [(f"report-{k}", x.data) for k, x in enumerate(lessons)]
    return _page(title, lessons[0].data, _lessons(lessons, title), scripts)


def _page(title: str, data: Data, body: Iterable[str], scripts: Sequence[tuple[str, Any]]) -> str:
    style, script = _style(), _script()
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            *_header(data),
            '<nav aria-label="views"><div id="tabs" role="tablist"></div></nav>',
            '<main id="view" role="tabpanel" tabindex="-1">',
            *body,
            "</main>",
            *(
                f'<script type="application/json" id="{name}">{_escaped_json(value)}</script>'
                for name, value in scripts
            ),
            f'<script type="module">{script}</script>',
            "</body>",
            "</html>",
            "",
        ]
    )


def frame(page: str, height: int = 760) -> str:
    """Return a page inside of a sandboxed frame, for a notebook."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{height}" '
        f'frameborder="0" srcdoc="{escape(page)}"></iframe>'
    )


def _escaped_json(data: Any) -> str:
    """Return JSON without characters that would end a script element."""
    text = json.dumps(data, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _style() -> str:
    return (FOLDER / "page.css").read_text(encoding="utf-8")


@cache
def _script() -> str:
    """Return all modules as one: each becomes a function's scope that returns its exports."""
    parts = ["const modules = {};\n"]
    for name in MODULES:
        text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
        exports = ", ".join(match[2] for match in _EXPORT.finditer(text))
        body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(r"const \1 = modules.\2;", text))
        parts.append(f"modules.{name} = (() => {{\n{body}return {{ {exports} }};\n}})();\n")
    return "".join(parts)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---- what can be read without scripts ----------------------------------------------------------


def _header(data: Data) -> Iterator[str]:
    yield '<header class="top"><div>'
    yield f"<h1>{escape(data['name'])}</h1>"
    yield f'<p class="lead">{escape(sentence(data["total"]))}</p>'
    yield f'<p class="under">{escape(_under(data))}</p>'
    yield '</div><div class="tools"><button type="button" id="theme">theme</button>'
    yield '<button type="button" id="help" aria-label="keyboard help">?</button></div></header>'


def _under(data: Data) -> str:
    """Return the line with sizes and machine."""
    t = data["target"]
    sizes = " ".join(f"{name}={n}" for name, n in data["sizes"].items())
    machine = f"{t['name']}, {show_count(t['cores'], 'core')}, {t['isa']}"
    return " · ".join(x for x in (sizes, machine) if x)


def _lessons(lessons: Sequence[Lesson], title: str) -> Iterator[str]:
    yield f"<h2>{escape(title)}</h2>"
    yield '<noscript><p class="note">The pictures need scripts.</p></noscript>'
    for x in lessons:
        yield f"<h3>{_marked(x.title)}</h3><p>{_marked(x.text)}</p>"
        if x.code:
            yield f'<pre class="text">{escape(x.code)}</pre>'
        yield f"<p>{escape(sentence(x.data['total']))}</p>"
        yield from _rows(["", "without fusion", "with fusion"], _total_rows(x.data))


def _marked(text: str) -> str:
    """Return escaped text with what is between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if k % 2 else p for k, p in enumerate(parts))


def _summary(data: Data) -> Iterator[str]:
    yield "<h2>Overview</h2>"
    yield '<noscript><p class="note">The other views need scripts.</p></noscript>'
    yield from _rows(["", "without fusion", "with fusion"], _total_rows(data))
    yield "<h3>Kernels</h3>"
    yield from _rows(["kernel", "operators", "reads", "writes"], _kernel_rows(data))
    refused = [d for d in data["decisions"] if d["verdict"] == "split"]
    if refused:
        yield "<h3>Not fused</h3>"
        yield from _rows(
            ["pair", "reason", "because"],
            [
                [f"{d['a_label']} → {d['b_label']}", f"{d['code']} {d['reason']}", d["sentence"]]
                for d in refused
            ],
        )


def _total_rows(data: Data) -> list[list[Any]]:
    t = data["total"]
    measured, predicted = t["measured"], t["predicted_ns"]
    time = show_time(measured["median_ns"]) if measured else "not measured"
    return [
        ["kernels and calls", data["page"]["launches_unfused"], t["kernels"] + t["calls"]],
        ["bytes through memory", show_bytes(t["bytes_unfused"]), show_bytes(t["bytes"])],
        ["arrays read and written", t["transfers_unfused"], t["transfers"]],
        ["time, measured", "", time],
        ["time, predicted", "", "unknown" if predicted is None else show_time(predicted)],
        ["time for memory alone", "", show_time(t["floor_ns"])],
    ]


def _kernel_rows(data: Data) -> list[list[Any]]:
    nodes = data["nodes"]
    return [
        [
            k["name"],
            " ".join(
                nodes[o["node"]]["label"]
                for o in k["operators"]
                if nodes[o["node"]]["kind"] != "constant"
            ),
            show_bytes(k["read_bytes"]),
            show_bytes(k["written_bytes"]),
        ]
        for k in data["kernels"]
    ]


def _rows(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    yield "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"
