"""The stand-in of Triton notices faults that are planted into printed programs."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.checked_triton import CheckError, launch, named_sizes
from tests.codegen.test_triton_goldens import PRINTED, stored, with_lanes
from tests.codegen.triton_faults import plant
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.codegen.triton.schedule import choose_schedule
from smelt.codegen.triton.source import prepare, print_file, print_stage, triton_source
from smelt.kernel.text import parse

HARMLESS: dict[str, Sequence[str]] = {
    "both operands of a contraction are zero there": (
        r".*: wrong identity \[.*tl\.where\(in_[a-z]\[.*, (t\d+|v_w|t\d+ \* .*), 0\.0\)\]",
    ),
    "the fill of the load is zero already": (
        r"conv_bn_relu: no where \[.*tl\.where\(in_c\[None, :\], t1, 0\.0\)\]",
    ),
    "keys end where queries do, and the causal mask hides those behind the last query": (
        r"causal_attention: (no where|wrong identity) \[.*(in_m|in_n\[None, :\]).*",
        r"causal_attention: other axis \[.*combine_any_bool\)\]",
    ),
    "the loop of cut blocks has one, the last of the stream": (
        r"causal_attention: no masks in full blocks: state not carried \[.* s_r = n_r\]",
    ),
    "a sum with NaN is NaN, whatever its shift is": (
        r"(causal_attention|decode|softmax_long): no NaN rule \[combine_max_f32.*",
    ),
    "the stream ends where the array does": (r"ragged: (no mask|no fill|a bound too far) \[.*",),
    "differences are squared, or their absolute values are taken": (
        r"variance: swapped operands \[.* t\d+ - v_anchor\[:, None\]\]",
        r"windows: swapped operands \[.* v_h - v_k\]",
    ),
    "a loop that begins before its start masks what is before": (
        r"(decode|variance|messages): blocks overlap \[.* // BLOCK_[a-z] \* BLOCK_[a-z]\]",
    ),
    "lanes behind the last column read the next part, and store nothing": (
        r"(decode|variance): no mask \[kernel_[a-z]+_merge:.*_parts \+ .*",
    ),
    "a barrier stands before every step already": (r"histogram: no barrier \[.*",),
    "the values are no NaN": (r"windows: no NaN rule \[combine_argmax_f32.*",),
    "positions that do not exist are behind all others": (
        r"windows: (no where|wrong identity) \[.*tl\.where\(in_n, (i_n|t\d+), 2147483647\)\]",
    ),
    "the place is in the array": (
        r"windows: no mask \[.*tl\.load\(ptr_x \+ tl\.broadcast_to\(tl\.full\(\[\], 1, .*",
        r"windows: no fill \[.*tl\.load\(ptr_x \+ i_n, mask=in_n, other=0\.0\)\]",
    ),
}
"""Why some faults change no result for any input: patterns of `golden: fault`, by reason."""
LANES = {"causal_attention": 4, "splade": 4, "decode": 4}
"""Lanes of a block, 2 elsewhere: few, so that all arrays have several blocks."""
SPLIT = ": no masks in full blocks"
CASES = (*PRINTED, f"causal_attention{SPLIT}")
SAMPLE = 31
"""`make test` plants one of so many faults; `make nightly` all."""


def unfilled(source: str, lanes: int) -> str:
    """A printed file whose blocks no array of a test fills, unless the program relies on it."""
    source = with_lanes(source, lanes)

    def widen(match: re.Match[str]) -> str:
        is_masked = f"in_{match[1]} = " in source
        return f"{'2 * ' if is_masked else ''}triton.next_power_of_2("

    pattern = r"(?<=BLOCK_)(\w+) = triton\.next_power_of_2\("
    return re.sub(pattern, lambda m: f"{m[1]} = {widen(m)}", source)


def variants(name: str) -> list[dict[str, np.ndarray]]:
    """Inputs of a golden: usual ones, shifted far to both sides, with special values."""
    reference = REFERENCES[name]
    sets = [reference.inputs(np.random.default_rng(scale), scale) for scale in (3, 2)]
    sets += [{n: changed(x, c) for n, x in sets[0].items()} for c in CHANGES]
    signs = dict(zip(sets[0], itertools.cycle((1, -1)), strict=False))
    sets.append({n: changed(x, lambda a, n=n: a + 300 * signs[n]) for n, x in sets[0].items()})
    if name in ("columns", "variance"):
        sets.append({"x": sets[0]["x"][:1]})
    if name == "norm_qkv":
        sets.append({n: np.ascontiguousarray(a[..., :3]) for n, a in sets[0].items()})
    if name == "adamw":
        sets.append({n: a[:4:-1] if isinstance(a, list) else a for n, a in sets[0].items()})
    if name == "histogram":
        sets.append({"x": sets[0]["x"][:3], "y0": sets[0]["y0"]})
        sets.append({"x": sets[0]["x"] % 4, "y0": sets[0]["y0"]})
    if name == "messages":
        sets.append(reference.inputs(np.random.default_rng(7), 1))
        sets.append(
            {
                n: np.clip(a, 0, 0) if n in ("source", "target") else a[:1] if n == "h" else a
                for n, a in sets[0].items()
            }
        )
    if name == "conv_bn_relu":
        sets.append({n: a if n == "x" else a[:3] for n, a in sets[0].items()})
    return sets


def changed(x, change):
    if isinstance(x, list):
        return [changed(a, change) for a in x]
    return change(x).astype(x.dtype) if x.dtype.kind in "fV" else x


def specials(x: np.ndarray) -> np.ndarray:
    """Some elements that are NaN, infinite or zero of either sign."""
    random = np.random.default_rng(x.size)
    y = np.where(random.random(x.shape) < 0.5, np.round(x.astype(np.float32)), x)
    y = y.astype(x.dtype)
    places = random.permutation(x.size)[: max(x.size // 6, 1)]
    numbers = np.resize(np.array([np.nan, np.inf, -np.inf, -0.0, 0.0]), places.shape)
    y.reshape(-1)[places] = numbers.astype(x.dtype)
    return y


CHANGES = (
    lambda x: x + 300,
    lambda x: x - 300,
    lambda x: x * 0.01,
    lambda x: x * 20,
    specials,
)


def split_source(kernel) -> str:
    """A printed file with loops of their own for blocks that no mask cuts."""
    launches = [(k, replace(choose_schedule(k), splits_loops=True)) for k in prepare(kernel)]
    return print_file(kernel, [print_stage(*x) for x in launches])


class Case:
    """A golden's program, inputs and right results."""

    def __init__(self, case: str) -> None:
        name, *in_loops = case.split(SPLIT)
        text = GOLDENS[name].replace("r/8 of p", "r/2 of p")  # several blocks in every part
        text = text.replace("n/512 of p", "n/4 of p").replace("split(n, 8)", "split(n, 3)")
        self.name, self.kernel = name, parse(text)
        self.source = split_source(self.kernel) if in_loops else triton_source(self.kernel)
        self.sets = [self._arrays(inputs) for inputs in variants(name)]
        self._right: dict[int, list[np.ndarray]] = {}

    def _arrays(self, inputs):
        arrays = [
            inputs[p.name] if p.each else stored(p, inputs[p.name]) for p in self.kernel.inputs
        ]
        return arrays, named_sizes(extra_sizes(self.name, inputs))

    def run(self, source: str, k: int):
        arrays, sizes = self.sets[k]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return flat(
                launch(unfilled(source, LANES.get(self.name, 2)), arrays, least_dot=1, **sizes)
            )

    def right(self, k: int) -> list[np.ndarray]:
        """The results of the program as it is printed: most faults are caught by the first."""
        if k not in self._right:
            self._right[k] = self.run(self.source, k)
        return self._right[k]

    def catches(self, source: str) -> bool | None:
        """Whether a program fails, or computes something else for some inputs.

        None for a program that Triton would not compile: it is not a fault of a printer.
        """
        for k in range(len(self.sets)):
            right = self.right(k)
            try:
                results = self.run(source, k)
            except CheckError:
                return True
            except (ValueError, TypeError, IndexError, AttributeError, NameError):
                return None
            for a, b in zip(results, right, strict=True):
                if not np.allclose(a, b, 3e-6, 3e-6, equal_nan=True):
                    return True
        return False


