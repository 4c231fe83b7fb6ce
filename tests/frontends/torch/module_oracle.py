"""Compare random modules with eager code in float64.

How far a right result may be off is found by disturbing: every operator of the judge's runs is
moved by some units in the last place, and what that moves a result by, its condition, is allowed
some times over.  Where disturbed runs part (a near tie, a step) nothing is asked; where PyTorch's
own float32 is further off, neither is more.  Positions are right if what they reach is.  Strides,
shared memory, arguments and buffers after the call, and gradients must be as eager code has them;
strides may also be those that PyTorch's own tracer announces, which are not always eager's.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from tests.frontends.torch.module_generator import Program
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from smelt import knobs

FACTOR = 16.0
RUNS = 3


class Disturbed(TorchDispatchMode):
    """Every floating result is moved by a part of `size`."""

    def __init__(self, size: float, seed: int) -> None:
        super().__init__()
        self.size, self.random = size, torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        if any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns):
            return result
        return tree_map(self.move, result)

    def move(self, x: Any) -> Any:
        zeros = isinstance(x, torch.Tensor) and x._is_zerotensor()  # which have no memory
        if isinstance(x, torch.Tensor) and x.is_floating_point() and not zeros:
            noise = torch.rand(x.shape, generator=self.random, dtype=torch.float64) * 2 - 1
            x.mul_((1 + self.size * noise).to(x.dtype))
        return x


@dataclass
class Outcome:
    """What a call gave and left behind."""

    values: dict[str, Any]
    results: list[torch.Tensor]
    arguments: list[torch.Tensor]
    seen: dict[str, torch.Tensor]


class Run:
    """One way to run a module, with a state of its own from call to call."""

    def __init__(
        self,
        program: Program,
        single: torch.dtype,
        half: torch.dtype,
        call: Any = None,
        *,
        looking: bool = False,
        noise: Any = None,
    ) -> None:
        self.program, self.single, self.noise = program, single, noise
        self.looking = looking
        self.module = program.module(single, half, looking=looking)
        self.call = call(self.module) if call else self.module

    def __call__(self, k: int) -> Outcome:
        p = self.program
        leaves = [a.make(k, self.single, wants=p.gradients) for a in p.arguments]
        with torch.set_grad_enabled(p.gradients):
            inputs = [x * 1 if p.copies else x for x in leaves]
        self.module.zero_grad(set_to_none=True)
        if self.noise is not None:
            with torch.no_grad():
                for x in inputs:
                    self.noise.move(x) if 0 not in x.stride() else x
            with self.noise:
                return self._outcome(inputs, leaves)
        return self._outcome(inputs, leaves)

    def _outcome(self, inputs: list[torch.Tensor], leaves: list[torch.Tensor]) -> Outcome:
        with torch.set_grad_enabled(self.program.gradients):
            result = self.call(*inputs)
        results, seen = result if self.looking else (result, {})
        values: dict[str, Any] = {
            f"result {k} ({n})": x
            for k, (x, n) in enumerate(zip(results, self.program.results, strict=True))
        }
        names = [a.name for a in self.program.arguments]
        values |= {f"argument {n}": x for n, x in zip(names, inputs, strict=True)}
        values |= {f"buffer {n}": x for n, x in self.module.named_buffers()}
        values = {
            n: x.detach().clone() if not n.startswith("result") else x.detach()
            for n, x in values.items()
        }
        total = _total(results)
        if self.program.gradients and total is not None:
            total.backward()
            values |= {f"gradient {n}": x.grad for n, x in self.module.named_parameters()}
            values |= {f"gradient {n}": x.grad for n, x in zip(names, leaves, strict=True)}
        return Outcome(values, list(results), inputs, seen)


def _total(results: list[torch.Tensor]) -> torch.Tensor | None:
    parts = [x for x in results if x.requires_grad]
    if not parts:
        return None
    scales = [torch.linspace(1, 2, x.numel(), dtype=torch.float64).view(x.shape) for x in parts]
    terms = [(x.double() * s).sum() for x, s in zip(parts, scales, strict=True)]
    return torch.stack(terms).sum()


def wrong(program: Program) -> list[str]:
    """Return what only the compiled module gets wrong.

    Errors of what AOTAutograd alone makes of it do not count; the text is empty if nothing is
    wrong.
    """
    result = differences(program, "smelt")
    aot_differences = differences(program, "aot_eager") if result else []
    return [x for x in result if x not in aot_differences]


def differences(program: Program, backend: str) -> list[str]:
    """Where a back end differs from eager code."""
    size = 2.0**-8 if program.halves else 2.0**-22
    full, single, low = torch.float64, torch.float32, torch.bfloat16

    torch._dynamo.reset()
    with warnings.catch_warnings(), knobs.config(strict=True):
        warnings.simplefilter("ignore")
        exact = Run(program, full, full, looking=True)
        near = [
            Run(program, full, full, looking=True, noise=Disturbed(size, k)) for k in range(RUNS)
        ]
        plain = Run(program, single, low)
        fast = Run(
            program,
            single,
            low,
            lambda m: torch.compile(m, backend=backend, dynamic=program.dynamic),
        )
        results: list[str] = []
        for k in range(len(program.arguments[0].sizes)):
            try:
                want, others, eager = exact(k), [r(k) for r in near], plain(k)
            except Exception as error:
                raise Refused(str(error)) from error
            try:
                got = fast(k)
            except Exception as error:  # noqa: BLE001 - every kind is a finding
                message = str(error).replace(f"backend='{backend}'", "the back end")[:1500]
                return [*results, f"call {k}: {type(error).__name__}: {message}"]
            said = [
                x
                for x in _compare(program, want, others, eager, got, size)
                if _STRIDES not in x or not _announced(program, k, got)
            ]
            results += [f"call {k}: {x}" for x in said]
    torch._dynamo.reset()
    return results


class Refused(Exception):
    """Eager code runs the lines, and not the whole: the way back reads what was overwritten."""


def _compare(
    program: Program,
    want: Outcome,
    others: list[Outcome],
    eager: Outcome,
    got: Outcome,
    size: float,
) -> list[str]:
    results: list[str] = []
    for name, same in eager.values.items():
        exact, value = want.values[name], got.values[name]
        if (same is None) != (value is None):
            if value is not None and name in _written(program, eager) and not value.any():
                continue
            results.append(f"{name}: {_kind(value)} where eager has {_kind(same)}")
            continue
        if same is None or exact is None:
            continue
        if same.dtype != value.dtype or same.shape != value.shape:
            results.append(f"{name}: {_kind(value)} where eager has {_kind(same)}")
            continue
        if not name.startswith("gradient") and (message := _placed(value, same)):
            results.append(f"{name}: {message}")
        if program.reached and name.partition("(")[2][:-1] in program.reached:
            exact, same, value, rest = _reached(program, name, want, others, eager, got)
        else:
            rest = [o.values[name] for o in others]
        least = _rounding(want) if name.startswith("gradient") else 0.0
        results += [f"{name}: {x}" for x in _apart(exact, rest, same, value, size, least)]
    return results + _shared(program, eager, got)


def _written(program: Program, eager: Outcome) -> set[str]:
    """The gradients of arguments that are written: where nothing reads these afterwards eager code
    has none, and PyTorch's tracer zeros (x.mul_(2)) or an error (x.pow_(2))."""
    pairs = zip(program.arguments, eager.arguments, strict=True)
    return {f"gradient {a.name}" for a, x in pairs if program.copies and x._version}


