"""`smelt explain`: report how a function, a graph or a model is compiled, and why.

smelt explain model.py:layer --arg x=f32[n,512] --arg b=f32[512] --size n=1000
smelt explain softmax.smelt --size r=300 --size c=1000 --why exp sum
smelt explain softmax.smelt --html softmax.html
smelt explain examples/kernels --target h100 --out pages
"""

from __future__ import annotations

import inspect
import sys
import traceback
from ast import literal_eval
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import click

from smelt.cli import explain_folder, onnx_model
from smelt.cli.inputs import fill_missing_sizes, pairs_of_options, read_source, sizes_of_options
from smelt.cli.terminal import print_json
from smelt.compiler import driver
from smelt.errors import SmeltError
from smelt.explain.api import Report, report
from smelt.explain.saved_report import SavedReport
from smelt.frontends.array.explain import explain, explain_call
from smelt.frontends.array.jit import Jit, jit
from smelt.frontends.array.trace import Spec
from smelt.graph.text import parse
from smelt.graph.verify import verify, verify_sizes
from smelt.graph.walk import all_size_names as sizes_of_graph
from smelt.ops.spec import dims_at
from smelt.saved.file import ProgramFile, is_program
from smelt.saved.plans import read_report
from smelt.tune.arrays import random_array
from smelt.types.expr import evaluate, sizes_of
from smelt.types.tensor import TensorType
from smelt.types.text import parse_type

SUFFIX = ".smelt"


@click.command("explain")
@click.argument("target")
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="A size; repeatable.")
@click.option(
    "--arg",
    "given",
    multiple=True,
    metavar="NAME=TYPE",
    help="An argument of the function: f32[n,512], or a Python value. Annotations and defaults "
    "are used for the others.",
)
@click.option("--why", nargs=2, metavar="A B", help="Why two operators are (not) in one kernel.")
@click.option(
    "--level",
    type=click.IntRange(1, 4),
    default=2,
    show_default=True,
    help="1 totals, 2 the slowest kernel too, 3 all kernels, 4 every decision.",
)
@click.option(
    "--target",
    "device",
    metavar="NAME",
    help="A GPU (sm_90, h100, ..) or a CPU (neon, avx2, ..) to plan for instead; nothing runs.",
)
@click.option("--predict", is_flag=True, help="Do not run: times are the model's.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.html",
    help="Write the report as an interactive page, one file that needs no server.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="For a folder: where index and pages are written. [default: FOLDER-TARGET]",
)
def command(
    target: str,
    sizes: tuple[str, ...],
    given: tuple[str, ...],
    why: tuple[str, str] | None,
    level: int,
    device: str | None,
    predict: bool,
    as_json: bool,
    page: Path | None,
    out: Path | None,
) -> None:
    """Report how a function, a graph or a model is compiled, and why.

    TARGET is FILE.py:FUNCTION, a graph in its text form, FILE.smelt, or MODEL.onnx.  It is compiled
    for the sizes, run on random arrays and measured.  A program file, PROGRAM.smelt or
    PROGRAM.smelt:NAME, has its report: nothing is compiled and nothing runs.  A folder, with
    --target, becomes an index of the programs of its modules: floor, plan, predicted time, Triton
    text and page of every function whose annotations say the types of its arguments.
    """
    named_sizes = sizes_of_options(sizes)
    if Path(target).is_dir():
        _index_folder(Path(target), named_sizes, device, out)
        return
    result: SavedReport
    if target.endswith(onnx_model.SUFFIX):
        result = onnx_model.explain_model(
            Path(target), named_sizes, predict=predict or bool(why), device=device
        )
    elif is_program(program := Path(target.partition(":")[0])):
        result = _of_program(program, target.partition(":")[2], page=page)
    elif target.endswith(SUFFIX):
        result = _of_text(Path(target), named_sizes, predict=predict or bool(why), device=device)
    else:
        types = pairs_of_options(given, "--arg", "NAME=TYPE or NAME=VALUE")
        with user_errors(target):
            result = _of_function(
                load_function(target),
                types,
                named_sizes,
                predict=predict or bool(why),
                device=device,
            )
    if page is not None and isinstance(result, Report):
        click.echo(f"wrote {result.save(page)}", err=True)
    if why:
        answer = result.why(*why)
        if not as_json:
            click.echo(str(answer))
            return
        decisions = [result.to_data()["decisions"][d] for d in answer.decisions]
        print_json(
            {"together": answer.together, "reasons": list(answer.reasons), "decisions": decisions}
        )
    elif as_json:
        click.echo(result.to_json(indent=2))
    else:
        click.echo(result.text(level))


