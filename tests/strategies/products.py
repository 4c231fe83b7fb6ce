"""Draw random programs around matrix products of computed operands.

    program = products(seed)
    found = sm.jit(program)(*program.arrays)

Sizes are those at which blocks, panels and tasks begin anew, for rows, columns and sums alike; a
product may stand before a stream, in one, or behind one, and its operands be shared by others.
Same seed, same program: `program.text` is what it does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import smelt as sm

Array = np.ndarray[Any, Any]
LETTERS = "nmde"
SIZES = (1, 2, 3, 7, 15, 16, 17, 33, 48, 63, 64, 65, 97, 128, 129, 160, 193, 257, 300, 520)
TYPES = (np.float32, np.float32, np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Products:
    """A program: matrices by two letters (`nd`), vectors by one (`v_d`), steps that name them."""

    arrays: list[Array]
    names: list[str]
    steps: list[tuple[str, str, list[str], float]]
    """What is made, how, of what, and with which number."""
    outputs: list[str]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = dict(zip(self.names, inputs, strict=True))
        for built, kind, operands, number in self.steps:
            values[built] = STEPS[kind](number, *(values[name] for name in operands))
        return tuple(values[name] for name in self.outputs)

    @property
    def text(self) -> str:
        """Inputs with their types, then a line for each step."""
        inputs = [
            f"{n}: {a.dtype}{list(a.shape)}" for n, a in zip(self.names, self.arrays, strict=True)
        ]
        steps = [
            f"{built} = {kind}({', '.join(operands)}; {number:.3})"
            for built, kind, operands, number in self.steps
        ]
        return "\n".join([*inputs, *steps, f"return {', '.join(self.outputs)}"])


def _bounded(x: Any) -> Any:
    return sm.exp(sm.minimum(x, 2.0))


def _centred(_: float, x: Any) -> Any:
    x = x - sm.mean(x, axis=1, keepdims=True)
    return x / sm.sqrt(sm.mean(x * x, axis=1, keepdims=True) + 0.05)


def _causal(_: float, x: Any) -> Any:
    rows, columns = sm.arange(x.shape[0])[:, None], sm.arange(x.shape[1])[None, :]
    return sm.where(rows >= columns, x, -1e4)


def _attended(number: float, q: Any, k: Any, v: Any) -> Any:
    scores = (q @ sm.matrix_transpose(k)) * number
    return sm.nn.softmax(_causal(number, scores) if number < 0.2 else scores, axis=1) @ v


def _scored(number: float, x: Any, y: Any, v: Any) -> Any:
    """A fold of a product that is never whole, whose operands are computed before the stream."""
    x = PROLOGUES[int(number * 16) % len(PROLOGUES)](x, v)
    y = PROLOGUES[int(number * 256) % len(PROLOGUES)](y, v)
    scores = (x @ sm.matrix_transpose(y)) * 0.25
    fold = FOLDS[int(number * 4096) % len(FOLDS)]
    return fold(sm.tanh(scores) if number < 0.3 else scores, axis=1)


PROLOGUES: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, _: x,
    lambda x, v: x * v,
    lambda x, v: x + v,
    lambda x, _: _centred(0.0, x),
)
FOLDS: tuple[Callable[..., Any], ...] = (sm.nn.logsumexp, sm.max, sm.sum)
MAPS: tuple[Callable[[Any], Any], ...] = (
    sm.tanh,
    _bounded,
    sm.abs,
    sm.nn.relu,
    sm.square,
    sm.nn.gelu,
    lambda x: x * 0.5 - 0.25,
)
STEPS: dict[str, Callable[..., Any]] = {
    "product": lambda c, x, y: (x @ y) * c,
    "turned": lambda c, x, y: (x @ sm.matrix_transpose(y)) * c,
    "attended": _attended,
    "scored": _scored,
    "map": lambda c, x: MAPS[int(c * len(MAPS))](x),
    "add": lambda _, x, y: x + y,
    "mul": lambda _, x, y: x * y,
    "rows": lambda c, x, v: x * v[:, None] if c < 0.5 else x + v[:, None],
    "columns": lambda c, x, v: x * v if c < 0.5 else x + v,
    "softmax": lambda c, x: sm.nn.softmax(x, axis=int(c < 0.7)),
    "centred": _centred,
    "causal": _causal,
    "turn": lambda _, x: sm.matrix_transpose(x),
    "running": lambda c, x: sm.cumulative_sum(x, axis=int(c < 0.7)) * 0.25,
    "logsumexp": lambda _, x: sm.nn.logsumexp(x, axis=1),
    "sum": lambda _, x: sm.sum(x, axis=1),
    "max": lambda _, x: sm.max(x, axis=1),
    "down": lambda _, x: sm.sum(x, axis=0),
}
WEIGHTS = {
    "product": 3,
    "turned": 3,
    "attended": 2,
    "scored": 4,
    "map": 3,
    "columns": 2,
    "softmax": 2,
    "logsumexp": 2,
}
KINDS = [kind for kind in STEPS for _ in range(WEIGHTS.get(kind, 1))]


class _Drawer:
    """Draws steps; a value's name begins with its letters."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.extent = {c: int(self.rng.choice(SIZES)) for c in LETTERS}
        self.type = TYPES[int(self.rng.integers(len(TYPES)))]
        self.given: dict[str, Array] = {}
        self.made: list[str] = []
        self.steps: list[tuple[str, str, list[str], float]] = []

    def value(self, accept: Callable[[str], bool]) -> str:
        """A value whose letters will do, mostly a late one, or an input."""
        built = [name for name in self.made if accept(name.partition("_")[0])]
        if built and self.rng.random() < 0.75:
            return built[-1 - int(self.rng.random() ** 2 * len(built))]
        pairs = ["".join(p) for p in itertools.product(LETTERS, repeat=2)]
        letters = str(self.rng.choice([p for p in (*pairs, *LETTERS) if accept(p)]))
        name = f"{letters}_{int(self.rng.integers(2))}"
        if name not in self.given:
            shape = [self.extent[c] for c in letters]
            self.given[name] = (0.6 * self.rng.standard_normal(shape)).astype(self.type)
        return name

    def step(self) -> None:
        """One line more."""
        kind, number = str(self.rng.choice(KINDS)), float(self.rng.random())
        x = self.value(lambda p: len(p) == 2)
        operands, letters = [x], x[:2]
        if kind in ("product", "turned"):
            end = int(kind == "turned")
            operands.append(self.value(lambda p: len(p) == 2 and p[end] == letters[1]))
            letters = letters[0] + operands[1][1 - end]
            number = float(self.extent[x[1]] ** -0.5)
        elif kind == "attended":
            keys = self.value(lambda p: len(p) == 2 and p[1] == letters[1])
            operands += [keys, self.value(lambda p: len(p) == 2 and p[0] == keys[0])]
            letters = letters[0] + operands[2][1]
            number = float(self.extent[x[1]] ** -0.5)
        elif kind == "scored":
            operands.append(self.value(lambda p: len(p) == 2 and p[1] == letters[1]))
            operands.append(self.value(lambda p: p == letters[1]))
            letters = letters[0]
        elif kind in ("add", "mul"):
            operands.append(self.value(lambda p: p == letters))
        elif kind in ("rows", "columns"):
            operands.append(self.value(lambda p: p == letters[kind == "columns"]))
        elif kind == "turn":
            letters = letters[::-1]
        elif kind in ("logsumexp", "sum", "max", "down"):
            letters = letters[kind == "down"]
        built = f"{letters}_{len(self.steps) + 2}"
        self.steps.append((built, kind, operands, number))
        self.made.append(built)


def products(seed: int) -> Products:
    """The program of a seed."""
    d = _Drawer(seed)
    for _ in range(int(d.rng.integers(2, 8))):
        d.step()
    count = int(d.rng.integers(1, 4))
    picked = {len(d.made) - 1, *(int(d.rng.integers(len(d.made))) for _ in range(count - 1))}
    return Products(list(d.given.values()), list(d.given), d.steps, [d.made[k] for k in picked])
