"""The page's data and its file: numbers agree with the report, runs with NumPy, names stay text."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re

import msgspec
import numpy as np
import pytest
from tests.explain import programs
from tests.explain.page_programs import PROGRAMS, data, report

import smelt as sm
from smelt import knobs
from smelt.errors import ArgumentError
from smelt.explain import page
from smelt.explain.api import report as report_of
from smelt.explain.data import ReportData
from smelt.explain.page import accesses, small_run
from smelt.explain.page.html import FOLDER, MODULES
from smelt.explain.page.layout import ROW, layout_graph
from smelt.explain.sentence import sentence
from smelt.kernel import interp
from smelt.kernel.text import parse

NAMES = list(PROGRAMS)


# --- every form of a kernel ---------------------------------------------------------------------

FORMS = {
    "parts of a sum": (lambda x: sm.sum(x, axis=0), "f32[512,768]"),
    "parts of a mean": (lambda x: sm.mean(x, axis=0), "f32[512,768]"),
    "parts of a variance": (lambda x: sm.var(x, axis=0), "f32[512,768]"),
    "parts of a whole sum": (sm.sum, "f32[1000000]"),
    "parts of positions": (lambda x: sm.argmax(x, axis=0), "f32[512,768]"),
    "parts of softmax": (lambda x: sm.nn.softmax(x, axis=0), "f32[4096,16]"),
    "parts of a product": (lambda x: x.T @ x, "f32[8192,24]"),
    "gradient of a bias": (sm.grad(lambda b: sm.sum(sm.tanh(sm.ones((512, 768)) + b))), "f32[768]"),
    "gradient of a norm": (
        sm.grad(lambda g: sm.sum(sm.nn.layer_norm(sm.ones((512, 768)), g) ** 2)),
        "f32[768]",
    ),
    "running sum": (lambda x: sm.cumulative_sum(x, axis=0), "f32[512,768]"),
    "loop": (lambda x: sm.scan(lambda c, y: (c + y, sm.exp(c)), x[0], x)[1], "f32[32,768]"),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_kernel_has_a_page(name, tmp_path):
    """Sizes are known and unknown, grids have parts, blocks and loops."""
    f, kind = FORMS[name]
    unknown = re.sub(r"\d{2,}(?=[,\]])", lambda m: f"n{m.group()}", kind)
    for text in dict.fromkeys([kind, unknown] if "gradient" not in name else [kind]):
        result = sm.explain(f, sm.spec(text))
        assert result.save(tmp_path / "x.html").stat().st_size
        assert "iframe" in result._repr_html_()


# --- the data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_data_has_the_schema(name):
    text = json.dumps(data(name), allow_nan=False)
    decoded = msgspec.json.decode(text, type=ReportData, strict=True)
    assert decoded.page is not None
    assert json.loads(text) == json.loads(msgspec.json.encode(decoded))


@pytest.mark.parametrize("name", NAMES)
def test_transfers_add_up_to_the_totals(name):
    d = data(name)
    rows, total = d["page"]["transfers"], d["total"]
    assert sum(r["read_bytes"] + r["written_bytes"] for r in rows) == total["bytes"]
    unfused = sum(r["read_bytes_unfused"] + r["written_bytes_unfused"] for r in rows)
    assert unfused == total["bytes_unfused"]
    assert sum(r["reads"] + r["writes"] for r in rows) == total["transfers"]
    assert sum(r["least_bytes"] for r in rows) <= total["bytes"]


@pytest.mark.parametrize("name", NAMES)
def test_fused_and_unfused_runs_give_the_same_values(name):
    run = data(name)["page"]["run"]
    assert run["fused"] and run["unfused"], run["note"]
    results = {a["node"]: a for r in run["unfused"] for a in r["arrays"] if a["role"] == "out"}
    for kernel in run["fused"]:
        for a in kernel["arrays"]:
            if a["role"] == "out":
                expected = np.array(results[a["node"]]["values"], float)
                np.testing.assert_allclose(
                    np.array(a["values"], float), expected, rtol=1e-4, atol=1e-5
                )
    assert sum(r["loaded"] + r["stored"] for r in run["fused"]) < sum(
        r["loaded"] + r["stored"] for r in run["unfused"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_written_by_one_block(name):
    for kernel in data(name)["page"]["run"]["fused"]:
        for a in kernel["arrays"]:
            if a["role"] == "out":
                stored = [
                    c
                    for b in kernel["blocks"]
                    for cells in b["stores"]
                    if cells["array"] == a["name"]
                    for c in cells["cells"]
                ]
                assert sorted(stored) == list(range(len(a["values"])))


def test_the_running_maximum_is_that_of_the_scores():
    run = data("attention")["page"]["run"]["fused"][0]
    q, k = (np.array(a["values"], np.float64).reshape(a["shape"])[0, 0] for a in run["arrays"][:2])
    scores = q @ k.T / np.sqrt(q.shape[-1])
    update = next(
        s for s in run["steps"] if s["kind"] == "state" and "max(" in s["text"] and s["visit"]
    )
    states = [s for s in run["steps"] if s["name"] == update["name"] and s["block"] == 0]
    visits = {s["visit_number"]: s["value"] for s in states if s["kind"] == "state"}
    assert sorted(visits) == [0, 1, 2, 3, 4]
    rows = visits[3]["shape"][0]
    block = scores.shape[1] // 4
    np.testing.assert_allclose(
        visits[3]["values"], scores[:rows, : 3 * block].max(axis=1), rtol=1e-5
    )


def test_sizes_shrink_where_the_program_allows_it():
    run = data("log_relu")["page"]["run"]
    assert max(run["sizes"].values()) <= 8
    assert not run["original"]


def heads(x, w, o):
    n, t, d = x.shape
    h = sm.permute_dims(sm.reshape(x @ w, (n, t, 12, d // 12)), (0, 2, 1, 3))
    y = sm.permute_dims(sm.nn.attention(h, h, h), (0, 2, 1, 3))
    return sm.reshape(y, (n, t, d)) @ o


FIXED = {
    "elementwise": (lambda x: sm.exp(x + 1.0), ("f32[300,100]",)),
    "softmax": (lambda x: sm.nn.softmax(x, axis=-1), ("f32[512,768]",)),
    "heads": (heads, ("f32[2,128,768]", "f32[768,768]", "f32[768,768]")),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_sizes_are_generalised_to_be_played(name):
    f, types = FIXED[name]
    d = sm.explain(f, *map(sm.spec, types)).to_data(page=True)
    run = d["page"]["run"]
    assert not run["note"]
    assert all(run["sizes"][s] < n for s, n in run["original"].items() if n > 4)
    assert {r["kernel"] for r in run["fused"]} == {k["id"] for k in d["kernels"]}
    results = {a["node"]: a for r in run["unfused"] for a in r["arrays"] if a["role"] == "out"}
    for a in (a for r in run["fused"] for a in r["arrays"] if a["role"] == "out"):
        assert a["shape"] == results[a["node"]]["shape"]
        np.testing.assert_allclose(a["values"], results[a["node"]]["values"], rtol=1e-4, atol=1e-5)


def test_the_first_kernels_of_a_long_program_are_played(monkeypatch):
    monkeypatch.setattr(small_run, "MAX_KERNELS", 1)
    run = report("layer").to_data(page=True)["page"]["run"]
    assert [r["kernel"] for r in run["fused"]] == [0]
    assert run["note"] == "The first 1 of 2 kernels are shown."
    shown = set(run["fused"][0]["nodes"])
    assert all(shown.intersection(r["nodes"]) for r in run["unfused"])


def test_sizes_that_cannot_shrink_are_explained():
    f = lambda x, w: sm.nn.relu(sm.nn.conv(x, w))  # noqa: E731
    d = sm.explain(f, sm.spec("f32[2,64,56,56]"), sm.spec("f32[64,64,3,3]")).to_data(page=True)
    note = d["page"]["run"]["note"]
    assert "cannot be made smaller" in note and note.endswith(".")
    assert page.html(d).count("<h2>") == 1


def test_differences_are_those_of_the_bits():
    run = data("attention")["page"]["run"]["fused"][0]
    steps = [s for s in run["steps"] if s["difference"]]
    assert {s["difference"]["kind"] for s in steps} == {"rounding", "interim"}
    for s in steps:
        d = s["difference"]
        assert s["compared"] and d["fused"] != d["unfused"] and d["cells"]
        assert (d["kind"] == "interim") == (s["kind"] == "state")
        near = abs(d["fused"] - d["unfused"]) < 1e-5
        assert near == (d["kind"] == "rounding")
    same = data("log_relu")["page"]["run"]["fused"][0]["steps"]
    assert any(s["compared"] for s in same) and not any(s["difference"] for s in same)


@pytest.mark.parametrize("name", programs.TEXTS)
def test_every_program_has_a_page(name):
    with knobs.config(cache=False):
        d = report_of(programs.compiled(name), programs.SIZES).to_data(page=True)
    msgspec.json.decode(json.dumps(d, allow_nan=False), type=ReportData, strict=True)
    drawn = {p["node"] for p in d["page"]["layout"]["nodes"]}
    assert drawn >= {n["id"] for n in d["nodes"] if n["kind"] == "operator" and n["output"]}
    assert sentence(d["total"]) in page.html(d).replace("&#x27;", "'")


# --- accesses -----------------------------------------------------------------------------------

KERNELS = {
    "rows": "kernel k(x: f32[r,c], b: f32[c]) -> y: f32[r,c]\n"
    " grid r, c/4096\n y[r,c] = x[r,c] + b[c]",
    "transposed": "kernel k(x: f32[c,r]) -> y: f32[r,c]\n grid r, c/4096\n y[r,c] = x[c,r]",
    "every other": "kernel k(x: f32[2*c]) -> y: f32[c]\n grid c/4096\n y[c] = x[2*c]",
    "row sums": "kernel k(x: f32[r,c]) -> y: f32[r]\n grid r\n y[r] = sum(x[r,c] over c)",
}
EXPECTED = {
    "rows": [("contiguous", 4), ("contiguous", 4), ("contiguous", 4)],
    "transposed": [("strided", 32), ("contiguous", 4)],
    "every other": [("strided", 8), ("contiguous", 4)],
    "row sums": [("contiguous", 4), ("same", 1)],
}


class Logged:
    """Keeps what the first block of the grid accesses, in the interpreter's order."""

    def __init__(self):
        self.blocks, self.cells = 0, {}

    def block(self, place):
        self.blocks += 1

    def visit(self, stream, place):
        pass

    def statement(self, statement, place):
        for name, buffer in (*place.inputs.items(), *place.outputs.items()):
            for _, cells in buffer.log:
                if self.blocks == 1:
                    self.cells.setdefault(name, []).extend(cells.reshape(-1).tolist())
            buffer.log.clear()