# ---- a folder ----------------------------------------------------------------------------------


def _index_folder(
    folder: Path, sizes: Mapping[str, int], device: str | None, out: Path | None
) -> None:
    """Write the index of a folder's programs; exit with 1 where one has an error."""
    if device is None:
        raise click.UsageError(f"{folder} is a folder: say which GPU its index is for, --target")
    out = out or Path(f"{folder.resolve().name}-{device}")

    def read(function: Callable[..., Any]) -> Mapping[str, Any]:
        return read_arguments(function, {})

    def explained(function: Callable[..., Any], sizes: Mapping[str, int]) -> Report:
        types = (t for t in read(function).values() if isinstance(t, TensorType))
        names = {s for t in types for d in t.shape for s in sizes_of(d)}
        named = {n: k for n, k in sizes.items() if n in names}
        return _of_function(function, {}, named, predict=True, device=device)

    with user_errors(str(folder)):
        rows = explain_folder.write_index(folder, out, device, sizes, _module, read, explained)
    click.echo(f"wrote {out / 'index.html'}")
    if any(row.error for row in rows):
        raise SystemExit(1)


# ---- a program file ----------------------------------------------------------------------------


def _of_program(path: Path, name: str, *, page: Path | None) -> SavedReport:
    """Return the report of a program's first plan that has one."""
    if page is not None:
        raise click.UsageError("a program file has no page: explain the function that it came from")
    file = ProgramFile(path)
    with file.reading():
        programs = dict(file.facts["programs"])
        if name not in programs and (name or len(programs) > 1):
            raise click.UsageError(f"name one of {path.name}: {', '.join(programs)}")
        plans = programs[name or next(iter(programs))][0]["plans"]
    reports = (read_report(file, plan) for plan in plans)
    saved = next((r for r in reports if r is not None), None)
    if saved is None:
        raise click.UsageError(f"{path.name} was saved without a report: save it again")
    return saved


# ---- a graph's text ----------------------------------------------------------------------------


def _of_text(path: Path, sizes: dict[str, int], *, predict: bool, device: str | None) -> Report:
    try:
        with path.open(encoding="utf-8-sig") as file:
            source = read_source(file)
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None
    graph = verify(parse(source))
    names = sizes_of_graph(graph)
    _check(sizes, names)
    sizes = fill_missing_sizes(sizes, names)
    verify_sizes(graph, sizes)
    compiled = driver.compile(graph, hints=sizes)
    if predict or device is not None:
        return report(compiled, sizes, None, target=device)
    return report(
        compiled, sizes, [random_array(n.type, sizes, k) for k, n in enumerate(graph.inputs)]
    )


def _check(sizes: Mapping[str, int], names: tuple[str, ...]) -> None:
    wrong = [n for n in sizes if n not in names]
    if wrong:
        listed = ", ".join(names) or "none"
        raise click.UsageError(f"there is no size {wrong[0]!r}; sizes: {listed}")


# ---- a function --------------------------------------------------------------------------------


@contextmanager
def user_errors(target: str) -> Generator[None]:
    """Report what a user's code raises, with the frames of that code only.

    Raises ClickException.
    """
    try:
        yield
    except (SmeltError, click.ClickException):
        raise
    except SystemExit as error:
        raise click.ClickException(f"{target} exits ({error.code}) as it is loaded") from None
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        file = Path(target.rpartition(":")[0]).resolve()
        user_frames = [
            k for k, frame in enumerate(frames) if Path(frame.filename).resolve() == file
        ]
        if not user_frames and not isinstance(error, SyntaxError):
            raise  # an error of this command
        message = traceback.format_exception_only(error)
        lines = traceback.format_list(frames[user_frames[0] :] if user_frames else [])
        raise click.ClickException(f"{target} raises\n{''.join([*lines, *message])}") from None


def load_function(target: str) -> Callable[..., Any]:
    """Import and return the function that FILE:FUNCTION names."""
    file, colon, name = target.rpartition(":")
    path = Path(file)
    if not colon:
        raise click.UsageError(f"{target!r} is neither FILE.py:FUNCTION nor a {SUFFIX} file")
    if not path.is_file():
        raise click.UsageError(f"there is no file {file!r}")
    target_object = _module(path)
    for part in name.split("."):
        target_object = getattr(target_object, part, None)
    if not callable(target_object):
        raise click.UsageError(f"{path} has no function {name!r}")
    return target_object


