"""`smelt explain` and `smelt run`: from files to answers, and errors of the call."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from tests.explain.programs import TEXTS

from smelt import knobs
from smelt.cli import judges, main
from smelt.errors import ArgumentError, OutOfMemory, OverflowSizeError

KERNEL = "kernel rows(x: f32[r,c]) -> y: f32[r]\n  grid r\n  y[r] = sum(x[r,c] over c)\n"
FUNCTIONS = """
import smelt as sm

def norm(x: "f32[n,64]", g: "f32[64]", eps: float = 1e-5):
    mean = sm.mean(x, axis=-1, keepdims=True)
    d = x - mean
    return d / sm.sqrt(sm.mean(d * d, axis=-1, keepdims=True) + eps) * g

def plain(a, b):
    return sm.exp(a) + b

jitted = sm.jit(plain)
number = 3

def doubled(x):
    return sm.real(x * 2)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call `smelt ...` among the files of the test; a mistake of ours shows as itself."""
    monkeypatch.setenv("SMELT_CACHE", "off")
    knobs.reset()
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.smelt").write_text(text)
    (tmp_path / "rows.smelt").write_text(f"# a kernel\n{KERNEL}")
    (tmp_path / "model.py").write_text(FUNCTIONS)
    runner = CliRunner()

    def call(*words: str, code: int = 0, inputs: str | None = None) -> str:
        result = runner.invoke(main.smelt, list(words), input=inputs, catch_exceptions=True)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.output

    yield call
    knobs.reset()


# --- explain: graphs ----------------------------------------------------------------------------


def test_explain_a_graph(run):
    text = run("explain", "softmax.smelt", "--size", "r=30", "--size", "c=1_000")
    assert text.startswith("softmax: 5 operators became 1 kernel; ")
    assert "\nfor      r=30 c=1000   " in text
    assert "us a call" in text and "kernel k0(x: f32[r,c])" in text


def test_explain_predicts_without_running(run):
    text = run("explain", "softmax.smelt", "--predict", "--level", "1")
    assert "a call" not in text and "predicted" in text and "kernel k0(" not in text


def test_explain_json(run):
    data = json.loads(run("explain", "layer.smelt", "--json", "--size", "r=4", "--size", "c=8"))
    assert data["format"] == "smelt-report" and data["sizes"] == {"r": 4, "c": 8}
    assert data["kernels"][0]["measured"]["runs"] > 0


def test_explain_writes_the_page(run, tmp_path):
    path = tmp_path / "page.html"
    run("explain", "softmax.smelt", "--predict", "--html", str(path))
    assert path.read_text().startswith("<!doctype html>")


def test_explain_why(run):
    text = run("explain", "softmax.smelt", "--why", "sub", "exp")
    assert text.startswith("sub#2 and exp#3 are in one kernel") and "never_fuse" in text
    data = json.loads(run("explain", "softmax.smelt", "--why", "sub", "exp", "--json"))
    assert data["together"] and data["reasons"] == [data["decisions"][0]["code"]]


def test_missing_sizes_are_reported(run, tmp_path):
    result = CliRunner().invoke(
        main.smelt, ["explain", "apart.smelt", "--predict", "--size", "r=8"]
    )
    assert "sizes that were not given: c=1024" in result.stderr
    assert "r=8 c=1024" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing.smelt",), "nothing.smelt: No such file"),
        (("nothing.py:f",), "there is no file 'nothing.py'"),
        (("model.py",), "neither FILE.py:FUNCTION nor a .smelt file"),
        (("model.py:plain", "--arg", "a=f32[-1]", "--arg", "b=1"), "f32[-1] is negative"),
        (
            ("model.py:plain", "--size", "n=2", "--arg", "a=f32[n - 3]", "--arg", "b=1"),
            "a size of f32[n - 3] is negative",
        ),
        (("softmax.smelt", "--size", "q=3"), "no size 'q'; sizes: r, c"),
        (("softmax.smelt", "--size", "r=-3"), "not a number >= 0"),
        (("softmax.smelt", "--size", "r"), "'r' is not NAME=NUMBER"),
        (("softmax.smelt", "--level", "5"), "Invalid value for '--level'"),
        (("model.py:absent",), "has no function 'absent'"),
        (("model.py:number",), "has no function 'number'"),
        (("model.py:plain",), "say what a is: --arg 'a=f32[n]'"),
        (("model.py:plain", "--arg", "c=f32[n]"), "no argument 'c'; arguments: a, b"),
        (("model.py:plain", "--arg", "a=f32[n", "--arg", "b=1"), "neither a type"),
    ],
)
def test_mistakes_in_the_call(run, words, message):
    assert message in " ".join(run("explain", *words, code=2).split())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(x:", "SyntaxError: '(' was never closed"),
        ("raise ValueError('boom')", "line 1, in <module> raise ValueError('boom')"),
        ("raise SystemExit(3)", "exits (3) as it is loaded"),
        (
            "def f(x):\n    return g(x)\n\ndef g(x):\n    return 1 // 0",
            "line 5, in g return 1 // 0",
        ),
    ],
)
def test_errors_of_user_code_are_shown_without_our_frames(run, tmp_path, code, message):
    (tmp_path / "mistaken.py").write_text(code)
    text = run("explain", f"{tmp_path}/mistaken.py:f", "--arg", "x=f32[4]", code=1)
    assert message in " ".join(text.split())
    assert "click" not in text and "smelt/" not in text


def test_sizes_beyond_memory(run):
    words = ("softmax.smelt", "--size", "r=8", "--size", f"c={2**45}")
    assert "predicted" in run("explain", *words, "--predict")
    for command in ("explain", "run"):
        with pytest.raises(OutOfMemory, match="bytes are needed"):
            run(command, *words)
        with pytest.raises(OverflowSizeError):
            run(command, *words[:-1], f"c={2**70}")


def test_unknown_operator(run):
    from smelt.errors import UnknownNameError

    with pytest.raises(UnknownNameError, match="no operator or line is called 'expo'"):
        run("explain", "softmax.smelt", "--why", "expo", "div")


# --- explain: functions -------------------------------------------------------------------------


def test_explain_a_function_by_its_annotations(run):
    text = run("explain", "model.py:norm", "--size", "n=100")
    assert text.startswith("norm: ") and "model.py:7" in text and "a call" in text


@pytest.mark.parametrize("name", ["plain", "jitted"])
def test_explain_a_function_by_options(run, name):
    words = ("--arg", "a=f32[n,8]", "--arg", "b=2.5", "--size", "n=10", "--json")
    data = json.loads(run("explain", f"model.py:{name}", *words))
    assert {n["op"] for n in data["nodes"]} >= {"exp", "add"}
    assert data["total"]["kernels"] == 1


# --- run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_all_interpreters_agree(run, name):
    data = json.loads(
        run("run", f"{name}.smelt", "--judge", "all", "--size", "r=12", "--size", "c=10", "--json")
    )
    assert list(data["ns"]) == ["graph", "kernel", "native"]
    for row in data["outputs"]:
        assert row["kernel"]["same"] and row["native"]["same"]


def test_run_a_kernel(run):
    text = run("run", "rows.smelt", "--judge", "all", "--size", "r=5", "--size", "c=7")
    assert "native agrees" in text and "f32[5]" in text
    assert "there is no graph" in run("run", "rows.smelt", "--judge", "graph", code=2)


def test_run_from_stdin(run):
    assert "rows  r=1024 c=1024" in run("run", "-", inputs=KERNEL)


def test_run_on_files_and_save(run, tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    run("run", "rows.smelt", "--input", "x=x.npy", "--save", "out")
    assert np.array_equal(np.load(tmp_path / "out" / "y.npy"), x.sum(axis=1))


@pytest.mark.parametrize(
    ("array", "message"),
    [(np.zeros(3, np.float32), "not f32[r,c]"), (np.zeros((2, 2)), "not f32[r,c]")],
)
def test_run_refuses_arrays_that_do_not_fit(run, tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    assert message in run("run", "rows.smelt", "--input", "x=x.npy", code=2)


def test_run_refuses_files_that_are_no_arrays(run, tmp_path):
    (tmp_path / "x.npy").write_bytes(b"no array")
    assert "x.npy:" in run("run", "rows.smelt", "--input", "x=x.npy", code=2)
    assert "has no 'z'; it has x, r, c" in run("run", "rows.smelt", "--input", "z=x.npy", code=2)


def test_run_refuses_sizes_that_contradict_an_array(run, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    text = run("run", "rows.smelt", "--input", "x=x.npy", "--size", "r=5", code=2)
    assert "x is [3, 4], not [5, 4]" in text


def test_run_exits_with_1_where_results_differ(run, monkeypatch):
    wrong = {"kernel": lambda kernel, arrays, sizes: [np.full(sizes["r"], 7, np.float32)]}
    monkeypatch.setattr(judges, "_KERNEL_JUDGES", judges._KERNEL_JUDGES | wrong)
    assert "DIFFERS" in run("run", "rows.smelt", "--judge", "all", code=1)
    run("run", "rows.smelt", "--judge", "all", "--rtol", "1e9")


def test_what_differs_counts():
    from smelt.types.dtype import f32, i64

    nan, inf = np.array([np.nan, 1, np.inf], np.float32), np.array([np.nan, 1, 3], np.float32)
    assert judges.compare(nan, nan, f32).within_limit
    assert not judges.compare(nan, inf, f32).within_limit
    assert judges.compare(np.float32([1, 2]), np.float32([1, 2.00001]), f32).within_limit
    assert not judges.compare(np.float32([1, 2]), np.float32([1, 2.01]), f32).within_limit
    assert not judges.compare(np.array([1, 2]), np.array([1, 3]), i64).within_limit


# --- explain: for a GPU ---------------------------------------------------------------------------


def test_arrays_for_a_gpu_may_be_larger_than_memory(run):
    words = ("explain", "model.py:plain", "--target", "4090", "--arg", "b=f32[]", "--arg")
    text = run(*words, "a=f32[100000,1000000]", "--level", "1")
    assert "A call needs 800 GB of memory, the card has 24.0 GB" in text
    assert "the card has" not in run(*words, "a=f32[n,1000]", "--size", "n=64", "--level", "1")


@pytest.mark.parametrize("machine", [(), ("--target", "h100")])
def test_complex_arguments_are_types_like_others(run, machine):
    assert "doubled" in run("explain", "model.py:doubled", "--arg", "x=c64[300,20]", *machine)


def test_a_machine_that_is_none_is_named_with_those_that_are(run):
    with pytest.raises(ArgumentError, match=r"target = h900, expected one of .*h100.*mi300x"):
        run("explain", "model.py:norm", "--target", "h900")


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "machine", [(), ("--predict",), ("--target", "neon"), ("--target", "h100")]
)
@pytest.mark.parametrize("code", ["plain", "jitted"])
def test_sizes_keep_the_names_of_their_types(run, machine, code):
    words = ("--arg", "a=f32[rows,384]", "--arg", "b=f32[384]", "--size", "rows=64", *machine)
    text = run("explain", f"model.py:{code}", *words, "--level", "3")
    assert "rows" in text and "n0" not in text, text


def test_a_function_that_compares_sizes_is_explained_for_another_machine(run, tmp_path):
    (tmp_path / "sizes.py").write_text(
        "def f(x):\n    return x * 2 if x.shape[0] % 3 == 0 else x + 1\n"
    )
    words = ("--arg", "x=f32[n]", "--size", "n=63", "--target", "neon", "--level", "1")
    assert "mul" in run("explain", "sizes.py:f", *words)


def test_names_do_not_steer_the_terminal(run, tmp_path):
    evil = "ev\x1b[31mil\u202e"
    (tmp_path / "evil.py").write_text(
        f"def f(x):\n    return x * 2\nf.__name__ = f.__qualname__ = {evil!r}\n"
        f"def g(x):\n    raise ValueError({evil!r})\n"
    )
    words = ("--arg", "x=f32[n]", "--size", "n=8")
    shown = run("explain", "evil.py:f", *words, "--level", "4")
    shown += run("explain", "evil.py:g", *words, code=1)
    shown += run("explain", f"{evil}.py:f", code=2)
    shown += run("explain", "evil.py:f", "--arg", f"{evil}=3", code=2)
    assert not {"\x1b", "\u202e"} & {*shown} and "\\x1b[31m" in shown, ascii(shown)
