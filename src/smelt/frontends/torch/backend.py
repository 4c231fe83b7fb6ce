"""Entry point of `torch.compile(model, backend="smelt")`.

Dynamo traces a function; AOTAutograd makes its operators pure, splits forward from backward and
passes both to `compile_traced`.

If a graph cannot be compiled, each half of it is tried as a graph of its own, recursively. An
operator that fails alone is left to torch, and the others are merged again around it. A graph whose
halves both compile stays split: only their combination failed. What fails otherwise runs eagerly,
with one warning.

    program, failure = narrowed(traced.graph, lambda lowering: Program(traced, lowering))

Work that Dynamo does only for logs that nobody reads is skipped. For each operator it looks up the
enclosing function of a source line, which tokenizes every file of a model, for a line under
`TORCH_LOGS=trace_call`; and it times the guards for the guards log, flushing the caches with a
buffer. Both happen whether or not the line is written, and cost a noticeable part of a first call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from time import perf_counter
from typing import Any
from unittest import mock

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo import exc, guards, output_graph, symbolic_convert, utils
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.callback import callback_handler
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext

from smelt import knobs
from smelt.errors import (
    REASONS,
    ArgumentError,
    CaptureError,
    FallbackWarning,
    FusionError,
    raised_by_signal_handler,
    reason_of,
    warn_at_origin,
)
from smelt.frontends.torch import hoist_backward
from smelt.frontends.torch.complex_operators import cancel_views
from smelt.frontends.torch.decompositions import decompose_flex_attention, keep_native_backward
from smelt.frontends.torch.fake_facts import (
    Budget,
    GraphFacts,
    count_effect_tokens,
    graph_facts,
    restore_argument_views,
)
from smelt.frontends.torch.in_place import (
    accumulate_in_place,
    is_mutating,
    join_nested_updates,
)
from smelt.frontends.torch.layout import USER_RESULTS, is_fixed, materialize
from smelt.frontends.torch.lower import Lowering
from smelt.frontends.torch.origins import argument_names, name_arguments
from smelt.frontends.torch.program import Program, StageError
from smelt.frontends.torch.record import Break, Compiled, Kept, open_records
from smelt.frontends.torch.rows_view import rebase_on_memory
from smelt.frontends.torch.sizes import guard_equal_dims
from smelt.frontends.torch.table import decompositions, row_of
from smelt.knobs.steer import expand_fuse_options
from smelt.python.imports import fork_safe_import
from smelt.runtime.compile_scope import hide_live_objects, with_frame_room
from smelt.runtime.host import host

NOT_LEFT_TO_TORCH = FusionError, CaptureError
"""Failures that the user acts on: a required fusion, and a program that a capture cannot have,
which would stay with torch when the capture has ended."""

MAX_FAILURES = 64
"""Maximum failures of one traced graph that are bisected; after that, a part that fails is left to
torch as a whole."""


def bisect_failures(
    graph: torch.fx.Graph, make: Callable[[Lowering], Program]
) -> tuple[Program, Exception | None]:
    """Build a program from a traced graph and leave failing operators to torch.

    `make` compiles the stages of a lowering. Returns the program and the first failure, if any.
    Re-raises a failure in strict mode, when no operator can be blamed, and those in
    `NOT_LEFT_TO_TORCH`.
    """
    refused: dict[Any, str] = {}
    parts: dict[Any, int] = {}
    failures: list[Exception] = []
    while True:
        lowering = Lowering(graph, refused, parts)
        try:
            program = make(lowering)
            break
        except StageError as error:
            failures.append(_cause(error))
            operators = lowering.operators(error.stage)
            is_required = isinstance(failures[-1], NOT_LEFT_TO_TORCH)
            if knobs.STRICT.get() or is_required or not operators:
                raise failures[-1] from None
            if len(operators) == 1 or len(failures) > MAX_FAILURES:
                refused |= dict.fromkeys(operators, reason_of(failures[-1]))
            else:
                parts = _split_stage(lowering, error.stage, operators)
    if refused and parts:
        try:
            program = make(Lowering(graph, refused))
        except StageError as error:
            failures.append(_cause(error))
    return program, failures[0] if failures else None


def _cause(error: StageError) -> Exception:
    cause = error.__cause__
    return cause if isinstance(cause, Exception) else error


def _split_stage(lowering: Lowering, stage: int, operators: Sequence[Any]) -> dict[Any, int]:
    """Assign a stage to every operator, cutting one stage in its middle."""
    second_half = {*operators[len(operators) // 2 :]}
    stages = {n: k for k in range(len(lowering.stages)) for n in lowering.operators(k)}
    return {n: k + (k > stage or n in second_half) for n, k in stages.items()}


@contextmanager
def disable_trace_logs() -> Generator[None]:
    """Disable that work where this version of PyTorch does it and the log is off.

    >>> with disable_trace_logs():
    ...     symbolic_convert.get_funcname("model.py", 3)
    """
    with ExitStack() as stack:
        for module, name, instead, lines in _PATCHES:
            is_read = any(log is None or log.isEnabledFor(logging.DEBUG) for log in lines)
            if hasattr(module, name) and not is_read:
                stack.enter_context(mock.patch.object(module, name, instead))
        yield


_CALL_LOGS = (output_graph, "call"), (symbolic_convert, "call"), (symbolic_convert, "source")
_PATCHES: tuple[tuple[Any, str, Any, tuple[Any, ...]], ...] = (
    (
        symbolic_convert,
        "get_funcname",
        lambda *_: None,
        tuple(getattr(module, f"trace_{name}_log", None) for module, name in _CALL_LOGS),
    ),
    (guards, "profile_guard_manager", lambda *_: 0.0, (getattr(guards, "guards_log", None),)),
)
"""(module, function name, replacement, logs that show the result of the function)."""


_LOG = logging.getLogger("smelt.torch")
"""Logs one line for each graph and one for each operator that is left to torch."""


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile the graph that Dynamo has traced.

    Args:
        module: the traced graph.
        inputs: its arguments, without data.
        mode: as of `torch.compile`; one of `MODES`.
        options: settings of `smelt.config`, such as `{"threads": 2}`, and `must` and `never` of
            `smelt.fuse`.

    Raises KnobError for an unknown setting, ArgumentError for an unknown mode.
    """
    if mode is not None and mode not in MODES:
        raise ArgumentError.of("torch.compile", "mode", mode, ", ".join(MODES))
    settings = expand_fuse_options({**MODES[mode or "default"], **(options or {})})
    knobs.config(settings)  # raises for unknown settings here: inside, the graph would fall back
    _register_callbacks()
    _note_break(module)
    facts = graph_facts(module)
    draft = _draft(module, inputs, settings, facts)
    if draft is None:
        return compile_graph(module, inputs, settings, facts)
    with draft.compiling():
        program = compile_graph(module, inputs, settings, facts, saved=True)
    return draft.finish(program)


