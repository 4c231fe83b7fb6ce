"""Write what a program without Python has to know as words: `runtime/c/library.h` has the rows.

A program file has recipes with expressions of sizes. Here each expression becomes rows of
arithmetic (`smelt.types.formula`), which native code computes in order; choices of variants and
predicted times are such rows too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from smelt.errors import LibraryError
from smelt.kernel.artifact import (
    CompiledKernel,
    Variant,
    Variants,
    product_cycles,
    size_or_number,
)
from smelt.kernel.chunks import FIRST_ROW, WHOLE
from smelt.knobs import SPIN_US
from smelt.machine.processor import linux_names
from smelt.ops.combine import SCALAR_IDENTITIES
from smelt.packages.version import __version__
from smelt.runtime import native_layout as layout
from smelt.runtime.code import key_of
from smelt.runtime.executable_format import CallUse, ChunkedUse, KernelUse, LoopUse, Recipe
from smelt.runtime.native import library_constants
from smelt.runtime.plan_tables import Value
from smelt.saved import recording
from smelt.saved.file import ProgramFile
from smelt.saved.recording import SavedArgument
from smelt.types.dtype import DTYPES, DType, bool_, f64, i64
from smelt.types.dtype import from_numpy as dtype_of
from smelt.types.expr import Index, evaluate
from smelt.types.formula import Number, Rows, choose, larger
from smelt.types.tensor import shape_text

Array = np.ndarray[Any, Any]
_DTYPES = {d: getattr(layout, f"SMELT_{d.name.upper()}") for d in DTYPES if d.kind != "complex"}
_NUMBERS = {"int": i64, "float": f64}
_PLAIN = {bool: bool_, int: i64, float: f64}


class _Address(NamedTuple):
    """A byte of the image, known when everything is placed: of a constant, or of code."""

    number: int
    symbol: str = ""


Word = int | _Address


class Tables:
    """The tables of a file's programs, with the code and constants that they refer to."""

    def __init__(self, file: ProgramFile, sets: Sequence[str]) -> None:
        """Read the programs; `sets` are the instruction sets whose plans are taken.

        Raises LibraryError for a program with a part that NumPy computes.
        """
        self.file, self.sets = file, sets
        self.words: list[Word] = [0] * (layout.SIZES["LIB_TABLES"] // 8)
        self.codes: list[bytes] = []
        self.constants: list[Array] = []
        self.texts: list[str] = []
        self._code_numbers: dict[int, int] = {}
        self._placed: dict[Any, int] = {}
        programs = [self._program(*x) for x in file.facts["programs"].items()]
        self.words[: len(self.words[: layout.SIZES["LIB_TABLES"] // 8])] = self._row(
            "LIB_TABLES",
            programs=self.add([x for row in programs for x in row]),
            program_count=len(programs),
            version=self.text(__version__),
            spin=SPIN_US.get() * 1000,
            **library_constants(),
        )

    def finish(self, symbol: Callable[[int, str], int], at: int) -> tuple[bytes, list[Array]]:
        """Return the tables, which will stand at byte `at`, and the arrays that follow.

        `symbol` returns the address of a symbol of a code, by number. All parts are aligned to 64.
        """
        end = at + -(-8 * len(self.words) // 64) * 64
        places: list[int] = []
        for array in self.constants:
            places.append(end)
            end += -(-array.nbytes // 64) * 64
        numbers = [
            w if isinstance(w, int) else symbol(*w) if w.symbol else places[w.number]
            for w in self.words
        ]
        return np.array(numbers, np.int64).tobytes(), self.constants

    # ---- words -----------------------------------------------------------------------------------

    def add(self, words: Sequence[Word]) -> int:
        """Append words; return the index of the first, shared by equal ones."""
        key = tuple(words)
        at = self._placed.setdefault(key, len(self.words))
        if at == len(self.words):
            self.words += words
        return at

    def text(self, text: str) -> int:
        """Append text that ends with a null; return its index."""
        data = text.encode() + b"\0"
        return self.add(np.frombuffer(data + bytes(-len(data) % 8), np.int64).tolist())

    def constant(self, array: Array) -> _Address:
        """Return the address of an array's elements, of which only equal memory is shared."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for number, x in enumerate(self.constants):
            if x.size == flat.size and np.shares_memory(x, flat):
                return _Address(number)
        self.constants.append(flat)
        return _Address(len(self.constants) - 1)

    def code(self, section: int, symbol: str) -> _Address:
        """Return the address of a function in the code of a section."""
        number = self._code_numbers.setdefault(section, len(self.codes))
        if number == len(self.codes):
            self.codes.append(self.file.read(section))
        return _Address(number, symbol)

    def _row(self, struct: str, **fields: Word) -> list[Word]:
        """Return the words of a struct."""
        offsets: Mapping[str, int] = getattr(layout, struct)
        words: list[Word] = [0] * (layout.SIZES[struct] // 8)
        assert fields.keys() == {n.lower() for n in offsets}, (struct, fields)
        for name, at in offsets.items():
            words[at // 8] = fields[name.lower()]
        return words

    def rows(self, struct: str, rows: Sequence[Mapping[str, Word]]) -> int:
        """Append rows of a struct; return the index of the first."""
        return self.add([word for row in rows for word in self._row(struct, **row)])

    # ---- programs --------------------------------------------------------------------------------

    def _program(self, name: str, entries: Sequence[Mapping[str, Any]]) -> list[Word]:
        recordings = [_Recording(self, name, entry) for entry in entries]
        first = recordings[0]
        self.texts.append(first.text)
        return self._row(
            "LIB_PROGRAM",
            name=self.text(name),
            text=self.text(first.text),
            recordings=self.rows("LIB_RECORDING", [r.row for r in recordings]),
            recording_count=len(recordings),
            argument_count=len(first.leaves),
            result_count=len(first.recording.outcomes),
            caller_argument_count=len(first.leaves) - sum(first.argument_parts),
            caller_result_count=len(first.recording.outcomes) - sum(first.result_parts),
            argument_parts=self.add(first.argument_parts or [0]),
            result_parts=self.add(first.result_parts or [0]),
            parameter_count=max(r.parameter_count for r in recordings),
            node_count=max(len(r.rows.table) for r in recordings),
        )


class _Recording:
    """A recording with its plans as rows; `row` is its own."""

    def __init__(self, tables: Tables, name: str, entry: Mapping[str, Any]) -> None:
        self.tables, self.name, self.rows = tables, name, Rows()
        self.recording = r = recording.read(tables.file, entry["recording"])
        plans = [p for p in entry["plans"] if p["isa"] in tables.sets]
        self.recipes = [Recipe.from_data(json.loads(tables.file.read(p["recipe"]))) for p in plans]
        self._check()
        passed = [k for k, x in enumerate(r.leaves) if x.dtype is not None or x.number]
        self.numbers = {leaf: k for k, leaf in enumerate(passed)}
        """Positions of leaves among the arguments in C, which has no static ones."""
        self.leaves = [r.leaves[k] for k in passed]
        parts = _real_parts(r.call, len(r.leaves))
        self.argument_parts = [parts[k] for k in passed]
        """Whether a leaf is the real part of a complex array, whose imaginary part follows."""
        self.result_parts = _real_parts(r.result, len(r.outcomes))
        self.dims: list[list[Number]] = []
        accepted, self.sizes = self._match()
        self.accepted = self.rows.number(accepted)
        self.text = f"{name}({self._arguments_text()}) -> {self._results_text()}"
        results = [self._result(k) for k in range(len(r.outcomes))]
        match_end = len(self.rows.table)
        pairs = zip(self.recipes, plans, strict=True)
        rows = [_Plan(self, recipe, facts).row for recipe, facts in pairs]
        self.row: dict[str, Word] = {
            "arguments": tables.rows("LIB_ARGUMENT", [_argument(tables, x) for x in self.leaves]),
            "nodes": tables.rows("LIB_NODE", [_node(*row) for row in self.rows.table]),
            "match_end": match_end,
            "accepted": self.accepted.row,
            "results": tables.rows("LIB_RESULT", results),
            "plans": tables.rows("LIB_PLAN", rows),
            "plan_count": len(rows),
        }

    def _check(self) -> None:
        r = self.recording
        transposed = r.permutations is not None and any(x for side in r.permutations for x in side)
        ranks = [len(x.shape) for x in r.leaves] + [len(x.type.shape) for x in r.graph.results]
        for part, is_there in {
            "operators that NumPy computes": any(map(_calls, self.recipes)),
            "an array in another order than by rows": transposed,
            "an array of too many axes": max(ranks, default=0) > layout.SMELT_MAX_RANK,
            "a complex argument that is not two real arrays": any(
                x.number == "complex" or (x.dtype or i64) not in _DTYPES for x in r.leaves
            ),
        }.items():
            if is_there:
                raise LibraryError(name=self.name, part=part)

    # ---- sizes -----------------------------------------------------------------------------------

    def _match(self) -> tuple[Any, list[Any]]:
        """Return whether the guards hold, and the sizes, from dimensions and numbers."""
        parameters: list[Number | None] = []
        for x in self.leaves:
            dims = [self.rows.parameter(len(parameters) + d) for d in range(len(x.shape))]
            self.dims.append(dims)
            parameters += dims
        for x in self.leaves:
            if x.number:
                is_read = x.number == "int"
                parameters.append(self.rows.parameter(len(parameters)) if is_read else None)
        self.parameter_count = len(parameters)
        try:
            return self.recording.match.on(parameters)
        except ValueError as error:
            part = "a condition on the value of a floating point number"
            raise LibraryError(name=self.name, part=part) from error

    def at(self, e: Index, sizes: Mapping[str, Any]) -> Number:
        """Return an expression of sizes as a row."""
        return self.rows.number(evaluate(e, sizes))

    # ---- results ---------------------------------------------------------------------------------

    def _result(self, k: int) -> dict[str, Word]:
        r, x = self.recording, self.recording.outcomes[k]
        named = dict(zip(r.hints, self.sizes, strict=True))
        if x.kind == "graph":
            type_ = r.graph.outputs[x.position].type
            kind, source = self._source(k, x.position)
            return self._result_row(
                kind, source, type_.dtype, [self.at(d, named) for d in type_.shape]
            )
        if x.kind == "argument":
            number = self.numbers[x.position]
            dtype = self.leaves[number].dtype or _NUMBERS[self.leaves[number].number]
            return self._result_row("LIB_OF_ARGUMENT", number, dtype, self.dims[number])
        if x.kind == "size":
            return self._result_row("LIB_OF_NODE", self.at(x.value, named).row, i64, [])
        value = x.value if x.kind == "captured" else np.asarray(x.value)
        if x.kind == "plain" and type(x.value) not in _PLAIN:
            raise LibraryError(name=self.name, part=f"a result that is {x.value!r}")
        dims = [self.rows.constant(n) for n in value.shape]
        constant = self.tables.constant(value)
        return self._result_row("LIB_OF_CONSTANT", constant, dtype_of(value.dtype), dims)

    def _source(self, k: int, position: int) -> tuple[str, Word]:
        """Return where an output of the graph comes from: a value that is in memory already?"""
        r, recipe = self.recording, self.recipes[0]
        number = recipe.outputs[position]
        value = recipe.values[number]
        if value.place == "input" and value.number < len(r.arguments):
            return "LIB_OF_ARGUMENT", self.numbers[r.arguments[value.number]]
        if value.place == "input" and value.number < len(r.arguments) + len(r.constants):
            constant = r.constants[value.number - len(r.arguments)]
            return "LIB_OF_CONSTANT", self.tables.constant(constant)
        for j, y in enumerate(r.outcomes[:k]):
            if y.kind == "graph" and recipe.outputs[y.position] == number:
                return "LIB_OF_RESULT", j
        if value.place != "output":
            raise LibraryError(name=self.name, part=f"a result in {value.place} memory")
        return "LIB_COMPUTED", 0

    def _result_row(
        self, kind: str, source: Word, dtype: DType, dims: Sequence[Number]
    ) -> dict[str, Word]:
        return {
            "kind": getattr(layout, kind),
            "source": source,
            "dtype": _DTYPES[dtype],
            "itemsize": dtype.itemsize,
            "rank": len(dims),
            "dims": self.tables.add([n.row for n in dims] or [0]),
        }

    # ---- texts -----------------------------------------------------------------------------------

    def _arguments_text(self) -> str:
        names = [self.recording.names[k] for k in self.numbers]
        types = [_NUMBERS[x.number].name if x.number else str(x) for x in self.leaves]
        texts = [
            f"{name.removesuffix('.real') if is_real else name}: {text}"
            for name, text, is_real in zip(
                names, _join_parts(types, self.argument_parts), self.argument_parts, strict=True
            )
        ]
        return ", ".join(_without_imaginary(texts, self.argument_parts))

    def _results_text(self) -> str:
        texts = [
            str(self.recording.graph.outputs[x.position].type)
            if x.kind == "graph"
            else str(self.recording.leaves[x.position])
            if x.kind == "argument"
            else "i64"
            if x.kind == "size"
            else f"{dtype_of(np.asarray(x.value).dtype).name}[{shape_text(np.shape(x.value))}]"
            for x in self.recording.outcomes
        ]
        texts = _join_parts(texts, self.result_parts)
        return "; ".join(_without_imaginary(texts, self.result_parts)) or "nothing"


def _real_parts(nest: Any, count: int) -> list[int]:
    """Return by leaf of a nest whether it is a complex array's real part.

    >>> _real_parts(["sequence", "tuple", None, ["leaf", ["pair", ["leaf", "leaf"]]]], 3)
    [0, 1, 0]
    """
    flags: list[int] = []

    def walk(x: Any) -> None:
        if isinstance(x, str):
            flags.append(0)
        elif x[0] == "pair":
            flags.extend((1, 0))
        elif x[0] not in ("none", "constant"):
            for item in x[-1]:
                walk(item)

    walk(nest)
    return flags if len(flags) == count else [0] * count


def _join_parts(types: Sequence[str], parts: Sequence[int]) -> list[str]:
    """Return the texts of types, those of real parts as of the complex arrays."""
    names = {"f32": "c64", "f64": "c128"}
    return [names[t[:3]] + t[3:] if p else t for t, p in zip(types, parts, strict=True)]


def _without_imaginary(texts: Sequence[str], parts: Sequence[int]) -> list[str]:
    before = [0, *parts]
    return [t for t, is_imaginary in zip(texts, before, strict=False) if not is_imaginary]


def _argument(tables: Tables, x: SavedArgument) -> dict[str, Word]:
    dtype = x.dtype or _NUMBERS[x.number]
    return {
        "dtype": _DTYPES[dtype],
        "itemsize": dtype.itemsize,
        "rank": len(x.shape),
        "dims": tables.add([d if isinstance(d, int) else -1 for d in x.shape] or [0]),
        "is_number": int(x.number == "int"),
    }


def _node(op: str, a: int, b: int, c: int) -> dict[str, Word]:
    return {"op": getattr(layout, f"LIB_{op}"), "a": a, "b": b, "c": c}


# ---- plans ---------------------------------------------------------------------------------------


def _calls(recipe: Recipe) -> bool:
    """Return whether a plan, or one within it, calls NumPy."""
    bodies = [s.body for s in recipe.steps if isinstance(s, ChunkedUse | LoopUse)]
    return any(isinstance(s, CallUse) for s in recipe.steps) or any(map(_calls, bodies))


class _Plan:
    """A plan of a recording as rows; `row` is its own."""

    def __init__(self, whole: _Recording, recipe: Recipe, facts: Mapping[str, Any]) -> None:
        self.whole, self.facts, self.tables = whole, facts, whole.tables
        self.parts = self.places = 0
        named = dict(zip(recipe.size_names, whole.sizes, strict=True))
        hints = [int(n) for n in facts["hints"].values()]
        pairs = zip(map(whole.rows.number, whole.sizes), hints, strict=True)
        sizes = [word for n, hint in pairs for word in (n.row, hint)]
        features = linux_names(map(str, facts["target"]["features"]))
        body = _PlanBody(self, recipe, named).at
        self.row: dict[str, Word] = {
            "features": self.tables.text(" ".join("|".join(n) for n in sorted(features.values()))),
            "sizes": self.tables.add(sizes or [0]),
            "size_count": len(hints),
            "body": body,
            "part_count": self.parts,
            "place_count": self.places,
            "flag": recipe.outputs[-1] if whole.recording.graph.checks else -1,
            "end": len(whole.rows.table),
        }


class _Body:
    """A plan, or that of a step, as rows at `at`; `named` are its sizes."""

    def __init__(self, plan: _Plan, recipe: Recipe, named: Mapping[str, Any]) -> None:
        self.plan, self.recipe, self.named = plan, recipe, named
        self.whole, self.tables, self.rows = plan.whole, plan.tables, plan.whole.rows
        self.top: Any = self.rows.constant(0)
        for end in recipe.arena:
            self.top = larger(self.top, self._at(end))
        counts = self._counts()
        places = plan.places
        plan.places += counts[0] + 2 * counts[1]  # steps have targets of results, too
        values = [self._value(n, v) for n, v in enumerate(recipe.values)]
        written = [self.nbytes(v) for v in recipe.values if v.place == "output"]
        self.touched: set[int] = set()
        groups = [row for group in recipe.launches for row in self._groups(group)]
        row: dict[str, Word] = {
            "values": self.tables.rows("LIB_VALUE", values),
            "groups": self.tables.rows("LIB_GROUP", groups),
            "group_count": len(groups),
            "arena": self.rows.number(self.top).row,
            "written": self.rows.number(sum(written) if written else 1).row,
            "places": places,
            "input_count": counts[0],
        }
        self.at = self.tables.rows("LIB_BODY", [row])

    def _at(self, e: Index) -> Number:
        return self.whole.at(e, self.named)

    def nbytes(self, v: Value) -> Any:
        """Return the bytes of a value."""
        total: Any = v.dtype.itemsize
        for d in v.shape:
            total = total * evaluate(d, self.named)
        return total

    # ---- values ----------------------------------------------------------------------------------

    @property
    def inputs(self) -> list[Value]:
        """The inputs, by number."""
        values = [v for v in self.recipe.values if v.place == "input"]
        return sorted(values, key=lambda v: v.number)

    def _extents(self, n: int) -> list[Any]:
        """Return the shape of the array that a value is a part of."""
        return [evaluate(d, self.named) for d in self.recipe.values[n].shape]

    def _counts(self) -> tuple[int, int]:
        """Return the numbers of inputs and results."""
        return sum(v.place == "input" for v in self.recipe.values), len(self.recipe.outputs)

    def _value(self, n: int, v: Value) -> dict[str, Word]:
        place, number = "LIB_NOWHERE", 0
        offset: Any = 0
        if v.place == "input":
            return self._input(n, v)
        if v.place == "held":
            return self._constant(self.tables.file.array(self.plan.facts["held"][v.number]), n)
        if v.place == "output":
            place, number, offset = self._output(n, v)
        elif v.place == "arena":
            place, offset = "LIB_IN_ARENA", evaluate(v.offset, self.named)
        elif v.place == "within":
            hosts = [
                k
                for k, x in enumerate(self.recipe.values)
                if (x.place, x.number) == ("output", v.number)
            ]
            place, number, offset = "LIB_WITHIN", hosts[0], evaluate(v.offset, self.named)
        return self._value_row(place, number, offset)

    def _value_row(self, place: str, number: Word, offset: Any) -> dict[str, Word]:
        return {
            "place": getattr(layout, place),
            "number": number,
            "offset": self.rows.number(offset).row,
        }

    def _constant(self, array: Array, n: int) -> dict[str, Word]:
        """Return the row of a constant, which the library has if a step reads it."""
        read = (
            s.values.values() if isinstance(s, KernelUse) else s.inputs for s in self.recipe.steps
        )
        if not any(n in values for values in read):
            return self._value_row("LIB_NOWHERE", 0, 0)
        return self._value_row("LIB_IN_CONSTANT", self.tables.constant(array), 0)

    def _input(self, n: int, v: Value) -> dict[str, Word]:
        return self._value_row("LIB_IN_ARGUMENT", v.number, 0)

    def _output(self, n: int, v: Value) -> tuple[str, int, Any]:
        """Return where a result is computed: over an input, or where the first result of it is."""
        if v.overwrites >= 0:
            return "LIB_IN_ARGUMENT", v.overwrites, 0
        return "LIB_IN_RESULT", self.recipe.outputs.index(n), 0

    # ---- kernels ---------------------------------------------------------------------------------

    def _groups(self, group: Sequence[int]) -> Iterator[dict[str, Word]]:
        """Yield the group's kernels, and each of its steps that are repeated."""
        uses = [self.recipe.steps[k] for k in group]
        kernels = [self._kernel(use) for use in uses if isinstance(use, KernelUse)]
        repeats = [
            _loop(self, use) if isinstance(use, LoopUse) else _chunks(self, use)
            for use in uses
            if isinstance(use, LoopUse | ChunkedUse)
        ]
        for use in uses:
            if isinstance(use, KernelUse):
                self.touched.update(use.values.values())
            else:
                self.touched.update((*use.inputs, *use.outputs))
        for k in range(max(len(repeats), 1)):
            self.plan.parts += 1
            yield {
                "kernels": self.tables.rows("LIB_KERNEL", [] if k else kernels),
                "kernel_count": 0 if k else len(kernels),
                "part": self.plan.parts - 1,
                "repeat": repeats[k] if repeats else 0,
            }

    def _kernel(self, use: KernelUse) -> dict[str, Word]:
        names = list(dict.fromkeys(("", use.variant, *(c.variant for c in use.variants))))
        rows = [self._variant(use, v, streaming) for v in names for streaming in (False, True)]
        number = _selected(use.variants, self.named, names)
        values = self.recipe.values
        fresh = {n for n in use.values.values() if n not in self.touched}
        results: Any = sum((self.nbytes(values[n]) for n in sorted(fresh) if _is_new(values[n])), 0)
        chosen = self.rows.number(number * 2 + choose(results > self.recipe.stream_above, 1, 0))
        return {"chosen": chosen.row, "variants": self.tables.rows("LIB_VARIANT", rows)}

    def _variant(self, use: KernelUse, variant: Variant, streaming: bool) -> dict[str, Word]:
        code = self.plan.facts["code"]
        keys = [key_of(use.stem, variant, s).hex() for s in dict.fromkeys((streaming, False))]
        facts = next((code[key] for key in keys if key in code), None)
        if facts is None:
            raise LibraryError(
                name=self.whole.name, part=f"code that the file lacks, of {use.name}"
            )
        built = CompiledKernel.from_data(facts["facts"], b"")
        sizes = self._code_sizes(use.names)
        words = self._words(use, built)
        partials = [self.whole.at(n, sizes).row for _, n in built.partials]
        functions = [
            {
                "code": self.tables.code(facts["section"], f.symbol),
                "tasks": self.whole.at(f.tasks, sizes).row,
                "scratch": self.whole.at(f.scratch, sizes).row,
                "cycles": self.whole.at(f.cycles, sizes).row,
            }
            for f in built.functions
        ]
        return {
            "words": self.tables.rows("LIB_WORD", words),
            "word_count": len(words),
            "partials": self.tables.add(partials or [0]),
            "partial_count": len(partials),
            "functions": self.tables.rows("LIB_FUNCTION", functions),
            "function_count": len(functions),
        }

    def _code_sizes(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the sizes under the names of the kernel's code; see `KernelStep.sizes`."""
        constants = {code_name: int(n) for code_name, n in names.items() if n.isdigit()}
        mapped = {code_name: self.named[n] for code_name, n in names.items() if n in self.named}
        return {**self.named, **constants, **mapped}

    def _words(self, use: KernelUse, built: CompiledKernel) -> list[dict[str, Word]]:
        """Return the arguments of a kernel; see `Recipe.executable`."""
        partials = {name: k for k, (name, _) in enumerate(built.partials)}
        strides = {n: (use.values[use.names.get(p, p)], d) for n, p, d in built.strides}
        words: list[dict[str, Word]] = []
        for b in built.buffers:
            if b in partials:
                words.append({"kind": layout.LIB_WORKSPACE, "of": partials[b]})
            else:
                words.append({"kind": layout.LIB_ADDRESS, "of": use.values[use.names.get(b, b)]})
        for s in built.sizes:
            if s in strides:
                value, d = strides[s]
                n: Any = 1
                for extent in self._extents(value)[d + 1 :]:
                    n = n * extent
            else:
                n = evaluate(size_or_number(use.names.get(s, s)), self.named)
            words.append({"kind": layout.LIB_NUMBER, "of": self.rows.number(n).row})
        return words


class _PlanBody(_Body):
    """The body of a whole plan, between the arguments and the results of a call."""

    def _counts(self) -> tuple[int, int]:
        return len(self.whole.leaves), len(self.whole.recording.outcomes)

    def _input(self, n: int, v: Value) -> dict[str, Word]:
        r = self.whole.recording
        if v.number < len(r.arguments):
            leaf = r.leaves[r.arguments[v.number]]
            if (leaf.dtype or _NUMBERS[leaf.number]) != v.dtype:
                raise LibraryError(name=self.whole.name, part="an argument of a converted type")
            number = self.whole.numbers[r.arguments[v.number]]
            return self._value_row("LIB_IN_ARGUMENT", number, 0)
        if v.number < len(r.arguments) + len(r.constants):
            return self._constant(r.constants[v.number - len(r.arguments)], n)
        return self._value_row("LIB_NOWHERE", 0, 0)

    def _output(self, n: int, v: Value) -> tuple[str, int, Any]:
        """Return where a result is computed: the caller's memory, or the arena if none is."""
        for k, x in enumerate(self.whole.recording.outcomes):
            if x.kind == "graph" and self.recipe.outputs[x.position] == n:
                return "LIB_IN_RESULT", k, 0
        offset = (self.top + 63) // 64 * 64
        self.top = offset + self.nbytes(v)
        return "LIB_IN_ARENA", 0, offset


def _is_new(v: Value) -> bool:
    return v.place == "output" and v.overwrites < 0


def _selected(forms: Variants, sizes: Mapping[str, Any], names: Sequence[Variant]) -> Any:
    """Return the number of the variant for the sizes; see `select_variant`."""
    number: Any = names.index("")
    cost: Any = 0.0
    is_certain: Any = 0
    competes: Any = 0
    for c in forms:
        holds: Any = 1
        for n, limit in c.limits:
            holds = holds * (evaluate(n, sizes) <= limit)
        holds = holds * (is_certain == 0)
        if c.costs:
            cycles = product_cycles(c.costs, sizes)
            is_best = holds * choose(competes, choose(cycles < cost, 1, 0), 1)
            cost = choose(is_best, cycles, cost)
            competes = choose(holds, 1, competes)
        else:
            is_best = holds * (competes == 0)
            is_certain = choose(is_best, 1, is_certain)
        number = choose(is_best, names.index(c.variant), number)
    return number


# ---- repeated steps ------------------------------------------------------------------------------


class _ChunkBody(_Body):
    """Body of a block of rows: inputs are slices of arrays of `total` rows."""

    def __init__(self, plan: _Plan, use: ChunkedUse, named: Mapping[str, Any], total: Any) -> None:
        self._axes, self._total = [c.axis for c in use.rounds.reads], total
        super().__init__(plan, use.body, named)

    def _extents(self, n: int) -> list[Any]:
        v, extents = self.recipe.values[n], super()._extents(n)
        if v.place == "input" and v.number < len(self._axes) and self._axes[v.number] >= 0:
            extents[self._axes[v.number]] = self._total
        return extents


class _Memory:
    """Memory of repeated steps, apart from that of their bodies."""

    def __init__(self) -> None:
        self.nbytes: Any = 0

    def add(self, nbytes: Any, copies: int = 1) -> Any:
        """Return the place of memory of so many bytes, or of adjacent copies."""
        at = self.nbytes
        self.nbytes = at + (nbytes + 63) // 64 * 64 * copies
        return at


def _loop(around: _Body, use: LoopUse) -> int:
    """Return the row of a loop; see `smelt.runtime.loop`."""
    shape, named = use.shape, around.named
    if len(set(use.wanted)) < len(use.wanted):
        raise LibraryError(name=around.whole.name, part="a result of a loop that is used twice")
    sizes = {n: evaluate(e, named) for n, e in zip(shape.names, shape.sizes, strict=True)}
    body, memory = _Body(around.plan, use.body, sizes), _Memory()
    carries, last = range(shape.carries), shape.carries + shape.slices
    targets = dict(zip(use.wanted, use.outputs, strict=True))
    stacked = sorted(k for k in use.wanted if shape.carries <= k < shape.results)
    results: list[dict[str, Any]] = []
    for k, n in zip((*carries, *stacked), use.body.outputs, strict=True):
        nbytes = body.nbytes(use.body.values[n])
        row = {"value": targets.get(k, -1), "source": n, "nbytes": nbytes, "distance": nbytes}
        if k in carries:
            row["own"] = memory.add(nbytes, copies=2)
            row["history"] = targets.get(shape.results + k, -1)
        results.append(row)
    inputs = [
        {"value": value, "distance": body.nbytes(v) if shape.carries <= k < last else 0}
        for k, (value, v) in enumerate(zip(use.inputs, body.inputs, strict=True))
    ]
    return _repeat_row(
        around,
        (body, body),
        evaluate(shape.length[0], named) if shape.length else None,
        memory,
        inputs,
        results,
        runs_once=int(shape.runs_once),
        is_reverse=int(shape.reverse),
        carry_count=shape.carries,
    )


def _chunks(around: _Body, use: ChunkedUse) -> int:
    """Return the row of a part that runs for blocks of rows; see `smelt.runtime.chunking`."""
    chunks, memory = use.rounds, _Memory()
    total = evaluate(chunks.extent, around.named)
    step, count = chunks.steps(total)
    last = larger(total - larger(count - 1, 0) * step, 1)
    bodies = [
        _ChunkBody(around.plan, use, {**around.named, chunks.rows: n}, total) for n in (step, last)
    ]
    memory.add(8)  # the position

    def distance(v: Value, axis: int) -> Any:
        """Return the bytes from one block to the next."""
        nbytes = step * v.dtype.itemsize
        for d in v.shape[axis + 1 :]:
            nbytes = nbytes * evaluate(d, around.named)
        return nbytes if axis >= 0 else 0

    inputs = [
        {"value": -1, "distance": step}
        if c.axis == FIRST_ROW
        else {"value": use.inputs[c.place], "distance": distance(v, c.axis)}
        for c, v in zip(chunks.reads, bodies[0].inputs, strict=False)
    ]
    sums = [use.outputs[c.place] for c in chunks.makes if c.axis == WHOLE]
    inputs += [{"value": value, "distance": 0} for value in sums]
    results: list[dict[str, Any]] = []
    for c, n in zip(chunks.makes, use.body.outputs, strict=True):
        v = use.body.values[n]
        nbytes, last_nbytes = (body.nbytes(v) for body in bodies)
        row = {"value": use.outputs[c.place], "source": n, "nbytes": nbytes}
        row |= {"last_nbytes": last_nbytes, "distance": distance(v, c.axis)}
        if c.axis != 0:  # a sum, which is read until it is written, or pieces of rows
            row["own"] = memory.add(nbytes)
        if c.axis == WHOLE:
            first = np.asarray(SCALAR_IDENTITIES[c.combine](v.dtype), v.dtype.numpy)
            row |= {"identity": around.tables.constant(first), "itemsize": v.dtype.itemsize}
        else:
            runs: Any = 1
            for d in v.shape[: c.axis]:
                runs = runs * evaluate(d, around.named)
            pitch = distance(v, c.axis) // step * total
            row |= {"runs": runs, "pitch": pitch}
        results.append(row)
    return _repeat_row(around, bodies, count, memory, inputs, results)


def _repeat_row(
    around: _Body,
    bodies: Sequence[_Body],
    steps: Any,
    memory: _Memory,
    inputs: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    *,
    runs_once: int = 0,
    is_reverse: int = 0,
    carry_count: int = 0,
) -> int:
    """Return the index of a row of repeated steps.

    `steps` is None where a carry decides.
    """
    tables, number = around.tables, around.rows.number
    written: list[dict[str, Word]] = []
    for x in results:
        row: dict[str, Any] = {"history": -1, "runs": 1, "pitch": 0, "own": None}
        row |= {"identity": 0, "itemsize": 0, **x}
        row.setdefault("last_nbytes", row["nbytes"])
        for name in ("distance", "nbytes", "last_nbytes", "runs", "pitch"):
            row[name] = number(row[name]).row
        written.append({**row, "own": -1 if row["own"] is None else number(row["own"]).row})
    read = [{"value": x["value"], "distance": number(x["distance"]).row} for x in inputs]
    repeat: dict[str, Word] = {
        "body": bodies[0].at,
        "last_body": bodies[1].at,
        "steps": -1 if steps is None else number(steps).row,
        "runs_once": runs_once,
        "is_reverse": is_reverse,
        "nbytes": number(memory.nbytes).row,
        "inputs": tables.rows("LIB_INPUT", read),
        "input_count": len(read),
        "results": tables.rows("LIB_STEP_RESULT", written),
        "result_count": len(written),
        "carry_count": carry_count,
    }
    return tables.rows("LIB_REPEAT", [repeat])