def _rounding(want: Outcome) -> float:
    """Return the tolerance of a gradient whose terms all cancel.

    For a bias in front of a norm it is some units in the last place of the largest of all
    gradients.
    """
    results = [x for n, x in want.values.items() if n.startswith("gradient") and x is not None]
    sizes = [x.abs().nan_to_num(0, 0, 0).max().item() for x in results if x.is_floating_point()]
    return 2.0**-20 * max(sizes, default=0.0)


def _kind(x: Any) -> str:
    return "nothing" if x is None else f"{x.dtype} {tuple(x.shape)}"


def _placed(value: torch.Tensor, same: torch.Tensor) -> str:
    """Empty if a value lies as eager code's."""
    moving = [a for a, n in enumerate(same.shape) if n > 1]
    one, two = ([x.stride(a) for a in moving] for x in (value, same))
    return "" if one == two else f"{_STRIDES} {value.stride()} where eager has {same.stride()}"


_STRIDES = "lies with strides"


def _announced(program: Program, k: int, got: Outcome) -> bool:
    """Whether all results lie as PyTorch's tracer says that they do."""
    module = program.module(torch.float32, torch.bfloat16)
    inputs = [a.make(k, torch.float32, wants=False) for a in program.arguments]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        values = {n: mode.from_tensor(x) for n, x in state.items()}
        fakes = tuple(mode.from_tensor(x) for x in inputs)
        try:
            result = torch.func.functional_call(module, values, fakes)
        except Exception:  # noqa: BLE001 - it asks for values
            return False
    return not any(map(_placed, got.results, result))


