"""The entry point that `torch.compile(model, backend="smelt")` finds.

Dynamo traces a function, AOTAutograd makes its operators pure, splits forward from backward and
hands both to `compile_traced`.  What fails inside runs eagerly, with one warning.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

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
from torch._dynamo import exc, symbolic_convert, utils
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.callback import callback_handler
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext

from smelt import knobs
from smelt.errors import REASONS, ArgumentError, FallbackWarning, FusionError, reason_of, tell
from smelt.frontends.torch import hoist_backward
from smelt.frontends.torch.aliasing import show_views, tokens
from smelt.frontends.torch.bisect_failures import narrowed
from smelt.frontends.torch.disable_trace_logs import unlogged
from smelt.frontends.torch.eager_memory import Budget
from smelt.frontends.torch.fake_facts import Told, told_by
from smelt.frontends.torch.flex_attention import spell_out_scores
from smelt.frontends.torch.layout import SEEN, is_fixed, plain
from smelt.frontends.torch.lower import Lowering
from smelt.frontends.torch.pairs_views import cancel
from smelt.frontends.torch.program import Program
from smelt.frontends.torch.record import Break, Compiled, Kept, open_records
from smelt.frontends.torch.resized import with_own_way_back
from smelt.frontends.torch.rows_strided import on_memory
from smelt.frontends.torch.scattered import accumulated
from smelt.frontends.torch.sizes import agree
from smelt.frontends.torch.table import decompositions, row_of
from smelt.imports import imported
from smelt.knobs.steer import steered
from smelt.runtime.frames import roomy
from smelt.runtime.garbage import set_aside
from smelt.runtime.host import host

__all__ = ["MODES", "backend"]

_LOG = logging.getLogger("smelt.torch")
"""One line for each graph, and one for each operator that is left to torch."""


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo has traced.

    Args:
        module: the traced graph.
        inputs: its arguments, without data.
        mode: as of `torch.compile`; one of `MODES`.
        options: settings of `smelt.config`, such as `{"threads": 2}`, and `must` and `never` of
            `smelt.fuse`.

    Raises KnobError for an unknown setting, ArgumentError for an unknown mode.
    """
    if mode is not None and mode not in MODES:
        raise ArgumentError(
            op="torch.compile", argument="mode", value=repr(mode), expected=", ".join(MODES)
        )
    settings = steered({**MODES[mode or "default"], **(options or {})})
    knobs.config(settings)  # refuses what is unknown, now and not in a graph that falls back
    _look_through_nothing()
    _note_break(module)
    told = told_by(module)
    draft = _draft(module, inputs, settings, told)
    if draft is None:
        return compiled(module, inputs, settings, told)
    with draft.compiling():
        made = compiled(module, inputs, settings, told, saved=True)
    return draft.finish(made)


def compiled(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    settings: Mapping[str, Any],
    told: Told,
    *,
    saved: bool = False,
) -> Callable[..., Any]:
    """What AOTAutograd and the compiler make of a graph of Dynamo's, whose facts are `told`.  One
    that is `saved`, or was, cannot be traced again."""
    with_own_way_back(module)
    spell_out_scores(module)
    arguments = len(module.graph.find_nodes(op="placeholder"))
    decided: list[Kept] = []
    seen: list[int] = []
    varying: set[int] = set()

    def split(joint: torch.fx.GraphModule, examples: Any, **more: Any) -> Any:
        seen.append(more["num_fwd_outputs"])
        with knobs.config(settings):
            return partition(joint, examples, decided, **more)

    def compiler(kind: str) -> Callable[..., Any]:
        def run(traced: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
            kept = tuple(decided) if kind == "forward" else ()
            count = seen[-1] if kind == "forward" and seen else 0 if kind == "backward" else None
            _mark_results(traced, count)
            if kind == "backward":
                _drop_unseen(traced)
            else:
                show_views(traced, told.results, arguments)
            own = told.cast if kind != "backward" else ()  # whose arguments are others
            return compile_traced(traced, settings, kind, told.held, kept, own, varying)

        return run

    build = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions(),
        partition_fn=split,
        keep_inference_input_mutations=not told.makes_gradients,
    )
    start = perf_counter()
    try:
        with set_aside():
            made = _built(build, module, inputs, told.writes_scalars or saved)
    except (exc.TorchDynamoException, FusionError):
        raise  # what Dynamo itself answers, by tracing again or otherwise; a demand that is not met
    except Exception as error:
        with knobs.config(settings):
            if knobs.STRICT.get():
                raise
            _fall_back("whole", error, len(module.graph.nodes), perf_counter() - start)
        return module.forward
    if not told.without_memory:
        return made
    return lambda *given: made(*(plain(x) if isinstance(x, torch.Tensor) else x for x in given))


