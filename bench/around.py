"""Matrix products with fused prologues and epilogues: one function text for all libraries.

PyTorch also gets the form that an experienced user would write (`f.gelu`, `f.layer_norm`), as a
module whose weights are parameters: eagerly, and compiled by Inductor with `max_autotune` and
`freezing`. Weights are constants for Smelt and JAX too.

>>> [case.title for case in CASES][0]
'linear + GELU, 512×768 to 3072'
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import smelt as sm
from bench.namespaces import jax_namespace, numpy_namespace, smelt_namespace
from smelt.compiler import driver
from smelt.python.dataclass import dataclass

__all__ = ["CASES", "PEERS", "FusedProduct", "calls", "floor_ns", "operands"]

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
Code = Callable[..., Any]
Shape = tuple[int, ...]
PEERS = ("smelt", "numpy", "torch", "inductor", "jax")
HEADS = 12


@dataclass(frozen=True)
class FusedProduct:
    """A function of `x` and weights, in the array API and in PyTorch."""

    title: str
    code: Code
    """Called with a namespace, x and the weights."""
    idiom: Code
    """Called with `torch`, x and the weights."""
    x: Shape
    weights: tuple[Shape, ...]
    products: tuple[tuple[int, int, int], ...]
    """Rows, columns and summed positions (m, n, k) of each product."""
    int8: tuple[int, ...] = ()
    """Indices of the int8 weights."""

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products."""
        return sum(2 * m * n * k for m, n, k in self.products)


# ---- functions -----------------------------------------------------------------------------------


def _gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1.0 + xp.erf(x * math.sqrt(0.5)))


def _silu(xp: Any, x: Any) -> Any:
    return x / (1.0 + xp.exp(-x))


def _norm(xp: Any, x: Any, g: Any, b: Any) -> Any:
    d = x - xp.mean(x, axis=-1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + 1e-5) * g + b


def _linear(xp: Any, x: Any, w: Any, b: Any) -> Any:
    return _gelu(xp, x @ w.T + b)


def _torch_linear(torch: Any, x: Any, w: Any, b: Any) -> Any:
    f = torch.nn.functional
    return f.gelu(f.linear(x, w, b))


def _block(xp: Any, x: Any, g: Any, b: Any, u: Any, c: Any, v: Any, d: Any) -> Any:
    return x + _gelu(xp, _norm(xp, x, g, b) @ u.T + c) @ v.T + d


def _torch_block(torch: Any, x: Any, g: Any, b: Any, u: Any, c: Any, v: Any, d: Any) -> Any:
    f = torch.nn.functional
    return x + f.linear(f.gelu(f.linear(f.layer_norm(x, x.shape[-1:], g, b), u, c)), v, d)


def _gated(xp: Any, x: Any, u: Any, v: Any) -> Any:
    return _silu(xp, x @ u.T) * (x @ v.T)


def _torch_gated(torch: Any, x: Any, u: Any, v: Any) -> Any:
    f = torch.nn.functional
    return f.silu(f.linear(x, u)) * f.linear(x, v)


