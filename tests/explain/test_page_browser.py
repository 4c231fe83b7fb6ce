"""The page in a real browser: twelve questions in three clicks, keyboard, themes, widths."""

from __future__ import annotations

import itertools
import json
import re
import statistics
import time

import msgspec
import numpy as np
import pytest
from tests.explain.page_programs import PROGRAMS, data, report

import smelt as sm
from demo import classics
from smelt import knobs
from smelt.explain import page
from smelt.explain.data import NodeData
from smelt.explain.page.layout import layout_of
from smelt.explain.units import show_bytes, show_time

browser = pytest.importorskip("tests.explain.browser", reason="selenium is not installed")

pytestmark = [
    pytest.mark.skipif(
        browser.program() is None, reason="no Chromium with chromedriver is installed"
    ),
    pytest.mark.timeout(300),
]
VIEWS = [
    "overview",
    "graph",
    "decision",
    "kernel",
    "blocks",
    "access",
    "step",
    "transfers",
    "memory",
    "compile",
]
"""Views in the order of the keys 1 to 9 and 0; `learn` has the key l."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for name in PROGRAMS:
        paths[name] = folder / f"{name}.html"
        code = name == "log_relu"
        paths[name].write_text(page.html(report(name).to_data(page=True, code=code)))
    return paths


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    opened = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def visit(chromium, pages):
    """Open a program's page at 1280 columns, without a problem in the console before or after."""
    chromium.resize(1280)
    chromium.problems()

    def opened(name, fragment=""):
        chromium.open(pages[name], fragment)
        return chromium

    yield opened
    assert chromium.clicks <= 3
    assert not chromium.problems()


def tab(name):
    return f"#tab-{name}"


# --- twelve questions ---------------------------------------------------------------------------


def test_how_many_bytes_did_fusion_save(visit):
    b = visit("log_relu")
    b.click(tab("transfers"))
    total = data("log_relu")["total"]
    saved = show_bytes(total["bytes_unfused"] - total["bytes"])
    assert f"Fusion saves {saved} of {show_bytes(total['bytes_unfused'])}" in b.text()


def test_why_was_it_not_fused(visit):
    b = visit("looked_up")
    b.click(tab("decision"))
    d = next(d for d in data("looked_up")["decisions"] if d["verdict"] == "split")
    shown = b.text(".answer")
    assert "not in one kernel" in shown and d["code"] in shown and d["sentence"] in shown
    assert show_time(d["fused_ns"]) in shown and show_time(d["split_ns"]) in shown


def test_why_are_these_two_in_one_kernel(visit):
    b = visit("log_relu")
    nodes = {n["label"]: n["id"] for n in data("log_relu")["nodes"]}
    b.click(tab("graph"))
    b.click(f'[data-node="{nodes["add#0"]}"]')
    b.click(f'[data-node="{nodes["maximum#1"]}"]')
    shown = b.text(".answer")
    assert "are in one kernel: k0." in shown and "F101 saves-traffic" in shown


def test_what_would_it_cost_the_other_way(visit):
    b = visit("looked_up")
    b.click(tab("decision"))
    b.click(".toggle input")
    d = next(d for d in data("looked_up")["decisions"] if d["verdict"] == "split")
    ns = data("looked_up")["total"]["predicted_ns"] + d["fused_ns"] - d["split_ns"]
    assert f"would take about {show_time(ns)} instead of" in b.text(".supposed")


def test_what_was_there_before_the_first_decision(visit):
    b = visit("log_relu")
    b.click(tab("graph"))
    b.click('[aria-label="no fusion"]')
    total = data("log_relu")["total"]
    assert f"No fusion: 4 kernels, {show_bytes(total['bytes_unfused'])}" in b.text(".said")


def test_which_block_writes_this_cell(visit):
    b = visit("log_relu")
    b.click(tab("blocks"))
    run = data("log_relu")["page"]["run"]["fused"][0]
    y = next(a for a in run["arrays"] if a["role"] == "out")
    last = len(y["values"]) - 1
    owner = next(k for k, x in enumerate(run["blocks"]) if last in x["stores"][0]["cells"])
    b.click(f'.operand:last-child [data-cell="{last}"]')
    shown = b.text("#block-said")
    assert shown.startswith(f"y[{y['shape'][0] - 1},{y['shape'][1] - 1}]: block {owner} of")
    lit = b.run("return [...document.querySelectorAll('.operand:first-child .lit')].length")
    assert lit == len(run["blocks"][owner]["loads"][0]["cells"])


