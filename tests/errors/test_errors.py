"""The exception tree: codes, messages, pages; every `raise` in the sources fits its row."""

from __future__ import annotations

import ast
import builtins
import copy
import pickle
import re
import string
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt import errors
from smelt.errors import REASONS, SmeltError, SmeltWarning, TextError
from smelt.python.origin import UNKNOWN, Origin

SOURCES = Path(smelt.__file__).parent
CLASSES = list(errors.classes().values())
ROWS = pytest.mark.parametrize("row", CLASSES, ids=lambda row: row.__name__)


def fields_of(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


# --- rows ---------------------------------------------------------------------------------------


def test_codes_are_unique_and_well_formed():
    codes = [row.code for row in CLASSES] + [row.code for row in REASONS.values()]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[EWF]\d{3}", code) for code in codes)


def test_every_exported_class_has_a_page():
    exported = {value for value in vars(errors).values() if isinstance(value, type)}
    tree = {kind for kind in exported if issubclass(kind, (SmeltError, SmeltWarning))}
    assert tree - set(CLASSES) == {SmeltError, SmeltWarning, TextError}


@ROWS
def test_row_is_complete(row):
    page = errors.page(row.code)
    assert page.name == row.__name__
    assert page.title == row.title and not row.title.endswith(".")
    for text in (page.summary, page.meaning, page.why, page.example, page.fix):
        assert len(text) > 10
    assert not page.summary.startswith(" ") and "\n\n" not in page.summary
    compile(page.example, row.code, "exec")


@ROWS
def test_row_is_a_builtin_exception_too(row):
    standard = {value for value in vars(builtins).values() if isinstance(value, type)}
    bases = {base for base in row.__mro__ if base in standard} - {Exception, BaseException, object}
    assert bases, f"{row.__name__} is nothing that an `except` of a program without Smelt catches"


@ROWS
def test_message_fills_every_field(row):
    fields = {name: f"<{name}>" for name in fields_of(row.template)}
    message = row(**fields).message
    assert all(value in message for value in fields.values())
    assert "?" not in row(**fields).message.replace("did you mean", "").rstrip("?")


@ROWS
def test_missing_fields_never_raise(row):
    error = row(origin=UNKNOWN)
    assert str(error).startswith(f"{row.code} {row.title}: ")
    assert not fields_of(row.template) or "?" in error.message


@ROWS
@pytest.mark.parametrize(
    "remake", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))], ids=["copy", "pickle"]
)
def test_error_survives_pickle_and_copy(row, remake):
    fields = {name: np.float32(3) for name in fields_of(row.template)}
    error = row(**fields, origin=Origin("user.py", 3, "f", "y = x + b", 4, 9))
    again = remake(error)
    assert type(again) is row
    assert str(again) == str(error)
    assert again.origin == error.origin


# --- messages -----------------------------------------------------------------------------------


def test_message_reads_as_documented():
    error = errors.ShapeError(
        op="add",
        operands="f32[3, 4], f32[5]",
        reason="4 and 5 differ",
        origin=Origin("user.py", 12, "forward", "y = x + b", 4, 9),
    )
    assert str(error).splitlines() == [
        "E101 shape mismatch: add(f32[3, 4], f32[5]): 4 and 5 differ",
        "  at user.py:12:  y = x + b",
        "                      ^^^^^",
        "  help: The message shows each operand as dtype[shape]; print(x.shape) shows a shape.",
    ]


def test_only_compared_shapes_are_explained():
    x = smelt.asarray(np.ones((3, 4), np.float32))
    with pytest.raises(errors.ShapeError) as compared:
        smelt.jit(lambda x, y: x + y)(x, np.ones(5, np.float32))
    assert "a dimension of 1 stretches" in compared.value.help
    with pytest.raises(errors.ShapeError) as alone:
        smelt.top_k(x, 5)
    assert "stretches" not in alone.value.help and alone.value.help


def test_free_text_and_hint_replace_template_and_hint():
    error = errors.DTypeError("nothing fits", hint="first\nsecond", origin=UNKNOWN)
    assert str(error).splitlines() == [
        "E102 wrong element type: nothing fits",
        "  help: first",
        "        second",
    ]