def _heads(xp: Any, x: Any, g: Any, b: Any, *ws: Any) -> Any:
    h = _norm(xp, x, g, b)
    shape = (x.shape[0], HEADS, x.shape[1] // HEADS)
    return tuple(xp.permute_dims(xp.reshape(h @ w.T, shape), (1, 0, 2)) for w in ws)


def _torch_heads(torch: Any, x: Any, g: Any, b: Any, *ws: Any) -> Any:
    h = torch.nn.functional.layer_norm(x, x.shape[-1:], g, b)
    shape = (x.shape[0], HEADS, x.shape[1] // HEADS)
    return tuple((h @ w.T).reshape(shape).permute(1, 0, 2) for w in ws)


def _nearest(xp: Any, x: Any, w: Any) -> Any:
    return xp.argmax(x @ w.T - 0.5 * xp.sum(w * w, axis=1), axis=1)


def _torch_nearest(torch: Any, x: Any, w: Any) -> Any:
    return torch.argmax(x @ w.T - 0.5 * (w * w).sum(1), dim=1)


def _int8_linear(xp: Any, x: Any, w: Any, scale: Any) -> Any:
    return x @ (w * scale[:, None]).T


def _torch_int8_linear(torch: Any, x: Any, w: Any, scale: Any) -> Any:
    return torch._weight_int8pack_mm(x, w, scale)


CASES = (
    FusedProduct("linear + GELU, 512×768 to 3072", _linear, _torch_linear,
           (512, 768), ((3072, 768), (3072,)), ((512, 3072, 768),)),
    FusedProduct("norm, MLP (GELU), residual, 512×768 over 3072", _block, _torch_block,
           (512, 768), ((768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)),
           ((512, 3072, 768), (512, 768, 3072))),
    FusedProduct("SwiGLU, 512×1024 to 2816", _gated, _torch_gated,
           (512, 1024), ((2816, 1024), (2816, 1024)), ((512, 2816, 1024),) * 2),
    FusedProduct("LayerNorm, Q, K and V, heads, 512×768", _heads, _torch_heads,
           (512, 768), ((768,), (768,), *((768, 768),) * 3), ((512, 768, 768),) * 3),
    FusedProduct("nearest of 100000 to each of 1000, 128 numbers", _nearest, _torch_nearest,
           (1000, 128), ((100_000, 128),), ((1000, 100_000, 128),)),
    FusedProduct("1 row × 4096² in int8, a scale for each column", _int8_linear, _torch_int8_linear,
           (1, 4096), ((4096, 4096), (4096,)), ((1, 4096, 4096),), (0,)),
)  # fmt: skip


# ---- libraries -----------------------------------------------------------------------------------


def operands(case: FusedProduct) -> tuple[Array, ...]:
    """Return x, then the weights, scaled so that results have a magnitude of about one."""
    rng = np.random.default_rng(0)

    def draw(k: int, shape: Shape) -> Array:
        if k in case.int8:
            return rng.integers(-128, 128, shape).astype(np.int8)
        if len(shape) == 1:
            return rng.random(shape).astype(np.float32)
        return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)

    x = rng.standard_normal(case.x).astype(np.float32)
    return x, *(draw(k, shape) for k, shape in enumerate(case.weights))


def calls(case: FusedProduct, peers: tuple[str, ...] = PEERS) -> dict[str, Call]:
    """Return the case as a call of each installed library."""
    x, *weights = operands(case)
    by_library: dict[str, Call] = {}
    if "smelt" in peers:
        constants = [sm.asarray(w, copy=True) for w in weights]
        xp = smelt_namespace(sm)
        compiled = sm.jit(lambda x: case.code(xp, x, *constants))
        by_library["smelt"] = lambda: compiled(x)
    if "numpy" in peers:
        by_library["numpy"] = lambda: case.code(numpy_namespace(), x, *weights)
    with suppress(ImportError):
        if "torch" in peers or "inductor" in peers:
            by_library |= _torch_calls(case, x, weights, peers)
    with suppress(ImportError):
        if "jax" in peers:
            jax: Any = importlib.import_module("jax")
            names = jax_namespace()
            r, *ws = (jax.device_put(a) for a in (x, *weights))
            jitted = jax.jit(lambda x: case.code(names, x, *ws))
            by_library["jax"] = lambda: jax.block_until_ready(jitted(r))
    return by_library


def _torch_calls(
    case: FusedProduct, x: Array, weights: list[Array], peers: tuple[str, ...]
) -> dict[str, Call]:
    """Return the PyTorch module as it is, and compiled."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(
                torch.nn.Parameter(torch.from_numpy(w), requires_grad=False) for w in weights
            )

        def forward(self, x: Any) -> Any:
            return case.idiom(torch, x, *self.weights)

    layer, tensor = Layer().eval(), torch.from_numpy(x)

    def run(code: Callable[[Any], Any]) -> Call:
        def call() -> Any:
            with torch.no_grad():
                return code(tensor)

        return call

    by_library = {"torch": run(layer)} if "torch" in peers else {}
    if "inductor" in peers:
        options = {"max_autotune": True, "freezing": True}
        by_library["inductor"] = run(torch.compile(layer, options=options))
    return by_library


def floor_ns(case: FusedProduct) -> float:
    """Return the minimum ns on one core, for the FMAs or for reading the operands."""
    target = driver.host()
    nbytes = 4 * math.prod(case.x)
    nbytes += sum((1 if k in case.int8 else 4) * math.prod(w) for k, w in enumerate(case.weights))
    level = target.level(nbytes, 1)
    return max(case.flops / target.fma_gflops, nbytes / target.bandwidth(level, "read", 1))