def _draft(module: torch.fx.GraphModule, *more: Any) -> Any:
    """What a program is written down in that PyTorch means to save; None for other ones."""
    if getattr(module, "_backend_id", None) is None:
        return None
    try:
        saved = imported("smelt.frontends.torch.saved")
    except ImportError:  # a version of PyTorch that saves no programs of other back ends
        return None
    return saved.Draft(module, *more)


_ASIDE = ExitStack()
"""What is set aside while Dynamo traces."""


def _look_through_nothing() -> None:
    """Has Dynamo, too, compile beside what a process holds (`smelt.runtime.garbage`): it makes more
    objects than we do; and write no logs that nobody reads.  `torch._dynamo.reset` forgets it."""
    if _begin in callback_handler.start_callbacks:
        return
    callback_handler.register_start_callback(_begin)
    callback_handler.register_end_callback(_end)


def _begin(*_: Any) -> None:
    _ASIDE.enter_context(set_aside())
    _ASIDE.enter_context(unlogged())


def _end(*_: Any) -> None:
    _ASIDE.close()


_look_through_nothing()


def _built(
    build: Callable[..., Any], module: torch.fx.GraphModule, inputs: Any, again: bool
) -> Any:
    """What AOTAutograd makes of a program; traced `again` here, and not by Dynamo, where it finds
    no use as numbers for what it took for some."""
    try:
        return roomy(build)(module, inputs)
    except _TRACED_AGAIN:
        if not again:
            raise
        symbolic_convert.TensorifyState.clear()
        with _no_numbers():
            return roomy(build)(module, inputs)


@contextmanager
def _no_numbers() -> Generator[None]:
    """Has PyTorch take no tensors for numbers, by its own switch, whose place it remembers."""
    forget = getattr(getattr(utils, "_is_tensorify_enabled", None), "cache_clear", lambda: None)
    try:
        with mock.patch.dict("os.environ", {"TENSORIFY_PYTHON_SCALARS": "0"}):
            forget()
            yield
    finally:
        forget()


_TRACED_AGAIN: Any = getattr(exc, "TensorifyScalarRestartAnalysis", ())
"""What says that a program is traced again for that, in versions that do."""


def partition(
    joint: torch.fx.GraphModule,
    inputs: Any,
    decided: list[Kept],
    *,
    num_fwd_outputs: int,
    **told: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Cuts the joint graph of a training step into forward and backward; what became of each value
    that PyTorch's cut keeps is left in `decided`."""
    more = hoist_backward.move(joint, num_fwd_outputs, host().l3_bytes)

    def cut() -> tuple[torch.fx.GraphModule, torch.fx.GraphModule, Sequence[Any]]:
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs + more, **told
        )
        return (
            forward,
            backward,
            hoist_backward.drop(forward, num_fwd_outputs, more) if more else (),
        )

    forward, backward, moved = cut()
    try:
        decided[:] = _cuts().refine(forward, backward, num_fwd_outputs, moved, told)
    except Exception:
        if knobs.STRICT.get():
            raise
        _LOG.debug("PyTorch's partition stays", exc_info=True)
        forward, backward, _ = cut()
    _cuts().apart(forward, num_fwd_outputs)
    return forward, backward


@cache
def _cuts() -> Any:
    """What decides which values are kept, imported by the first training step."""
    return imported("smelt.frontends.torch.partition")


MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"tune": "race"},
    "max-autotune-no-cudagraphs": {"tune": "race"},
}
"""What the modes of `torch.compile` set.  A call costs little in any of them; autotuning lets plans
race where the model of costs is unsure."""


def _note_break(module: Any) -> None:
    """Dynamo's reason for ending a graph, for the records that are open."""
    why = getattr(module, "compile_subgraph_reason", None)
    if why is None or not getattr(why, "graph_break", False):
        return
    where = ""
    if why.user_stack:
        where = f"{why.user_stack[-1].filename}:{why.user_stack[-1].lineno}"
    for r in open_records():
        r.breaks.append(Break(str(why.reason).splitlines()[0], where))


def _demand(program: Program) -> None:
    """Raises FusionError where all of a program has to be one kernel and torch is called."""
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
    held: int | None = None,
    kept: tuple[Kept, ...] = (),
    cast: tuple[bool, ...] = (),
    varying: set[int] | None = None,
) -> Callable[..., Any]:
    """A traced program of pure operators as a function of one list, which it empties; eager code
    holds so many bytes at once, if that is known, and of some arguments the copies that autocast
    makes.  `kept` says what a forward graph keeps.  `varying` are the numbers that its graphs take
    for sizes, left there by a forward graph for its backward graph.

    Backward graphs get tensors whose strides no guard vouches for.
    """
    start = perf_counter()
    operators = sum(n.op == "call_function" for n in traced.graph.nodes)
    try:
        with knobs.config(settings):
            _mark(traced, kind)
            cancel(traced.graph)
            accumulated(traced.graph)
            on_memory(traced.graph)
            if kind != "backward":  # of which no guard comes
                _agree(traced.graph)
            looks = kind != "backward"  # which reads where the forward graph has read
            among = varying if kind == "backward" else _may_vary(traced.graph)

            def make(lowering: Lowering) -> Program:
                budget = Budget(held, traced, cast)
                return Program(traced, lowering, budget, looks=looks, among=among)

            program, failure = narrowed(traced.graph, make)
            _demand(program)
            if varying is not None:
                varying |= program.varying
    except FusionError:
        raise
    except Exception as error:
        if knobs.STRICT.get():
            raise
        _fall_back(kind, error, operators, perf_counter() - start)
        return make_boxed_func(traced.forward)
    made = Compiled(kind, program, operators, perf_counter() - start, kept=kept)
    if failure is not None:
        made.failed = _tell(kind, failure, program.lowering.refused)
    _LOG.info(
        "%s graph of %d operators: %d kernels, %d calls of torch, %.2f s",
        kind,
        operators,
        sum(len(s.compiled.recipe.steps) for s in program.segments),
        len(made.left),
        made.seconds,
    )
    for x in made.left:
        _LOG.debug("%s is left to torch: %s; %s", x.operator, x.reason, x.where)
    return _note(made, boxed(program.call, settings), settings)


def _fall_back(kind: str, error: Exception, operators: int, seconds: float) -> None:
    """Tells that a graph runs eagerly."""
    reason = reason_of(error)
    _LOG.debug("a graph falls back", exc_info=True)
    tell(FallbackWarning(graph=f"a graph ({kind})", reason=reason))
    _note(Compiled(kind, None, operators, seconds, reason), None, {})


def _tell(kind: str, error: Exception, refused: Collection[Any]) -> str:
    """Tells which operators run eagerly, or that a graph runs in parts; why."""
    reason = reason_of(error)
    _LOG.debug("a graph is narrowed down", exc_info=error)
    names = [*dict.fromkeys(str(n.target) for n in refused)]
    more = f" and {len(names) - 3} others" if len(names) > 3 else ""
    what = f"{', '.join(names[:3])}{more} of a graph" if names else "as one, a graph"
    tell(FallbackWarning(graph=f"{what} ({kind})", reason=reason))
    return reason


