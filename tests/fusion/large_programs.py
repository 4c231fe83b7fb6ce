"""Attention and losses whose scores or logits fill a GPU's memory, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.catalogue import test_f_losses as losses
from tests.catalogue.test_e_attention import VARIANTS
from tests.catalogue.test_e_backward import dropped
from tests.catalogue.test_f_splade import FORMS

import smelt as sm

Code = Callable[..., Any]
POSITIONS, HEADS, DIM = 16384, 32, 64
TOKENS, HIDDEN, WORDS = 32768, 2048, 131072
PAIRS, TEXTS, LENGTH = 65536, 256, 512


@dataclass(frozen=True)
class Program:
    """A function of arrays of these shapes; floats where a shape names no other type."""

    code: Code
    shapes: tuple[str, ...]
    differentiated: tuple[int, ...]
    is_loss: bool = False

    def specs(self, dtype: str) -> list[Any]:
        return [sm.spec(s if "[" in s[1:] else dtype + s) for s in self.shapes]

    def gradient(self, dtype: str) -> tuple[Code, list[Any]]:
        """Return the program of its gradients, and the types of its arguments."""
        specs, wanted = self.specs(dtype), self.differentiated
        if self.is_loss:
            return sm.value_and_grad(self.code, wanted), specs
        result = sm.jit(self.code).lower(*specs).trace.graph.outputs[0].type.shape

        def back(*arrays: Any) -> Any:
            def code(*xs: Any) -> Any:
                every = list(arrays[:-1])
                for k, x in zip(wanted, xs, strict=True):
                    every[k] = x
                return self.code(*every)

            return sm.vjp(code, *(arrays[k] for k in wanted))[1](arrays[-1])

        return back, [*specs, sm.spec(f"{dtype}[{','.join(map(str, result))}]")]


def shape(*sizes: int) -> str:
    return f"[{','.join(map(str, sizes))}]"


# ---- attention -----------------------------------------------------------------------------------

ARGUMENTS = {
    "slopes": shape(HEADS),
    "lengths": f"i64[{HEADS}]",
    "bias": shape(POSITIONS, POSITIONS),
    "table": shape(2 * POSITIONS - 1),
    "ids": f"i64[{POSITIONS}]",
    "mix": shape(HEADS, HEADS),
    "q": shape(HEADS, POSITIONS, DIM),
    "k": shape(HEADS, POSITIONS, DIM),
    "keep": f"bool[{POSITIONS},{POSITIONS}]",
    "key": "u64[]",
}


def variant(code: Code, more: Sequence[str], group: int, heads: int) -> Program:
    lead = (heads, group) if group > 1 else (heads,)
    keys = shape(heads, POSITIONS, DIM)
    queries = shape(*lead, POSITIONS, DIM)
    shapes = (queries, keys, keys, *(ARGUMENTS[name] for name in more))
    return Program(partial(code, sm), shapes, (0, 1, 2))


def of_width(width: int, values: int, causal: bool) -> Program:
    keys, results = shape(HEADS, POSITIONS, width), shape(HEADS, POSITIONS, values)
    code = partial(sm.nn.attention, causal=causal)
    return Program(code, (keys, keys, results), (0, 1, 2))


def latent(q: Any, c: Any) -> Any:
    """Heads share one array of keys, whose first columns are the values (DeepSeek-V2, 2024)."""
    s = q @ sm.matrix_transpose(c) * 576**-0.5
    i = sm.arange(s.shape[-1])
    return sm.nn.softmax(sm.where(i[:, None] >= i, s, -sm.inf)) @ c[:, :512]


ATTENTION = {
    **{
        v.name: variant(v.code, v.more, v.group, v.heads if v.heads == 1 else HEADS)
        for v in VARIANTS
        if not v.queries
    },
    "E7 dropout": variant(dropped, ("key",), 1, HEADS),
    **{
        f"heads of {d}{', causal' * c}": of_width(d, d, c)
        for d in (32, 80, 128, 192, 256, 512)
        for c in (False, True)
    },
    "heads of 192, values of 128": of_width(192, 128, causal=True),
    "latent": Program(latent, (shape(HEADS, POSITIONS, 576), shape(POSITIONS, 576)), (0, 1)),
}

# ---- losses --------------------------------------------------------------------------------------

TOKEN, WORD = shape(TOKENS, HIDDEN), shape(WORDS, HIDDEN)
LABELS = f"i64[{TOKENS}]"


def cross_entropy(x: Any, w: Any, labels: Any) -> Any:
    return sm.nn.cross_entropy(x @ w.T, labels)


def preferences(x: Any, y: Any, w: Any, chosen: Any, other: Any, p: Any, q: Any) -> Any:
    """Direct preference optimisation (Rafailov et al., 2023): tokens of eight pairs of texts."""

    def likelihood(h: Any, labels: Any) -> Any:
        each = -sm.nn.cross_entropy(h @ w.T, labels, reduction="none")
        return sm.sum(sm.reshape(each, (8, -1)), axis=1)

    margin = (likelihood(x, chosen) - p) - (likelihood(y, other) - q)
    return sm.mean(sm.log1p(sm.exp(-0.1 * margin)))


def nearest(x: Any, y: Any) -> Any:
    """InfoNCE (van den Oord et al., 2018)."""
    return sm.nn.cross_entropy(x @ y.T / 0.05, sm.arange(x.shape[0]))


def of_tokens(code: Code) -> Program:
    def mean(h: Any, w: Any, labels: Any) -> Any:
        return sm.mean(code(sm, h, w, labels))

    return Program(mean, (TOKEN, WORD, LABELS), (0, 1), is_loss=True)


def of_two_heads(code: Code) -> Program:
    return Program(partial(code, sm), (TOKEN, WORD) * 2, (0, 1), is_loss=True)


def of_pairs(code: Code, more: tuple[str, ...] = ()) -> Program:
    return Program(code, (shape(PAIRS, 512),) * 2 + more, (0, 1), is_loss=True)


def of_texts(code: Code) -> Program:
    kept = f"i64[{TEXTS}]" if code.__name__.startswith("by_length") else f"bool[{TEXTS},{LENGTH}]"
    shapes = shape(TEXTS, LENGTH, 768), shape(30522, 768), shape(30522), kept
    return Program(partial(code, sm), shapes, (0, 1, 2))


LOSSES = {
    "cross-entropy": Program(cross_entropy, (TOKEN, WORD, LABELS), (0, 1), is_loss=True),
    "softcap": of_tokens(losses.head_softcapped),
    "smoothed, z-loss": of_tokens(losses.head_smoothed),
    "less entropy": of_tokens(losses.head_less_entropy),
    "divergence": of_two_heads(losses.distill),
    "divergence in parts": of_two_heads(losses.distill_in_parts),
    "divergence by rows": of_two_heads(losses.distill_by_rows),
    "preferences": Program(
        preferences,
        (TOKEN, TOKEN, WORD, LABELS, LABELS, "f32[8]", "f32[8]"),
        (0, 1, 2),
        is_loss=True,
    ),
    "InfoNCE": of_pairs(nearest),
    **{
        f"contrast {c.__name__}": of_pairs(c, ("[]",))
        for c in (losses.by_sums, losses.by_labels, losses.dual)
    },
    **{f"SPLADE {c.__name__}": of_texts(c) for c in FORMS},
}
PROGRAMS = {**ATTENTION, **LOSSES}