def test_line_is_the_callers():
    with pytest.raises(errors.AxisError) as caught:
        raise errors.AxisError(op="sum", axis=2, ndim=2)  # this very line
    assert caught.value.origin.file == __file__
    assert caught.value.origin.text.endswith("# this very line")
    assert caught.value.origin.function == "test_line_is_the_callers"


def test_traceback_names_the_public_function():
    try:
        raise errors.ShapeError("no")
    except errors.ShapeError as error:
        shown = "".join(traceback.format_exception(error))
    assert "\nsmelt.errors.ShapeError: E101 shape mismatch: no" in shown


def test_text_error_points_at_the_character():
    source = "graph f(x: f32[4]) {\n  v0 = exp(x : f32[4]\n}"
    place = TextError.position(source, source.index(" : f32[4]\n") + 1)
    error = errors.GraphTextError("expected ')'", source=source, **place)
    assert (error.line, error.column) == (2, 14)
    first, second = error.where()
    assert first == "  at line 2, column 14:  v0 = exp(x : f32[4]"
    assert first[second.index("^")] == ":" and second.strip() == "^"


@pytest.mark.parametrize(("line", "column"), [(1, 1), (1, 99), (7, 3), (0, 0)])
def test_text_error_with_odd_positions_still_prints(line, column):
    error = errors.KernelTextError("bad", source="\tabc", line=line, column=column, length=0)
    assert str(error).startswith("E402 unreadable kernel: bad")


def test_warning_is_filtered_by_category():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("error")
        warnings.simplefilter("always", SmeltWarning)
        warnings.warn(errors.CacheWarning(path="/x", reason="full"), stacklevel=1)
    assert seen[0].category is errors.CacheWarning
    assert "W601 cache not used: /x: full" in str(seen[0].message)


# --- pages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("requested", ["E101", "e101", " E101 ", "ShapeError"])
def test_page_by_code_or_name(requested):
    assert errors.page(requested).code == "E101"


@pytest.mark.parametrize(("requested", "meant"), [("E1O1", "E101"), ("ShapError", "ShapeError")])
def test_unknown_page_suggests_the_nearest(requested, meant):
    with pytest.raises(errors.UnknownNameError, match=f"did you mean {meant}"):
        errors.page(requested)


def test_pages_are_all_rows():
    assert [page.code for page in errors.pages()] == sorted(
        [row.code for row in CLASSES], key=str
    ) + sorted(row.code for row in REASONS.values())


def pending(example: str) -> str:
    """What an example needs that does not exist yet: a function of the public face, a module."""
    for node in ast.walk(ast.parse(example)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "sm" and not hasattr(smelt, node.attr):
                return f"sm.{node.attr}"
        if isinstance(node, ast.ImportFrom):
            try:
                module = __import__(node.module, fromlist=["_"])
            except ImportError:
                return str(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    return f"{node.module}.{name.name}"
    return ""


@ROWS
def test_example_triggers_it(row, tmp_path):
    """The page's own example, run as a user's file: it must raise this class at its last line."""
    example = errors.page(row.code).example
    missing = pending(example)
    if missing:
        pytest.skip(f"waits for {missing}")
    file = tmp_path / "user.py"
    file.write_text(example)
    kind = row if issubclass(row, SmeltError) else errors.SmeltError
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if issubclass(row, SmeltWarning):
            exec(compile(example, str(file), "exec"), {"__name__": "user"})
            assert [warning.category for warning in seen] == [row]
            return
        with pytest.raises(kind) as caught:
            exec(compile(example, str(file), "exec"), {"__name__": "user"})
    assert type(caught.value) is row
    if not isinstance(caught.value, TextError):
        assert caught.value.origin.file == str(file), "the message must show the user's line"


@pytest.mark.parametrize(("module", "count"), [(__name__, 0), ("smelt", 1)])
def test_warnings_are_filtered_by_the_users_module(module, count):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=re.escape(module))
        errors.warn_at_origin(errors.FallbackWarning(graph="graph 0", reason="none"))
    assert len(seen) == count and all(warning.filename == __file__ for warning in seen)


# --- reasons ------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", REASONS.values(), ids=lambda row: row.name)
def test_reason_row(row):
    assert re.fullmatch(r"[a-z][a-z-]+", row.name)
    assert row.sentence and not row.sentence.endswith(".") and row.sentence[0] != " "
    assert row.doc.endswith(".") and len(row.doc) > 30
    assert row.accepts == row.code.startswith("F1")
    assert row.override, "say how to get the opposite, or that it cannot be had"
    numbers = dict.fromkeys(fields_of(row.sentence), 1234.5)
    assert "?" not in row.explain(**numbers)
    assert errors.reason(row.name) is errors.reason(row.code.lower()) is row


@pytest.mark.parametrize("row", REASONS.values(), ids=lambda row: row.name)
def test_reason_takes_symbols_and_gaps(row):
    """Sizes may be symbolic: formatting for numbers must not fail on text."""
    assert row.explain()
    assert row.explain(**dict.fromkeys(fields_of(row.sentence), "4*n"))


def test_reason_numbers_read_well():
    reason = REASONS["recompute-dear"]
    text = reason.explain(value="v3", times=3.08, cost_ns=534_212.4)
    assert text == "v3 would be computed 3.1 times, 534,212 ns more than storing it"


def test_unknown_reason():
    with pytest.raises(errors.UnknownNameError, match="did you mean cost"):
        errors.reason("costs")


# --- nearest ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "best"),
    [("thread", "threads"), ("thraeds", "threads"), ("xyzzy", ""), ("", ""), ("FUSE", "fuse")],
)
def test_nearest(name, best):
    assert errors.nearest(name, ["threads", "cache_dir", "fuse"]) == best