def compile_graph(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    settings: Mapping[str, Any],
    facts: GraphFacts,
    *,
    saved: bool = False,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's through AOTAutograd.

    `facts` were read from the graph by `graph_facts`. `saved` marks a program that is being saved
    or was loaded: Dynamo cannot trace it again.
    """
    keep_native_backward(module)
    decompose_flex_attention(module)
    names = argument_names(module)
    decisions: list[Kept] = []
    output_counts: list[int] = []
    varying: set[int] = set()

    def split(joint: torch.fx.GraphModule, examples: Any, **more: Any) -> Any:
        output_counts.append(more["num_fwd_outputs"])
        with knobs.config(settings):
            return partition(joint, examples, decisions, **more)

    def compiler(kind: str) -> Callable[..., Any]:
        def run(traced: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
            retained = tuple(decisions) if kind == "forward" else ()
            (output,) = traced.graph.find_nodes(op="output")
            count = len(output.args[0]) if kind != "backward" else 0
            if kind == "forward" and output_counts:
                count = output_counts[-1]
            output.meta[USER_RESULTS] = count  # from the first
            name_arguments(traced, names)
            if kind == "backward":
                _drop_hidden_gradients(traced)
            else:
                restore_argument_views(traced, facts.results, len(names))
            # A backward graph has other arguments.
            cached = facts.autocast_cached if kind != "backward" else ()
            return compile_traced(
                traced, settings, kind, facts.eager_bytes, retained, cached, varying
            )

        return run

    build = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions(),
        partition_fn=split,
        keep_inference_input_mutations=not facts.makes_gradients,
    )
    start = perf_counter()
    try:
        with hide_live_objects():
            program = _build_program(build, module, inputs, facts.writes_scalars or saved)
    except (exc.TorchDynamoException, *NOT_LEFT_TO_TORCH):
        raise  # Dynamo handles its own exceptions (it may trace again); others are for the user
    except Exception as error:
        with knobs.config(settings):
            if knobs.STRICT.get() or raised_by_signal_handler(error):
                raise
            _fall_back("whole", error, len(module.graph.nodes), perf_counter() - start)
        return module.forward
    if not facts.has_zero_tensors:
        return program
    return lambda *tensors: program(
        *(materialize(x) if isinstance(x, torch.Tensor) else x for x in tensors)
    )


def _draft(module: torch.fx.GraphModule, *more: Any) -> Any:
    """Write down a program that PyTorch means to save; None for other programs."""
    if getattr(module, "_backend_id", None) is None:
        return None
    try:
        saved = fork_safe_import("smelt.frontends.torch.saved")
    except ImportError:  # this version of PyTorch saves no programs of other back ends
        return None
    return saved.Draft(module, *more)


_TRACE_CONTEXT = ExitStack()
"""Contexts that are open while Dynamo traces."""


def _register_callbacks() -> None:
    """Register callbacks around Dynamo's tracing; `torch._dynamo.reset` forgets them.

    While Dynamo traces, objects that exist already are hidden from the garbage collector
    (`smelt.runtime.compile_scope`), because tracing allocates many objects, and Dynamo writes no
    logs that nobody reads.
    """
    if _on_trace_start in callback_handler.start_callbacks:
        return
    callback_handler.register_start_callback(_on_trace_start)
    callback_handler.register_end_callback(lambda *_: _TRACE_CONTEXT.close())


def _on_trace_start(*_: Any) -> None:
    _TRACE_CONTEXT.enter_context(hide_live_objects())
    _TRACE_CONTEXT.enter_context(disable_trace_logs())


_register_callbacks()


def _build_program(
    build: Callable[..., Any], module: torch.fx.GraphModule, inputs: Any, again: bool
) -> Any:
    """Run AOTAutograd on a program.

    With `again`, a request to restart tracing is answered here and not by Dynamo: PyTorch took
    float64 tensors for Python numbers and found no use for them as numbers.
    """
    try:
        return with_frame_room(build)(module, inputs)
    except _RESTART:
        if not again:
            raise
        symbolic_convert.TensorifyState.clear()
        with _without_scalar_tensorify():
            return with_frame_room(build)(module, inputs)


@contextmanager
def _without_scalar_tensorify() -> Generator[None]:
    """Disable PyTorch's conversion of scalars to tensors and its cached flag."""
    forget = getattr(getattr(utils, "_is_tensorify_enabled", None), "cache_clear", lambda: None)
    try:
        with mock.patch.dict("os.environ", {"TENSORIFY_PYTHON_SCALARS": "0"}):
            forget()
            yield
    finally:
        forget()


_RESTART: Any = getattr(exc, "TensorifyScalarRestartAnalysis", ())
"""Exception that asks for a restart of tracing, in versions of PyTorch that have it."""


def partition(
    joint: torch.fx.GraphModule,
    inputs: Any,
    decisions: list[Kept],
    *,
    num_fwd_outputs: int,
    **options: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Cut the joint graph of a training step into forward and backward.

    `decisions` receives what became of each value that PyTorch's cut keeps.
    """
    more = hoist_backward.hoist(joint, num_fwd_outputs, host().l3_bytes)

    def cut() -> tuple[torch.fx.GraphModule, torch.fx.GraphModule, Sequence[Any]]:
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs + more, **options
        )
        moved = hoist_backward.remove_results(forward, num_fwd_outputs, more) if more else ()
        return forward, backward, moved

    forward, backward, moved = cut()
    try:
        decisions[:] = _partition_module().refine(
            forward, backward, num_fwd_outputs, moved, options
        )
    except Exception as error:
        if knobs.STRICT.get() or raised_by_signal_handler(error):
            raise
        _LOG.debug("PyTorch's partition stays", exc_info=True)
        forward, backward, _ = cut()
    _partition_module().clone_written_arguments(forward, num_fwd_outputs)
    return forward, backward


@cache
def _partition_module() -> Any:
    """Import the module that decides which values are kept, at the first training step."""
    return fork_safe_import("smelt.frontends.torch.partition")


MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"tune": "race"},
    "max-autotune-no-cudagraphs": {"tune": "race"},
}
"""Settings of each mode of `torch.compile`. Calls have little overhead in every mode; autotuning
measures plans where the cost model is unsure."""


def _note_break(module: Any) -> None:
    """Record Dynamo's reason for ending a graph in the open records."""
    why = getattr(module, "compile_subgraph_reason", None)
    if why is None or not getattr(why, "graph_break", False):
        return
    where = ""
    if why.user_stack:
        where = f"{why.user_stack[-1].filename}:{why.user_stack[-1].lineno}"
    for r in open_records():
        r.breaks.append(Break(str(why.reason).splitlines()[0], where))


def _check_required_fusion(program: Program) -> None:
    """Raise FusionError if all of a program must be one kernel and torch is called."""
    left = program.lowering.left
    if left and ("*", "*") in knobs.REQUIRE_FUSED.get():
        row = REASONS["extern-barrier"]
        raise FusionError(
            a="the rest",
            b=left[0].operator,
            sentence=row.explain(op=left[0].operator),
            reason=f"{row.code} {row.name}",
        )


def compile_traced(
    traced: torch.fx.GraphModule,
    settings: Mapping[str, Any],
    kind: str,
    eager_bytes: int | None = None,
    retained: tuple[Kept, ...] = (),
    cached: tuple[bool, ...] = (),
    varying: set[int] | None = None,
) -> Callable[..., Any]:
    """Compile a traced program of pure operators to a function of one list.

    The function empties its list of arguments.

    Args:
        traced: the graph, with FakeTensors as metadata.
        settings: knobs under which it is compiled and called.
        kind: "forward", "backward" or "inference". Arguments of backward graphs have strides that
            no guard checks.
        eager_bytes: peak bytes of eager code, if known.
        retained: what a forward graph keeps, for the records.
        cached: for each argument, whether autocast keeps a converted copy of it.
        varying: numbers that the graphs take for sizes; a forward graph adds to the set, its
            backward graph reads it.
    """
    start = perf_counter()
    operators = sum(n.op == "call_function" for n in traced.graph.nodes)
    try:
        with knobs.config(settings):
            _mark_arguments(traced, kind)
            cancel_views(traced.graph)
            accumulate_in_place(traced.graph)
            join_nested_updates(traced.graph)
            rebase_on_memory(traced.graph)
            if kind != "backward":  # a backward graph cannot add guards
                _add_guards(traced.graph)
            # The backward graph reads at positions that the forward graph has checked.
            check_bounds = kind != "backward"
            varying_dims = varying if kind == "backward" else _varying_dims(traced.graph)

            def make(lowering: Lowering) -> Program:
                budget = Budget(eager_bytes, traced, cached)
                return Program(
                    traced, lowering, budget, check_bounds=check_bounds, varying_dims=varying_dims
                )

            program, failure = bisect_failures(traced.graph, make)
            _check_required_fusion(program)
            if varying is not None:
                varying |= program.varying_sizes
    except NOT_LEFT_TO_TORCH:
        raise
    except Exception as error:
        if knobs.STRICT.get() or raised_by_signal_handler(error):
            raise
        _fall_back(kind, error, operators, perf_counter() - start)
        return make_boxed_func(traced.forward)
    record = Compiled(kind, program, operators, perf_counter() - start, kept=retained)
    if failure is not None:
        record.failed = _warn_partial(kind, failure, program.lowering.refused)
    _LOG.info(
        "%s graph of %d operators: %d kernels, %d calls of torch, %.2f s",
        kind,
        operators,
        sum(s.step_count for s in program.segments),
        len(record.left),
        record.seconds,
    )
    for x in record.left:
        _LOG.debug("%s is left to torch: %s; %s", x.operator, x.reason, x.where)
    return _record_graph(record, box_call(program.call, settings), settings)


def _fall_back(kind: str, error: Exception, operators: int, seconds: float) -> None:
    """Warn that a graph runs eagerly and record it."""
    reason = reason_of(error)
    _LOG.debug("a graph falls back", exc_info=True)
    warn_at_origin(FallbackWarning(graph=f"a graph ({kind})", reason=reason))
    _record_graph(Compiled(kind, None, operators, seconds, reason), None, {})


def _warn_partial(kind: str, error: Exception, refused: Collection[Any]) -> str:
    """Warn which operators run eagerly, or that a graph runs in parts; return the reason."""
    reason = reason_of(error)
    _LOG.debug("a graph is narrowed down", exc_info=error)
    names = [*dict.fromkeys(str(n.target) for n in refused)]
    more = f" and {len(names) - 3} others" if len(names) > 3 else ""
    what = f"{', '.join(names[:3])}{more} of a graph" if names else "as one, a graph"
    warn_at_origin(FallbackWarning(graph=f"{what} ({kind})", reason=reason))
    return reason


def _mark_arguments(traced: torch.fx.GraphModule, kind: str) -> None:
    """Mark the arguments of a graph: guarded strides, parameters and constants.

    Constants are parameters and buffers of a model in inference that the program does not write.
    """
    arguments = [n for n in traced.graph.nodes if n.op == "placeholder"]
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    static: set[int] = set(getattr(metadata, "static_input_indices", None) or ())
    names = {f"primals_{k + 1}" for k in static}
    for k, node in enumerate(arguments):
        node.meta["smelt_fixed"] = node.name in names if kind == "backward" else k in static
    infos = enumerate(getattr(metadata, "input_info", ()), count_effect_tokens(traced.graph))
    static -= {k for k, x in infos if x.mutates_data}
    for k, node in enumerate(arguments):
        node.meta["smelt_guarded"] = kind != "backward"
        is_written = any(map(is_mutating, node.users))
        node.meta["smelt_constant"] = kind == "inference" and k in static and not is_written


def _add_guards(graph: torch.fx.Graph) -> None:
    """Add guards for equal dimensions that operators require and the tracer did not compare."""
    for node in graph.nodes:
        row = row_of(str(node.target)) if node.op == "call_function" else None
        if row is not None and row.equal_dims:
            guard_equal_dims(node, row.equal_dims)


def _varying_dims(graph: torch.fx.Graph) -> set[int] | None:
    """Return the numbers that occur as dimensions of a caller's tensors.

    None for a function without parameters: its batch or length cannot be identified.
    """
    arguments = graph.find_nodes(op="placeholder")
    if not any(map(is_fixed, arguments)):
        return None
    values = [n.meta.get("val") for n in arguments if not is_fixed(n)]
    return {n for x in values if isinstance(x, torch.Tensor) for n in x.shape if isinstance(n, int)}


def _drop_hidden_gradients(backward: torch.fx.GraphModule) -> None:
    """Drop gradients that flow from writes which autograd does not see.

    Autograd never passes a gradient for the new value of such an argument; an argument that nothing
    else reads then has no gradient in eager code, rather than zeros.
    """
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    arguments = list(enumerate(getattr(metadata, "input_info", ())))
    written = [
        (k, x)
        for k, x in arguments
        if x.mutates_data and x.requires_grad and x.mutation_type.name == "MUTATED_OUT_GRAPH"
    ]
    tangents = [n for n in backward.graph.find_nodes(op="placeholder") if "tangents" in n.name]
    (output,) = backward.graph.find_nodes(op="output")
    results = list(output.args[0])
    for (k, x), tangent in zip(
        written, tangents, strict=False
    ):  # tangents of written arguments come first
        if x.mutations_under_no_grad_or_inference_mode and results[k] is tangent:
            results[k] = None
    output.args = (type(output.args[0])(results),)


def _record_graph(graph: Compiled, call: Any, settings: Mapping[str, Any]) -> Any:
    """Add a graph to the open records.

    Returns the function to call: `call`, or one that also keeps the arguments of its first call or
    measures with them.
    """
    keep = measures = False
    for r in open_records():
        r.graphs.append(graph)
        keep, measures = keep or r.keep_arguments, measures or r.measures
    if graph.program is None or not (keep or measures):
        return call
    program = graph.program
    first = (
        box_call(lambda args: program.call_observed(args, graph.measure), settings)
        if measures
        else call
    )
    first_calls = [first]

    def call_and_keep(args: list[Any]) -> Any:
        if keep and graph.first_arguments is None:
            graph.first_arguments = [
                a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args
            ]
        return (first_calls.pop() if first_calls else call)(args)

    result: Any = call_and_keep
    result._boxed_call = True
    return result


def box_call(call: Callable[[list[Any]], Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Return `call` under `settings`, marked as emptying its list of arguments."""

    def configured(args: list[Any]) -> Any:
        with knobs.config(settings):
            return call(args)

    result: Any = configured if settings else call
    result._boxed_call = True
    return result