def _module(path: Path) -> Any:
    """Import and return the module of a file."""
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _of_function(
    function: Callable[..., Any],
    specs: Mapping[str, str],
    sizes: dict[str, int],
    *,
    predict: bool,
    device: str | None,
) -> Report:
    """Record the function on random arrays of its arguments' types, and measure it on them.

    For another machine it is recorded for types alone: arrays may be larger than this one's memory.
    """
    arguments = read_arguments(function, specs)
    types = [t for t in arguments.values() if isinstance(t, TensorType)]
    names = tuple(dict.fromkeys(s for t in types for d in t.shape for s in sizes_of(d)))
    _check(sizes, names)
    sizes = fill_missing_sizes(sizes, names)
    for name, t in arguments.items():
        if isinstance(t, TensorType) and any(evaluate(d, sizes) < 0 for d in t.shape):
            raise click.BadParameter(f"a size of {t} is negative", param_hint=f"--arg {name}")
    has_complex = any(t.dtype.kind == "complex" for t in types)  # pairs, of which no spec is
    if device is not None and "target" not in arguments and not has_complex:
        return _of_types(function, arguments, sizes, device)
    values = {
        name: random_array(t, sizes, k) if isinstance(t, TensorType) else t
        for k, (name, t) in enumerate(arguments.items())
    }
    jitted: Jit[..., Any] = function if isinstance(function, Jit) else jit(function)
    bound = jitted.options.bind((), values)
    type_of = {id(values[name]): t for name, t in arguments.items() if isinstance(t, TensorType)}
    dims = [d for x in bound.leaves if id(x) in type_of for d in type_of[id(x)].shape]
    measured = not predict and device is None
    return explain_call(
        jitted, bound, target=device, measured=measured, dims=() if has_complex else dims
    )


def _of_types(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    sizes: Mapping[str, int],
    device: str,
) -> Report:
    """Record a function for types whose sizes have names, or else numbers.

    Code that compares sizes needs numbers.
    """
    jitted: Jit[..., Any] = function if isinstance(function, Jit) else jit(function)

    def specs(fixed: bool) -> dict[str, Any]:
        return {
            name: Spec(dims_at(t.shape, sizes) if fixed else t.shape, t.dtype)
            if isinstance(t, TensorType)
            else t
            for name, t in arguments.items()
        }

    try:
        trace = jitted.lower(**specs(fixed=False)).trace
        numbers = {n: sizes.get(n, hint) for n, hint in trace.hints.items()}
    except SmeltError:  # code that needs to know a size
        return explain(function, **specs(fixed=True), target=device)
    names = trace.source_size_names()
    return report(trace.executable, numbers, target=device, size_names=names)


def read_arguments(function: Callable[..., Any], specs: Mapping[str, str]) -> dict[str, Any]:
    """Return a tensor type or a value for each parameter that has one."""
    parameters = inspect.signature(function).parameters
    unknown = [n for n in specs if n not in parameters]
    if unknown:
        listed = ", ".join(parameters)
        raise click.UsageError(f"there is no argument {unknown[0]!r}; arguments: {listed}")
    arguments: dict[str, Any] = {}
    for name, parameter in parameters.items():
        text = specs.get(name) or parameter.annotation
        if isinstance(text, str) and text:
            value = _value(name, text, required=name in specs)
            if value is not None:
                arguments[name] = value
                continue
        if parameter.default is parameter.empty and parameter.kind not in _VARIADIC:
            raise click.UsageError(f"say what {name} is: --arg '{name}=f32[n]'")
    return arguments


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _value(name: str, text: str, *, required: bool) -> Any:
    """Parse a type (`f32[n]`) or a Python literal; None for an annotation that is neither."""
    text = text.strip("'\"")
    try:
        if "[" not in text or not text[0].isalpha():
            return literal_eval(text)
        return parse_type(text)
    except (SmeltError, ValueError, SyntaxError) as error:
        if required:
            reason = f": {error.message}. {error.help}" if isinstance(error, SmeltError) else ""
            raise click.BadParameter(
                f"{text!r} is neither a type such as f32[n,4] nor a value{reason}",
                param_hint=f"--arg {name}",
            ) from None
        return None
