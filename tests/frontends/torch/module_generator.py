"""Generate random PyTorch modules as source text, one line at a time.

A template (`statement_templates.py`) proposes a line that uses existing values.  The line runs in
eager code at several sizes; it is dropped if eager code raises or if a result is too large, empty
or not finite.  So no shape rule is written down twice.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

import torch

MOST = 3000
"""Elements of a value, at most: programs are many, not large."""
LAYOUTS = ("plain", "plain", "steps", "turned", "offset", "last", "broadcast")
HEAD = """class Drawn(torch.nn.Module):
    def __init__(self):
        super().__init__()
"""
_NAME = re.compile(r"\b[a-z]\d+\b")
WHOLE = "H, S = torch.bfloat16, torch.float32"


@dataclass(frozen=True)
class Argument:
    """An argument: its sizes in each call, and how it lies in memory."""

    name: str
    sizes: tuple[tuple[int, ...], ...]
    layout: str
    kind: str = "float"
    high: int = 0
    """Whole numbers are below it."""

    def make(self, call: int, single: torch.dtype, *, wants: bool) -> torch.Tensor:
        """The argument of a call: the same numbers in every type."""
        g = torch.Generator().manual_seed(sum(map(ord, self.name)) + 1000 * call)
        shape = self.sizes[call]
        if self.kind == "whole":
            return self._with_layout(torch.randint(0, self.high, shape, generator=g))
        if self.kind == "truth":
            return self._with_layout(torch.randint(0, 2, shape, generator=g) > 0)
        x = self._with_layout(torch.randn(*shape, generator=g).to(single))
        return x.detach().requires_grad_() if wants else x

    def _with_layout(self, x: torch.Tensor) -> torch.Tensor:
        shape = list(x.shape)
        if self.layout == "steps" and shape:
            place = x.new_zeros([*shape[:-1], 2 * shape[-1]])[..., ::2]
        elif self.layout == "turned" and len(shape) > 1:
            place = x.new_zeros([*shape[:-2], shape[-1], shape[-2]]).mT
        elif self.layout == "offset" and shape:
            place = x.new_zeros([shape[0] + 1, *shape[1:]])[1:]
        elif self.layout == "last" and len(shape) == 4:
            return x.contiguous(memory_format=torch.channels_last)
        elif self.layout == "broadcast" and len(shape) > 1:
            return x[:1].expand(*shape)
        else:
            return x
        return place.copy_(x)


@dataclass(frozen=True)
class Program:
    """A module as text, and how it is called."""

    arguments: tuple[Argument, ...]
    members: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    reached: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Positions that are results: the value and axis in which they are."""
    gradients: bool = False
    training: bool = False
    dynamic: bool | None = None
    copies: bool = False
    """Arguments that gradients flow to are results of an operator, and may be written."""

    @property
    def halves(self) -> bool:
        """Whether something is rounded to half precision."""
        return any(re.search(r"\bH\b", line) for line in self.lines)

    def source(self, *, looking: bool = False) -> str:
        """The module; `looking`, it also gives the values in which positions were looked for."""
        names = ", ".join(a.name for a in self.arguments)
        lines, seen = list(self.lines), []
        if looking:
            lines = []
            for line in self.lines:
                lines.append(line)
                for at, (value, _) in self.reached.items():
                    if _assigns(line, at):
                        indent = line[: len(line) - len(line.lstrip())]
                        lines.append(f"{indent}seen_{at} = {value}.detach().clone()")
                        seen.append(f"{at!r}: seen_{at}")
        back = f"[{', '.join(self.results)}]"
        back = f"{back}, {{{', '.join(seen)}}}" if looking else back
        body = "\n".join(f"        {x}" for x in (*lines, f"return {back}"))
        members = "".join(f"        {x}\n" for x in self.members)
        return f"{HEAD}{members}\n    def forward(self, {names}):\n{body}\n"

    def module(self, single: torch.dtype, half: torch.dtype, *, looking: bool = False) -> Any:
        """The module in a type, and what half precision is in it; weights are the same numbers."""
        space = namespace(single, half)
        exec(self.source(looking=looking), space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built = space["Drawn"]()
        return built.to(single).train(self.training)

    def __str__(self) -> str:
        text = "\n".join(f"# {a.name}: {a.kind} {a.sizes} {a.layout}" for a in self.arguments)
        how = "# " + " ".join(
            f"{n}={getattr(self, n)}" for n in ("gradients", "training", "dynamic", "copies")
        )
        return f"{how}\n{text}\n{WHOLE}\n{self.source()}"


def _assigns(line: str, name: str) -> bool:
    return name in line.partition(" = ")[0].replace(",", " ").split()


def namespace(single: torch.dtype, half: torch.dtype) -> dict[str, Any]:
    """What the text of a module may call."""
    return {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "S": single, "H": half}


class Drawing:
    """A module in the making: what a phrase asks for what there is."""

    def __init__(self, seed: int, batches: tuple[int, ...] = ()) -> None:
        """`batches`: the first size of every argument in each call."""
        self.random = random.Random(seed)
        r = self.random
        self.gradients, self.training = r.random() < 0.5, r.random() < 0.4
        self.dynamic = r.choice([None, True, True, False]) if not batches else None
        self.copies = self.gradients and r.random() < 0.4
        self.lines: list[str] = []
        self.members: list[str] = []
        self.reached: dict[str, tuple[str, int]] = {}
        self.arguments = self._arguments(batches)
        self.module = torch.nn.Module().train(self.training)
        self._space = namespace(torch.float32, torch.bfloat16) | {"self": self.module}
        self._count = 0
        self._new: list[str] = []
        self.calls: list[dict[str, Any]] = [
            {a.name: self._given(a, k) for a in self.arguments}
            for k in range(len(self.arguments[0].sizes))
        ]

    def _given(self, a: Argument, call: int) -> torch.Tensor:
        x = a.make(call, torch.float32, wants=self.gradients)
        return x * 1 if self.copies else x  # what is written must be no leaf

    def _arguments(self, batches: tuple[int, ...]) -> tuple[Argument, ...]:
        r = self.random
        count = len(batches) or 2
        dims = [(n,) * count for n in r.sample([1, 2, 2, 3, 4, 5, 6, 8], 3)]
        varies = r.choice([(3, 5), (4, 7), (2, 6), (5, 3), (7, 4), (6, 9), (3, 2), (2, 3), (3, 1)])
        varies, at = (batches, 0) if batches else (varies, r.randrange(2))
        results = []
        for k in range(r.randint(1, 3)):
            rank = r.choice([2, 2, 3, 3, 4]) if k == 0 else r.choice([1, 2, 3, 4])
            shape = [r.choice(dims) for _ in range(rank)]
            shape[min(at, rank - 1)] = varies
            sizes = tuple(tuple(n[call] for n in shape) for call in range(count))
            results.append(Argument(f"x{k}", sizes, r.choice(LAYOUTS)))
        if r.random() < 0.4:
            n = r.choice([varies, *dims])
            results.append(
                Argument("i0", tuple((m,) for m in n), r.choice(LAYOUTS[:5]), "whole", 2)
            )
        if r.random() < 0.2:
            results.append(replace(results[0], name="m0", kind="truth"))
        return tuple(results)

    # ---- what phrases ask ------------------------------------------------------------------------

    def names(self, kind: str = "float", least: int = 0, most: int = 5) -> list[str]:
        """Values of a kind and of so many axes."""
        test = {
            "float": torch.is_floating_point,
            "truth": lambda x: x.dtype is torch.bool,
            "whole": lambda x: x.dtype in (torch.int64, torch.int32),
        }[kind]
        results = {
            n: x for n, x in self.calls[0].items() if isinstance(x, torch.Tensor) and test(x)
        }
        return [n for n, x in results.items() if least <= x.dim() <= most]

    def value(self, kind: str = "float", least: int = 0, most: int = 5) -> str:
        """One of these values, rather one that nothing reads yet.  Raises IndexError if there is
        none."""
        result = self.names(kind, least, most)
        return self.random.choice(self._unread(result) if self.random.random() < 0.6 else result)

    def _unread(self, names: list[str]) -> list[str]:
        """Return the values that no line reads, or all."""
        read = {w for line in self.lines for w in _NAME.findall(line.partition(" = ")[2] or line)}
        return [n for n in names if n not in read] or names

    def like(self, name: str) -> str:
        """A value that broadcasts with another, often."""
        shape = self.calls[0][name].shape
        results = [n for n in self.names() if _meet(self.calls[0][n].shape, shape)]
        others = [n for n in results if n != name] if self.random.random() < 0.7 else []
        return self.random.choice(others or results)

    def rank(self, name: str) -> int:
        return self.calls[0][name].dim()

    def axis(self, name: str) -> int:
        """An axis, counted from either end."""
        rank = self.rank(name)
        return self.random.randrange(-rank, rank)

    def size(self, name: str, axis: int) -> int:
        """A size as it is in the first call."""
        return self.calls[0][name].shape[axis]

    def static(self, name: str, axis: int) -> int:
        """A size that no call changes.  Raises IndexError where one does."""
        first, *others = (c[name].shape[axis] for c in self.calls)
        if any(n != first for n in others):
            raise IndexError
        return first

    def number(self) -> float:
        return self.random.choice([0.5, 2.0, -1.5, 0.1, 3.0, 1.0, -0.3])

    def new(self) -> str:
        """A name for a result."""
        self._count += 1
        self._new.append(f"v{self._count}")
        return self._new[-1]

    def member(self, text: str) -> str:
        """A module or parameter of the module, as the text that reads it."""
        self._count += 1
        name = f"m{self._count}"
        self._add_member(f"self.{name} = {text}")
        return f"self.{name}"

    def buffer(self, text: str) -> str:
        """Add a buffer of a drawn shape and return its name."""
        self._count += 1
        name = f"b{self._count}"
        self._add_member(f'self.register_buffer("{name}", {text})')
        return f"self.{name}"

    def _add_member(self, line: str) -> None:
        exec(line, self._space)
        self.module.train(self.training)
        self.members.append(line)

    # ---- one more line ---------------------------------------------------------------------------

    def say(self, phrase: Any) -> bool:
        """Tries what a phrase proposes; whether it is part of the module now."""
        members, self._new = len(self.members), []
        try:
            text = phrase(self)
            results = [self._try(text, call) for call in self.calls]
        except Exception:  # noqa: BLE001 - whatever eager code or a phrase objects to
            text = None
        if text is None or not all(map(_fits, results)):
            del self.members[members:]
            for name in self._new:
                self.reached.pop(name, None)
            return False
        self.lines += text.split("\n")
        for call, new in zip(self.calls, results, strict=True):
            call.update(new)
        return True

    def _try(self, text: str, call: dict[str, Any]) -> dict[str, Any]:
        space = self._space | call
        with torch.set_grad_enabled(self.gradients):
            exec(text, space)
        fresh = dict.fromkeys([*self._new, *call])
        return {n: space[n] for n in fresh if n in space}

    def finished(self) -> Program:
        """The module, with some of its last values as results."""
        r = self.random
        built = [n for n in self.calls[0] if isinstance(self.calls[0][n], torch.Tensor)]
        late = [n for n in self._unread(built) if n[0] == "v"] or built[-1:]
        results = r.sample(late, min(len(late), r.choice([1, 2, 3, 4])))
        if r.random() < 0.25:
            results.append(r.choice(built))
        matrices = [n for n in results if self.rank(n) > 1]
        if matrices and r.random() < 0.3:
            base = r.choice(matrices)
            results.append(
                base
                + r.choice(
                    [
                        ".mT",
                        "[0]",
                        "[..., ::2]",
                        "[:, -1]",
                        ".flatten(-2)",
                        ".unsqueeze(1)",
                        ".detach()",
                    ]
                )
            )
        return Program(
            self.arguments,
            tuple(self.members),
            tuple(self.lines),
            tuple(results),
            dict(self.reached),
            self.gradients,
            self.training,
            self.dynamic,
            self.copies,
        )


def _meet(one: Any, two: Any) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(one), reversed(two)))


def _fits(actual: dict[str, Any]) -> bool:
    tensors = [x for x in actual.values() if isinstance(x, torch.Tensor)]
    return all(0 < x.numel() <= MOST and not x.isnan().any() for x in tensors)


def draw(
    seed: int, phrases: Any, length: int | None = None, batches: tuple[int, ...] = ()
) -> Program:
    """The module of a seed: `phrases` are (weight, phrase); `batches`, if told, is the first size
    of each argument in each call."""
    d = Drawing(seed, batches)
    wanted = length or d.random.randint(4, 12)
    if batches:  # what has a parameter is a model, whose batches vary
        d.say(lambda d: f"{d.new()} = x0 * {d.member('nn.Parameter(torch.tensor(1.5))')}")
    weights, kinds = zip(*phrases, strict=True)
    for _ in range(20 * wanted):
        d.say(d.random.choices(kinds, weights)[0])
        if len(d.lines) >= wanted:
            break
    return d.finished()