def _mark(traced: torch.fx.GraphModule, kind: str) -> None:
    """Notes at the arguments what is known of them: that guards vouch for their strides, and which
    are parameters or buffers of a model in inference, which the program itself does not write."""
    given = [n for n in traced.graph.nodes if n.op == "placeholder"]
    known = getattr(TracingContext.try_get(), "fw_metadata", None)
    static: set[int] = set(getattr(known, "static_input_indices", None) or ())
    names = {f"primals_{k + 1}" for k in static}
    for k, node in enumerate(given):
        node.meta["smelt_fixed"] = node.name in names if kind == "backward" else k in static
    infos = enumerate(getattr(known, "input_info", ()), tokens(traced.graph))
    static -= {k for k, x in infos if x.mutates_data}
    for k, node in enumerate(given):
        node.meta["smelt_guarded"] = kind != "backward"
        node.meta["smelt_constant"] = kind == "inference" and k in static and not _written(node)


def _agree(graph: torch.fx.Graph) -> None:
    """Has guards say what operators ask of their operands, and the tracer did not."""
    for node in graph.nodes:
        row = row_of(str(node.target)) if node.op == "call_function" else None
        if row is not None and row.agree:
            agree(node, row.agree)


def _may_vary(graph: torch.fx.Graph) -> set[int] | None:
    """The numbers that are dimensions of what a caller passes to a model.  A function without
    parameters has nothing that tells a batch or a length from other dimensions: None."""
    given = graph.find_nodes(op="placeholder")
    if not any(map(is_fixed, given)):
        return None
    told = [n.meta.get("val") for n in given if not is_fixed(n)]
    return {n for x in told if isinstance(x, torch.Tensor) for n in x.shape if isinstance(n, int)}


def _mark_results(traced: torch.fx.GraphModule, count: int | None) -> None:
    """Notes how many results, from the first, are the user's; None for all."""
    output = next(n for n in traced.graph.nodes if n.op == "output")
    output.meta[SEEN] = len(output.args[0]) if count is None else count


def _drop_unseen(backward: torch.fx.GraphModule) -> None:
    """Has no gradient come from new values of arguments that autograd does not see being written:
    it never gives one, and an argument that nothing else reads has none in eager code, not zeros.
    """
    known = getattr(TracingContext.try_get(), "fw_metadata", None)
    arguments = list(enumerate(getattr(known, "input_info", ())))
    written = [
        (k, x)
        for k, x in arguments
        if x.mutates_data and x.requires_grad and x.mutation_type.name == "MUTATED_OUT_GRAPH"
    ]
    tangents = [n for n in backward.graph.find_nodes(op="placeholder") if "tangents" in n.name]
    (output,) = backward.graph.find_nodes(op="output")
    found = list(output.args[0])
    for (k, x), tangent in zip(written, tangents, strict=False):  # theirs come first
        if x.mutations_under_no_grad_or_inference_mode and found[k] is tangent:
            found[k] = None
    output.args = (type(output.args[0])(found),)


def _written(node: torch.fx.Node) -> bool:
    """Whether a call in the graph writes into an argument."""
    return any(
        u.op == "call_function" and getattr(getattr(u.target, "_schema", None), "is_mutable", False)
        for u in node.users
    )


def _note(made: Compiled, call: Any, settings: Mapping[str, Any]) -> Any:
    """Adds a graph to the open records; the function that also keeps the arguments of its first
    call, or measures with them."""
    keep = measures = False
    for r in open_records():
        r.graphs.append(made)
        keep, measures = keep or r.keep_arguments, measures or r.measures
    if made.program is None or not (keep or measures):
        return call
    program = made.program
    first = boxed(lambda args: program.shown(args, made.measure), settings) if measures else call
    todo = [first]

    def keeping(args: list[Any]) -> Any:
        if keep and made.first_arguments is None:
            made.first_arguments = [
                a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args
            ]
        return (todo.pop() if todo else call)(args)

    found: Any = keeping
    found._boxed_call = True
    return found


def boxed(call: Callable[[list[Any]], Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    """`call` under settings, marked as emptying its list of arguments."""

    def configured(args: list[Any]) -> Any:
        with knobs.config(settings):
            return call(args)

    found: Any = configured if settings else call
    found._boxed_call = True
    return found