# --- every raise in the sources fits its row ----------------------------------------------------


def raises():
    """(file:line, class, positional, keywords) of every construction of one of our classes."""
    names = {row.__name__: row for row in CLASSES}
    for path in sorted(SOURCES.rglob("*.py")):
        if not any(name in path.read_text() for name in names):
            continue
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name in names:
                    place = f"{path.relative_to(SOURCES.parent)}:{node.lineno}"
                    inputs = {keyword.arg for keyword in node.keywords}
                    yield place, names[name], len(node.args), inputs


def test_every_raise_fits_its_template():
    wrong = []
    for place, row, positional, inputs in raises():
        allowed = {"origin", "hint"}
        if issubclass(row, TextError):
            allowed |= {"source", "line", "column", "length"}
        fields = fields_of(row.template)
        if None in inputs:  # **fields: only known at run time
            continue
        if positional == 1:  # fields beside a free text are data for programs
            continue
        if positional > 1 or inputs - allowed - fields:
            wrong.append(f"{place}: {row.__name__} has no field {inputs - allowed - fields}")
        elif not positional and fields - inputs:
            wrong.append(f"{place}: {row.__name__} lacks {fields - inputs}")
    assert not wrong, "\n".join(wrong)


def test_errors_need_no_array_library():
    """The tree stands at the bottom: it must import without NumPy, LLVM or anything of ours."""
    above = {"numpy", "llvmlite", "smelt.knobs", "smelt.journal.facts", "smelt.types"}
    for path in [*(SOURCES / "errors").glob("*.py"), SOURCES / "python" / "origin.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            assert not above & set(modules), path
    assert "smelt.errors" in sys.modules


STEERING = (
    *("\x1b[31mred", "\x07", "\r", "\x7f", "\x9b1m"),
    *("\u202eabc", "\u2066", "\u200b", "\ufeff", "\u2028", "\U000e0041"),
)


@pytest.mark.parametrize("name", STEERING)
def test_messages_do_not_steer_a_terminal(name: str) -> None:
    """Names in errors, warnings and logs are escaped; letters and line ends stay."""
    error = errors.UnknownNameError(kind="size", name=name, origin=Origin(name, 3, "f", name))
    shown = str(error) + str(errors.SmeltWarning(what=name)) + errors.escape_controls(name)
    assert not {c for c in shown if not c.isprintable()} - {"\n"}, ascii(shown)
    assert errors.escape_controls("größe λ 名 = x\n\ty") == "größe λ 名 = x\n\ty"