def _reached(
    program: Program, name: str, want: Outcome, others: list[Outcome], eager: Outcome, got: Outcome
) -> Any:
    """The values at positions, in place of the positions."""
    label = name.partition("(")[2][:-1]
    axis = program.reached[label][1]

    def at(outcome: Outcome, values: torch.Tensor) -> Any:
        x, i = values, outcome.values[name]
        keeps = i.dim() == x.dim()
        if bool((i < 0).any() | (i >= x.shape[axis]).any()):
            return torch.full(i.shape, float("nan"))
        y = x.gather(axis, i if keeps else i.unsqueeze(axis))
        return y if keeps else y.squeeze(axis)

    exact = want.seen[label]
    rest = [at(o, o.seen[label]) for o in others]
    return at(want, exact), at(eager, exact), at(got, exact), rest


def _apart(
    exact: torch.Tensor,
    rest: list[torch.Tensor],
    same: torch.Tensor,
    value: torch.Tensor,
    size: float,
    least: float,
) -> list[str]:
    """Where a value is further off than disturbed runs and PyTorch's own are."""
    a, b, c = (x.detach().to(torch.float64) for x in (exact, value, same))
    limit = torch.full_like(a, max(least, 2.0**-100))
    for x in rest:
        off = (x.detach().to(torch.float64) - a).abs()
        limit = torch.maximum(limit, FACTOR * off.nan_to_num(nan=torch.inf))
    rounding = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}.get(value.dtype, 2.0**-24)
    limit += 8 * a.abs().nan_to_num(0, 0, 0) * max(rounding, size if size > 1e-3 else 0)
    limit = torch.maximum(limit, 4 * (c - a).abs().nan_to_num(nan=torch.inf))
    if not exact.is_floating_point():  # whole steps: right, or undecided
        moved = torch.stack([x.to(torch.float64) != a for x in rest]).any(0) | (c != a)
        limit = torch.where(moved, torch.inf, 0.0)
    good = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= limit) | limit.isinf()
    good |= (b == c) | (b.isnan() & c.isnan())
    if good.all():
        return []
    at, count = tuple((~good).nonzero()[0].tolist()), int((~good).sum())
    reported = f"{b[at]} at {at}, {a[at]} expected ({c[at]} in eager float32)"
    return [f"{reported}, {limit[at]:.2g} allowed; {count} of {good.numel()} wrong"]


def _shared(program: Program, eager: Outcome, got: Outcome) -> list[str]:
    """Return pairs of tensors that share memory in one outcome only.

    Either both are results, or one is an argument.
    """
    results = []
    labels = [
        *(f"result {k} ({n})" for k, n in enumerate(program.results)),
        *(a.name for a in program.arguments),
    ]
    sides = [[*o.results, *o.arguments] for o in (eager, got)]
    homes = [[x.untyped_storage().data_ptr() for x in s] for s in sides]
    for k in range(len(eager.results)):
        for j in range(k + 1, len(labels)):
            one, two = (h[k] == h[j] for h in homes)
            if one != two:
                results.append(f"{labels[k]} and {labels[j]} share memory: {two}, in eager {one}")
            elif one and sides[0][k].numel():
                gaps = [s[k].storage_offset() - s[j].storage_offset() for s in sides]
                if gaps[0] != gaps[1]:
                    results.append(
                        f"{labels[k]} is {gaps[1]} elements behind {labels[j]}, in eager {gaps[0]}"
                    )
    return results


def shrunk(program: Program, kind: str = "") -> Program:
    """Reduce a failing program to few lines and results that still fail.

    With `kind` (a part of the complaint) it has to fail in the same way.
    """

    def fails(p: Program) -> bool:
        try:
            return any(kind in x for x in wrong(p))
        except Exception:  # noqa: BLE001 - a line that others need is gone
            return False

    smaller = True
    while smaller:
        smaller = False
        for part in ("results", "lines", "members", "arguments"):
            for k in reversed(range(len(getattr(program, part)))):
                rest = getattr(program, part)
                if len(rest) == 1 and part != "members":
                    continue
                tried = replace(program, **{part: rest[:k] + rest[k + 1 :]})
                tried = replace(
                    tried,
                    reached={
                        n: x for n, x in tried.reached.items() if any(n in y for y in tried.lines)
                    },
                )
                if fails(tried):
                    program, smaller = tried, True
    return program
