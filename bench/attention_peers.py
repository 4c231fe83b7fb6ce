"""Attention as a call of each library, in plain operators and in its own form.

`torch` is PyTorch's shortest form without a compiler, `inductor` the plain operators behind
`torch.compile`, `flex` PyTorch's compiled `flex_attention` with a precomputed block mask, and `jax`
the same text as Smelt's. Those that store every score run up to `MAX_BYTES` of scores.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import smelt as sm
from bench.attention_cases import CAP, WINDOW, Array, Case, arrays, plain
from smelt.types.dtype import bf16

__all__ = ["PEERS", "calls"]

Call = Callable[[], Any]
PEERS = ("smelt", "torch", "inductor", "flex", "jax")
MAX_BYTES = 1 << 30
"""Maximum bytes of the scores in single precision."""


def calls(case: Case, peers: tuple[str, ...] = PEERS) -> dict[str, Call]:
    """Return the case as a call of each installed library."""
    operands = arrays(case)
    by_library: dict[str, Call] = {}
    if "smelt" in peers:
        by_library["smelt"] = _smelt_call(case, operands)
    with suppress(ImportError):
        if {"torch", "inductor", "flex"} & {*peers}:
            by_library |= _torch_calls(case, operands, peers)
    with suppress(ImportError):
        if "jax" in peers and _fits(case):
            by_library["jax"] = _jax_call(case, operands)
    return by_library


def _fits(case: Case) -> bool:
    return 4 * case.heads * case.rows * case.keys <= MAX_BYTES


def _smelt_call(case: Case, operands: list[Array]) -> Call:
    compiled = sm.jit(lambda q, k, v, *more: plain(sm, q, k, v, case.variant, *more))

    def run() -> Any:
        with sm.config(rounding="fast"):
            return compiled(*operands)

    # Entering a config costs microseconds per call: only where it is needed.
    return run if case.dtype == bf16 else lambda: compiled(*operands)


def _jax_call(case: Case, operands: list[Array]) -> Call:
    jax: Any = importlib.import_module("jax")
    device_arrays = [jax.device_put(a) for a in operands]
    compiled = jax.jit(lambda q, k, v, *more: plain(jax.numpy, q, k, v, case.variant, *more))
    return lambda: compiled(*device_arrays).block_until_ready()


def _torch_calls(case: Case, operands: list[Array], peers: tuple[str, ...]) -> dict[str, Call]:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    torch.compiler.reset()  # the number of programs per function is limited
    heads = case.heads, case.heads // case.group, case.heads // case.group
    halves = case.dtype == bf16  # passed to torch as int16 bits
    q, k, v = (
        torch.from_numpy(a.view(np.int16) if halves else a).reshape(1, h, -1, case.dim)
        for a, h in zip(operands[:3], heads, strict=True)
    )
    if halves:
        q, k, v = (x.view(torch.bfloat16) for x in (q, k, v))
    more = [torch.from_numpy(a) for a in operands[3:]]
    by_library: dict[str, Call] = {}
    if "torch" in peers:
        by_library["torch"] = _shortest(torch, case, (q, k, v), more)
    if "inductor" in peers and _fits(case):
        by_library["inductor"] = _compiled(torch, case, (q, k, v), more)
    if "flex" in peers:
        by_library["flex"] = _flex(torch, case, (q, k, v), more)
    return by_library


def _shortest(torch: Any, case: Case, qkv: tuple[Any, Any, Any], more: list[Any]) -> Call:
    """Return scaled_dot_product_attention, or plain operators where it does not apply.

    It gets `is_causal`, a precomputed mask, or groups.
    """
    q, k, v = qkv
    attention = torch.nn.functional.scaled_dot_product_attention
    if case.variant == "softcap":
        scale = case.dim**-0.5

        def capped() -> Any:
            s = torch.tanh(q @ k.mT * (scale / CAP)) * CAP
            return torch.softmax(s, dim=-1) @ v

        return capped
    if case.variant == "causal":
        return lambda: attention(q, k, v, is_causal=True)
    keep = case.keep_mask()
    mask = None if keep is None else torch.from_numpy(keep)
    if case.variant == "ALiBi, causal":
        i, j = torch.arange(case.rows)[:, None], torch.arange(case.keys)
        mask = torch.where(mask, (j - i).float() * more[0][:, None, None], -torch.inf)[None]
    return lambda: attention(q, k, v, attn_mask=mask, enable_gqa=case.group > 1)


def _compiled(torch: Any, case: Case, qkv: tuple[Any, Any, Any], more: list[Any]) -> Call:
    """Return the plain operators, compiled by Inductor."""

    def plainly(q: Any, k: Any, v: Any, *more: Any) -> Any:
        k, v = (x.repeat_interleave(case.group, 1) if case.group > 1 else x for x in (k, v))
        s = q @ k.mT * case.dim**-0.5
        i, j = torch.arange(case.rows)[:, None], torch.arange(case.keys)
        match case.variant:
            case "causal":
                s = torch.where(j <= i, s, -torch.inf)
            case "window":
                s = torch.where((j <= i) & (i - j < WINDOW), s, -torch.inf)
            case "documents":
                s = torch.where(more[0][:, None] == more[0], s, -torch.inf)
            case "ALiBi, causal":
                far = (j - i).float() * more[0][:, None, None]
                s = torch.where(j <= i, s + far, -torch.inf)
            case "softcap":
                s = torch.tanh(s / CAP) * CAP
            case _:
                pass
        return torch.softmax(s, dim=-1) @ v

    compiled = torch.compile(plainly, dynamic=False)
    return lambda: compiled(*qkv, *more)


def _flex(torch: Any, case: Case, qkv: tuple[Any, Any, Any], more: list[Any]) -> Call:
    """Return `flex_attention`, compiled, with a precomputed block mask."""
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    keeps: dict[str, Callable[..., Any]] = {
        "causal": lambda b, h, i, j: j <= i,
        "ALiBi, causal": lambda b, h, i, j: j <= i,
        "window": lambda b, h, i, j: (j <= i) & (i - j < WINDOW),
        "documents": lambda b, h, i, j: more[0][i] == more[0][j],
    }
    scores: dict[str, Callable[..., Any]] = {
        "ALiBi, causal": lambda s, b, h, i, j: s + (j - i) * more[0][h],
        "softcap": lambda s, b, h, i, j: torch.tanh(s / CAP) * CAP,
    }
    keep = keeps.get(case.variant)
    blocks = None
    if keep is not None:
        blocks = flex.create_block_mask(keep, None, None, case.rows, case.keys, device="cpu")
    options = {
        "score_mod": scores.get(case.variant),
        "block_mask": blocks,
        "enable_gqa": case.group > 1,
    }
    compiled = torch.compile(flex.flex_attention, dynamic=False)
    return lambda: compiled(*qkv, **options)