@pytest.mark.parametrize("name", KERNELS)
def test_lanes_are_what_the_interpreter_accesses(name):
    kernel, sizes = parse(KERNELS[name]), {"r": 64, "c": 32}
    patterns = accesses.access_patterns(0, kernel, sizes)
    chosen = [a.lanes[a.chosen] for a in patterns]
    assert [(lanes.kind, lanes.sectors) for lanes in chosen] == EXPECTED[name]
    inputs = [
        np.zeros([eval(str(d), dict(sizes)) for d in p.shape], np.float32) for p in kernel.inputs
    ]
    logged = Logged()
    interp.run(kernel, inputs, sizes, observer=logged)
    for pattern, lanes in zip(patterns, chosen, strict=True):
        if lanes.kind != "same":
            assert list(lanes.offsets) == logged.cells[pattern.array][: accesses.LANES]
            assert lanes.sectors == len({o * 4 // 32 for o in logged.cells[pattern.array]})


def test_positions_from_data_count_as_scattered():
    kernel = parse(
        "kernel k(i: i64[n], x: f32[m]) -> y: f32[n]\n grid n/4096\n"
        " p = position(i[n], m)\n y[n] = x[p]"
    )
    patterns = accesses.access_patterns(0, kernel, {"n": 64, "m": 9})
    gather = next(a for a in patterns if a.array == "x")
    lanes = gather.lanes[gather.chosen]
    assert (lanes.kind, lanes.sectors, lanes.least) == ("scattered", 32, 4)


# --- the layout ---------------------------------------------------------------------------------


def test_nodes_of_a_layer_do_not_overlap():
    inputs = {0: (), **dict.fromkeys(range(1, 8), (0,)), 8: tuple(range(1, 8)), 9: (0, 8)}
    drawn = layout_graph(inputs, {k: f"operator#{k}" for k in inputs})
    layers = {}
    for p in drawn.nodes:
        layers.setdefault(p.y, []).append(p)
        assert p.x - p.width / 2 >= 0 and p.x + p.width / 2 <= drawn.width
    for layer in layers.values():
        layer.sort(key=lambda p: p.x)
        for a, b in itertools.pairwise(layer):
            assert a.x + a.width / 2 < b.x - b.width / 2
    long = next(e for e in drawn.edges if (e.producer, e.reader) == (0, 9))
    assert [y for _, y in long.points] == [40 + ROW * k for k in range(4)]


# --- the file -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text():
    return page.html(data("log_relu"))


def test_the_policy_allows_its_own_scripts_and_nothing_else(text):
    policy = re.search(r'Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none';")
    for tag, source in (("style", "style-src"), ('script type="module"', "script-src")):
        body = re.search(rf"<{tag}>(.*?)</{tag.split()[0]}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{source} 'sha256-{digest}'" in policy
    assert not re.search(r'(?:src|href|url)\s*[=(]\s*["\']?https?:', text)
    assert " style=" not in text and " onclick=" not in text


def test_the_page_is_small_without_its_data(text):
    body = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.DOTALL)
    assert len(body.encode()) < 300_000


def test_the_overview_is_there_without_scripts(text):
    plain = text[: text.index("<script")]
    d = data("log_relu")
    said = "4 operators became 1 kernel; 1.05 MB through memory became 263 kB (4.0x less)"
    assert sentence(d["total"]) == said and said in plain
    assert all(k["name"] in plain for k in d["kernels"])


def test_hostile_names_stay_text():
    d = json.loads(json.dumps(data("log_relu")))
    hostile = "</script><script>alert(1)</script>&amp;"
    d["name"] = d["nodes"][0]["label"] = d["kernels"][0]["name"] = hostile
    written = page.html(d)
    assert "<script>alert" not in written
    embedded = re.search(r'id="report">(.*?)</script>', written, re.DOTALL)[1]
    assert json.loads(embedded)["name"] == hostile


def luminance(colour):
    channels = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast(theme):
    style = (FOLDER / "page.css").read_text()
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", re.split(r"@media", style)[theme]))
    texts = ["ink", "soft", "good", "bad", "cool", "accent", *(f"p{k}" for k in range(8))]
    for text, behind in itertools.product(texts, ("paper", "card")):
        low, high = sorted((luminance(colours[text]), luminance(colours[behind])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, behind)


def test_modules_are_listed_after_those_they_import():
    assert {p.stem for p in FOLDER.glob("*.js")} == set(MODULES)
    for at, name in enumerate(MODULES):
        source = (FOLDER / f"{name}.js").read_text()
        for other in re.findall(r'from "\./(\w+)\.js"', source):
            assert other in MODULES[:at], f"{name} imports {other}"
    assert "import " not in re.sub(r"//.*", "", page.html(data("log_relu")).split("modules", 1)[1])


def test_save_writes_what_the_name_says(tmp_path):
    result = report("log_relu")
    assert result.save(tmp_path / "x.html", code=False).read_text().startswith("<!doctype html>")
    assert json.loads(result.save(str(tmp_path / "x.json")).read_text())["name"] == "log_relu"
    with pytest.raises(ArgumentError, match=r"\.html"):
        result.save(tmp_path / "x.txt")


def test_a_notebook_shows_the_page_in_a_frame_without_rights():
    shown = report("log_relu")._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts allow-downloads"')
    assert shown.count("<") == 2 and "allow-same-origin" not in shown
