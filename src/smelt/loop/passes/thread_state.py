"""Make values of variables that statements change: loops carry them, branches give results.

This is the construction of SSA form on loops and branches. A subclass says which variables there
are, rewrites statements that change them by `assign`, and reads them from `state`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from smelt.loop import ir
from smelt.loop.env import INDEX, Type
from smelt.loop.walk import Body, Names, Rewriter, names_in, values

Key: TypeAlias = tuple[str, int]
"""Variable: the name of a carry or of an array, and a number."""


class ThreadState(Rewriter):
    """Rewrites statements in order, with the current value of each variable."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.new_names = names
        self.state: dict[Key, ir.Value] = {}
        self.types: dict[Key, Type] = {}
        self.assigned: set[str] = set()
        """Names that `assign` has bound."""

    def changes(self, body: Iterable[ir.Statement]) -> list[Key]:
        """Return the variables that statements change."""
        raise NotImplementedError

    def read(self, key: Key, name: str) -> ir.Value:
        """Return the value of a name that holds a variable."""
        return ir.position(ir.number(name)) if self.types[key] == INDEX else ir.Ref(name)

    def assign(self, key: Key, value: ir.Value) -> Body:
        """Give a variable another value, by a name of its own."""
        name = self.new_names.new(key[0])
        self.assigned.add(name)
        self.state[key] = self.read(key, name)
        return (ir.Let(name, value),)

    def thread_loop(self, s: ir.For, named: dict[Key, str], carry: tuple[ir.Carry, ...]) -> ir.For:
        """Rebuild a loop, which carries what its body changes besides `carry`.

        `named` has the names of variables that are read after the loop by name.
        """
        keys = [k for k in self.changes(s.body) if k in self.state]
        threaded: dict[Key, str] = {}
        out = [self.carry(c) for c in carry]
        for key in dict.fromkeys((*named, *keys)):
            name = named.get(key) or self.new_names.new(key[0])
            threaded[key] = name
            out.append(ir.Carry(name, self.state[key]))
            self.state[key] = self.read(key, name)
        body = list(self.body(s.body))
        body += self._nexts(threaded, body)
        for key, name in threaded.items():
            self.state[key] = self.read(key, name)
        kind = "for" if s.kind == "each" and threaded else s.kind
        low, high, step = self.index(s.low), self.index(s.high), self.index(s.step)
        return ir.For(kind, s.var, low, high, tuple(body), step, tuple(out))

    def thread_branch(self, s: ir.If) -> ir.If:
        """Rebuild a branch, whose results are what its sides change."""
        keys = [k for k in self.changes((*s.then, *s.other)) if k in self.state]
        threaded = {key: self.new_names.new(key[0]) for key in dict.fromkeys(keys)}
        cond, before = self.value(s.cond), dict(self.state)
        sides: list[Body] = []
        for side in (s.then, s.other):
            self.state = dict(before)
            body = list(self.body(side))
            sides.append((*body, *self._nexts(threaded, body)))
        self.state = before
        for key, name in threaded.items():
            self.state[key] = self.read(key, name)
        return ir.If(cond, sides[0], sides[1], (*s.results, *threaded.values()))

    def _nexts(self, threaded: dict[Key, str], body: list[ir.Statement]) -> list[ir.Statement]:
        """Return the next values; those that the last statements bind are taken from there."""
        nexts: dict[str, ir.Value] = {name: self.state[key] for key, name in threaded.items()}
        reads: Counter[str] | None = None
        while body and isinstance(s := body[-1], ir.Let) and s.name in self.assigned:
            if reads is None:
                reads = Counter(n for x in body for v in values(x) for n in names_in(v))
            readers = [n for n, v in nexts.items() if s.name in names_in(v)]
            unchanged = (ir.Ref(s.name), ir.position(ir.number(s.name)))
            if len(readers) != 1 or reads[s.name] or nexts[readers[0]] not in unchanged:
                break
            nexts[readers[0]] = s.value
            reads.subtract(names_in(s.value))
            body.pop()
        return [ir.Next(name, value) for name, value in nexts.items()]