def flat(results) -> list[np.ndarray]:
    lists = (r if isinstance(r, list) else [r] for r in results)
    return [np.asarray(a, np.float64) for r in lists for a in r]


def survivors(names: Sequence[str], every: int) -> tuple[list[str], list[str]]:
    """Faults that were planted, and those of them that nothing noticed."""
    planted, missed, count = list[str](), list[str](), itertools.count(1)
    for name in names:
        case = Case(name)
        for what, wrong in plant(case.source, lambda _: next(count) % every == 0):
            is_caught = case.catches(wrong)
            planted += [f"{name}: {what}"] * (is_caught is not None)
            missed += [f"{name}: {what}"] * (is_caught is False)
    return planted, missed


def unexplained(missed: Sequence[str]) -> list[str]:
    patterns = [p for reasons in HARMLESS.values() for p in reasons]
    return [
        m
        for m in missed
        if not any(re.fullmatch(p, x) for p in patterns for x in (m, m.replace(SPLIT, "")))
    ]


@pytest.mark.timeout(240)
def test_planted_faults_are_caught():
    planted, missed = survivors(CASES, SAMPLE)
    assert len(planted) > 20
    wrong = unexplained(missed)
    assert len(wrong) <= 0.05 * (len(planted) - len(missed) + len(wrong)), wrong


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_every_planted_fault_is_caught_or_explained(name):
    _, missed = survivors([name], 1)
    assert not unexplained(missed)