def test_is_this_load_coalesced(visit):
    b = visit("log_relu")
    b.click(tab("access"))
    assert b.text("#access-said").startswith("coalesced")
    assert "touch 4 sectors of 32 bytes" in b.text("#access-said")
    assert b.run("return document.querySelectorAll('.sector').length") == 4


def test_what_is_the_running_maximum_after_block_3(visit):
    b = visit("attention")
    b.click(tab("step"))
    run = data("attention")["page"]["run"]["fused"][0]
    q, k = (np.array(a["values"]).reshape(a["shape"])[0, 0] for a in run["arrays"][:2])
    scores = q @ k.T / np.sqrt(q.shape[-1])
    row = b.text('[data-visit="3"]')
    assert row.startswith("after block 3")
    shown = float(b.text('[data-visit="3"] [data-state]').split()[0])
    assert shown == pytest.approx(scores[0, : 3 * scores.shape[1] // 4].max(), rel=1e-3)
    assert "running maximum" in b.text("#carried thead")


def test_how_many_memory_operations_does_it_take(visit):
    b = visit("log_relu")
    b.click(tab("step"))
    b.click('[aria-label="last step"]')
    run = data("log_relu")["page"]["run"]
    counts = [
        sum(r[key] for r in runs) for runs in (run["fused"], run["unfused"]) for key in RUN_COUNTS
    ]
    shown = b.run("return [...document.querySelectorAll('.counter strong')].map(x => +x.innerText)")
    assert shown == counts
    assert counts[0] + counts[1] < counts[2] + counts[3]


RUN_COUNTS = ("loaded", "stored")


def test_where_do_fused_and_unfused_values_differ(visit):
    b = visit("attention")
    b.click(tab("step"))
    b.click("#next-difference")
    steps = data("attention")["page"]["run"]["fused"][0]["steps"]
    at = next(k for k, s in enumerate(steps) if s["difference"])
    difference = steps[at]["difference"]
    assert b.text(".said").startswith(f"Step {at + 1} of")
    shown = b.text("#difference-said")
    assert f"{difference['fused']:g} so far, {difference['unfused']:g} in the end" in shown
    assert b.run("return document.querySelectorAll('td.off').length") == len(difference["cells"])


def test_no_difference_is_said(visit):
    b = visit("log_relu")
    b.click(tab("step"))
    assert "No step differs" in b.text("#difference-said")
    assert b.run("return document.getElementById('next-difference').disabled")


def test_which_axis_is_streamed(visit):
    b = visit("attention")
    b.click(tab("kernel"))
    axes = data("attention")["kernels"][0]["axes"]
    streamed = next(a for a in axes if a["role"] == "stream")
    rows = b.run("return [...document.querySelectorAll('tr[data-for]')].map(r => r.innerText)")
    assert any(r.startswith(streamed["name"]) and "block by block" in r for r in rows)


def test_which_instructions_run(visit):
    b = visit("log_relu")
    b.click(tab("kernel"))
    b.click(".controls button:last-child")
    assert "ret" in b.text("pre.text")


def test_what_is_stored_between_kernels(visit):
    b = visit("layer")
    b.click(tab("memory"))
    d = data("layer")
    arena = [x for x in d["buffers"] if x["place"] == "arena"]
    assert arena
    assert b.run("return document.querySelectorAll('.buffer').length") == len(arena)
    assert all(d["nodes"][x["node"]]["label"] in b.text() for x in arena)


def test_which_pass_took_longest(visit):
    b = visit("layer")
    b.click(tab("compile"))
    seconds = {}
    for p in data("layer")["passes"]:
        seconds[p["name"]] = seconds.get(p["name"], 0) + p["seconds"]
    assert max(seconds, key=seconds.get) in b.text(".two section:last-child .bar-label")


# --- the page agrees with the package -----------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_for_every_pair_are_those_of_the_report(visit, name):
    b = visit(name)
    d, result = data(name), report(name)
    numbers = [n["id"] for n in d["nodes"] if n["kind"] != "constant"]
    pairs = list(itertools.combinations(numbers, 2))
    shown = b.run(
        "return arguments[0].map(([a, b]) => window.smeltWhy(a, b))",
        pairs,
    )
    nodes = list(result.compiled.plan.graph.nodes())
    for (x, y), answer in zip(pairs, shown, strict=True):
        expected = result.why(nodes[x], nodes[y])
        assert tuple(answer["together"]) == expected.kernels, (x, y)
        assert tuple(answer["decisions"]) == expected.decisions, (x, y)


def test_numbers_look_as_in_the_text(visit):
    b = visit("log_relu")
    numbers = [0, 1, 999, 999.6, 1000, 12345, 1e6 - 1, 9.9951e5, 1.5e9, 3.2e12]
    shown = b.run("return arguments[0].map(x => window.smeltNumbers(x))", numbers)
    assert shown == [[show_bytes(x), show_time(x)] for x in numbers]


# --- every view, in every form ------------------------------------------------------------------


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_without_problems(visit, width, scheme):
    b = visit("layer")
    b.resize(width)
    b.prefer(prefers_color_scheme=scheme)
    for name, view in itertools.product(("layer", "attention"), [*VIEWS, "learn"]):
        visit(name, view)
        assert "cannot be drawn" not in b.text() and len(b.text()) > 100, view
        overflow = b.run("return document.documentElement.scrollWidth - window.innerWidth")
        assert overflow <= 0, (name, view)
    dark = b.run("return getComputedStyle(document.body).backgroundColor") != "rgb(251, 250, 248)"
    assert dark == (scheme == "dark")
    b.prefer()


UNUSUAL = {
    "identity": (lambda x: x, ("f32[3]",)),
    "scalar": (lambda x: x * 2, ("f32[]",)),
    "empty": (lambda x: x * 2, ("f32[0,4]",)),
    "chunks": (sm.sort, ("f32[100,100]",)),
    "image": (lambda x, w: sm.nn.relu(sm.nn.conv(x, w)), ("f32[1,3,16,16]", "f32[4,3,3,3]")),
    "scatter": (lambda x, i: x.at[i].add(1.0), ("f32[64]", "i64[5]")),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_programs_are_drawn(chromium, tmp_path, name):
    f, types = UNUSUAL[name]
    path = tmp_path / f"{name}.html"
    path.write_text(page.html(sm.explain(f, *map(sm.spec, types)).to_data(page=True)))
    for view in (*VIEWS, "learn"):
        chromium.open(path, view)
        shown = chromium.text()
        assert not re.search(r"cannot be drawn|NaN|undefined|\[object", shown), view
    assert not chromium.problems()


def test_keys_open_views_and_step(visit):
    b = visit("log_relu")
    for at, view in enumerate(VIEWS):
        b.press(str((at + 1) % 10))
        assert b.run("return location.hash").startswith(f"#{view}")
    b.press("l")
    assert b.run("return location.hash").startswith("#learn")
    b.press("7")
    b.press("ARROW_RIGHT")
    b.press("ARROW_RIGHT")
    assert "Step 3 of" in b.text(".said")
    b.press("ARROW_LEFT")
    assert "Step 2 of" in b.text(".said")
    b.press("END")
    b.press("ARROW_LEFT")
    last = len(data("log_relu")["page"]["run"]["fused"][0]["steps"])
    assert int(b.text(".said").split()[1]) >= last - 1
    b.press("HOME")
    assert "Step 1 of" in b.text(".said")
    b.press("?")
    assert "Keyboard" in b.text("dialog")


def test_nodes_and_cells_can_be_chosen_with_the_keyboard(visit):
    b = visit("log_relu", "graph")
    b.run("document.querySelector('.node.operator').focus()")
    b.run(
        "document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))"
    )
    assert b.run("return document.querySelectorAll('.node.chosen').length") == 1
    assert b.run("return document.activeElement.classList.contains('node')")


def test_the_focus_stays_where_it_was(visit):
    b = visit("log_relu", "graph")
    for selector in ('[data-node="0"]', '[aria-label="one decision back"]'):
        b.run("document.querySelector(arguments[0]).focus()", selector)
        before = b.run("return document.activeElement.outerHTML.slice(0, 60)")
        b.run(
            "document.activeElement.dispatchEvent("
            "new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}))"
        )
        assert b.run("return document.activeElement.outerHTML.slice(0, 60)") == before
    b.run("document.getElementById('tab-graph').focus()")
    b.type("ARROW_RIGHT")
    assert b.run("return document.activeElement.id") == "tab-decision"


def test_a_slider_can_be_dragged(visit):
    b = visit("log_relu", "step")
    drag = """
        const slider = document.querySelector('input[type="range"]');
        const event = (name) => slider.dispatchEvent(new PointerEvent(name, { bubbles: true }));
        event('pointerdown');
        for (const value of [3, 5]) {
          slider.value = value;
          slider.dispatchEvent(new InputEvent('input', { bubbles: true }));
        }
        const same = slider.isConnected;
        event('pointerup');
        return same;
    """
    assert b.run(drag)
    assert b.text(".said").startswith("Step 6 of")


def test_an_operator_is_found_by_name(visit):
    b = visit("layer")
    b.press("/")
    b.run("document.activeElement.value = 'erf'")
    b.type("ENTER")
    label = next(n["label"] for n in data("layer")["nodes"] if n["op"] == "erf")
    assert b.text(".node.chosen").startswith(label)


def test_the_end_of_a_drag_chooses_nothing(visit):
    b = visit("layer", "graph")
    b.drag(".node.operator", 60, 30)
    assert b.run("return document.querySelectorAll('.node.chosen').length") == 0
    b.click(".node.operator")
    assert b.run("return document.querySelectorAll('.node.chosen').length") == 1


def test_what_is_shown_for_a_processor_says_so(visit):
    for view in ("blocks", "access"):
        b = visit("log_relu", view)
        assert "no schedule for a GPU" in b.text("#schedule")
        assert "the processor's schedule" in b.text("#schedule")


def test_nothing_moves_by_itself_with_reduced_motion(visit):
    b = visit("layer", "overview")
    moves = "return getComputedStyle(document.querySelector('.bar-fill')).transitionDuration"
    assert b.run(moves) != "0s"
    b.prefer(prefers_reduced_motion="reduce")
    assert b.run(moves) == "0s"
    b.prefer()


def test_the_page_prints_without_its_controls(visit):
    b = visit("layer", "step")
    b.prefer(media="print")
    shown = "return getComputedStyle(document.querySelector(arguments[0])).display"
    assert b.run(shown, "nav") == b.run(shown, ".controls") == "none"
    assert b.run(shown, "table") != "none"
    b.prefer()


def test_a_download_is_the_report(chromium, pages, tmp_path):
    chromium.open(pages["log_relu"], "compile")
    chromium.downloads_to(tmp_path)
    chromium.click(".controls button:last-child")
    path = tmp_path / "report.json"
    for _ in range(100):
        if path.exists() and path.stat().st_size:
            break
        time.sleep(0.05)
    assert json.loads(path.read_text())["name"] == "log_relu"
    chromium.problems()


# --- the classics -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lessons(tmp_path_factory):
    path = tmp_path_factory.mktemp("classics") / "classics.html"
    with knobs.config(cache=False):
        path.write_text(classics.page())
    return path


def test_three_becomes_seven_with_two_memory_operations(chromium, lessons):
    chromium.open(lessons)
    assert chromium.text("h2") == "Learn"
    assert "Without fusion 6 memory operations, with fusion 2" in chromium.text("#learn-said")
    before, after = chromium.run(
        "return [...document.querySelectorAll('.trips')].map(x => x.innerText)"
    )
    assert all(step in before for step in ("3 → 6", "6 → 6", "6 → 7"))
    assert "3 → 6 → 6 → 7" in after
    assert not chromium.problems()


@pytest.mark.parametrize("width", [390, 1280])
def test_every_classic_can_be_learnt_and_played(chromium, lessons, width):
    chromium.resize(width)
    for k, name in enumerate(classics.NAMES):
        chromium.open(lessons)
        if k:
            chromium.click(f".lessons li:nth-child({k + 1}) button")
            chromium.wait(f"return document.querySelector('.top h1').textContent == '{name}'")
        assert chromium.text("h1") == name
        assert name in chromium.text("pre.text")
        overflow = "return document.documentElement.scrollWidth - window.innerWidth"
        assert chromium.run(overflow) <= 0
        chromium.click(tab("step"))
        assert chromium.text(".said").startswith("Step 1 of")
        assert chromium.run("return location.hash").startswith("#step")
        assert chromium.run(overflow) <= 0
    carried = chromium.text("#carried thead")
    assert "running maximum" in carried
    assert not chromium.problems()


def test_classics_can_be_read_without_scripts(chromium, lessons):
    shown = chromium.text_without_scripts(lessons)
    assert "Take the number 3." in shown and "The pictures need scripts." in shown


# --- speed --------------------------------------------------------------------------------------


def many_operators(count):
    """A made-up report with that many operators in a graph of six columns."""
    d = json.loads(json.dumps(data("log_relu")))
    proto = next(n for n in d["nodes"] if n["kind"] == "operator")
    nodes = [d["nodes"][0] | {"id": 0, "inputs": []}]
    for k in range(1, count + 1):
        inputs = [max(0, k - 6)] + ([k - 9] if k % 5 == 0 and k > 9 else [])
        names = {"id": k, "name": f"v{k}", "label": f"add#{k}", "output": k == count}
        nodes.append(proto | names | {"inputs": inputs, "kernels": [k // 6]})
    d["nodes"] = nodes
    d["edges"] = [
        {
            "producer": x,
            "reader": n["id"],
            "nbytes": 1000,
            "kind": "virtual" if nodes[x]["kernels"] == n["kernels"] else "memory",
        }
        for n in nodes
        for x in n["inputs"]
    ]
    kernel = d["kernels"][0] | {"operators": [], "params": []}
    d["kernels"] = [kernel | {"id": k, "name": f"k{k}"} for k in range(count // 6 + 1)]
    d["decisions"] = []
    d["page"] |= {"accesses": [], "codes": [], "transfers": []}
    layout = layout_of(msgspec.convert(nodes, tuple[NodeData, ...]))
    d["page"]["layout"] = json.loads(msgspec.json.encode(layout))
    return d


PAN = """
    const done = arguments[arguments.length - 1];
    const svg = document.querySelector('.drawing');
    const box = svg.getBoundingClientRect();
    const send = (name, x, y) => svg.dispatchEvent(new PointerEvent(name,
      { clientX: box.x + x, clientY: box.y + y, bubbles: true }));
    const times = [];
    let last = null;
    send('pointerdown', 300, 300);
    const frame = (now) => {
      if (last !== null) times.push(now - last);
      last = now;
      const k = times.length;
      send('pointermove', 300 + 150 * Math.sin(k / 15), 300 - 9 * k);
      if (k < 90) requestAnimationFrame(frame);
      else done(times);
    };
    requestAnimationFrame(frame);
"""


def test_two_thousand_operators_pan_smoothly(chromium, tmp_path):
    chromium.resize(1280)
    path = tmp_path / "many.html"
    path.write_text(page.html(many_operators(2000)))
    chromium.open(path, "graph")
    times = min((chromium.run_async(PAN) for _ in range(3)), key=statistics.median)
    assert statistics.median(times) < 2.2 * 1000 / 60
    assert chromium.run("return document.querySelectorAll('.drawing .node').length") < 400
    assert not chromium.problems()


def test_the_page_is_painted_at_once(chromium, pages):
    paint = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    times = []
    for name in ("log_relu", "attention", "layer"):
        chromium.open(pages[name])
        times.append(chromium.wait(paint))
    assert min(times) <= 300


# --- the file -----------------------------------------------------------------------------------


def test_a_link_leads_to_a_step(visit):
    b = visit("log_relu", "step/at=4")
    assert "Step 5 of" in b.text(".said")


def test_nothing_is_requested_and_nothing_may_be(chromium, pages):
    chromium.open(pages["log_relu"])
    assert chromium.run("return performance.getEntriesByType('resource').length") == 0
    refused = chromium.run(
        "return new Promise(done => { document.addEventListener('securitypolicyviolation',"
        " e => done(e.effectiveDirective)); const image = new Image();"
        " image.src = 'https://example.invalid/x.png'; setTimeout(() => done(''), 2000); })"
    )
    assert refused == "img-src"
    chromium.problems()


def test_a_hostile_name_stays_text(chromium, tmp_path):
    d = json.loads(json.dumps(data("log_relu")))
    hostile = "<script>window.hostile = 1</script><img src=x onerror='window.hostile = 1'>"
    d["name"] = d["kernels"][0]["name"] = hostile
    for n in d["nodes"]:
        n["label"] = n["op"] = hostile
    path = tmp_path / "hostile.html"
    path.write_text(page.html(d))
    for view in VIEWS:
        chromium.open(path, view)
        assert chromium.run("return window.hostile") is None
        assert chromium.run("return document.querySelectorAll('main img, main script').length") == 0
    chromium.open(path)
    assert hostile in chromium.text("h1")
    chromium.problems()


def test_the_page_can_be_read_without_scripts(chromium, pages):
    shown = chromium.text_without_scripts(pages["looked_up"])
    total = data("looked_up")["total"]
    assert show_bytes(total["bytes"]) in shown and "Not fused" in shown
    assert "The other views need scripts." in shown


# --- from outside -------------------------------------------------------------------------------


def test_arrow_keys_step_after_a_click_on_the_tab(visit):
    b = visit("log_relu")
    b.click(tab("step"))
    b.type("ARROW_RIGHT")
    assert "Step 2 of" in b.text(".said")
    b.run("document.getElementById('tab-step').focus()")
    b.type("ARROW_RIGHT")  # who came to the tab with the keyboard moves among tabs
    assert b.run("return document.activeElement.id") == "tab-transfers"


def test_learn_is_the_first_tab(visit):
    b = visit("log_relu")
    assert b.run("return document.querySelector('[role=tab]').id") == "tab-learn"
    assert b.run("return document.querySelector('[aria-selected=true]').id") == "tab-overview"


@pytest.mark.parametrize("name", PROGRAMS)
def test_decisions_open_with_the_most_valuable(visit, name):
    b = visit(name)
    b.click(tab("decision"))
    gaps = [
        abs(d["fused_ns"] - d["split_ns"]) if d["fused_ns"] else d["saves_ns"]
        for d in data(name)["decisions"]
    ]
    first = b.run("return document.querySelector('tbody tr').innerText").split()
    assert gaps[int(first[0]) - 1] == max(gaps)
    b.click(".controls button:last-child")
    assert b.run("return document.querySelector('tbody tr').innerText").split()[0] == "1"


def test_blocks_are_tied_to_threads(visit):
    b = visit("log_relu", "blocks")
    d = data("log_relu")
    blocks, threads = len(d["page"]["run"]["fused"][0]["blocks"]), d["target"]["cores"]
    shown = b.text("#threads")
    assert f"{blocks} blocks, {threads} thread" in shown and "thread 0 takes block" in shown
    taken = b.run("return [...document.querySelectorAll('.share .chip')].map(x => +x.innerText)")
    assert sorted(taken) == list(range(blocks))
    b.click('.share [aria-label="block 1"]')
    assert b.text("#block-said").startswith("block 1 of")


@pytest.mark.parametrize("view", ["kernel", "kernel/code=llvm", "kernel/code=asm", "graph"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_line_of_code_is_cut(visit, view, width):
    b = visit("log_relu", view)
    b.resize(width)
    cut = """return [...document.querySelectorAll('pre.text, .sources li')]
        .filter(x => x.scrollWidth > x.clientWidth + 1).length"""
    assert b.run("return document.querySelectorAll('pre.text, .sources li').length")
    assert b.run(cut) == 0


def test_parts_of_a_model_are_shown_one_after_another(chromium, tmp_path):
    parts = [
        page.Lesson(f"part {k}", "what `torch` computes", "", report(name).to_data(page=True))
        for k, name in enumerate(PROGRAMS)
    ]
    path = tmp_path / "parts.html"
    path.write_text(page.lessons_html(parts, "Parts of a model"))
    chromium.resize(1280)
    chromium.open(path, "step")
    for name in PROGRAMS:
        chromium.wait(f"return document.querySelector('h1').textContent === '{name}'")
        assert "Step 1 of" in chromium.text(".said")
        chromium.run("document.querySelector('#parts button:last-child').click()")
    assert chromium.run("return document.querySelector('#parts button:last-child').disabled")
    assert not chromium.problems()
