"""A fixed list of programs that are compiled for GPUs, at sizes that fill one.

`python -m tests.codegen.device_programs` compiles them for `ARCHS` and writes `TABLE`, which the
tests compare: blocks, registers, shared memory and telling instructions of each launch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kernel.goldens import GOLDENS

import smelt as sm
from smelt.backend.gpus import gpu
from smelt.codegen.triton.ahead import TritonCompiler
from smelt.codegen.triton.device_limits import DeviceRates
from smelt.codegen.triton.resources import key_instructions
from smelt.codegen.triton.schedule import EXACT, FAST, Policy
from smelt.codegen.triton.select import SelectedLaunch, select
from smelt.codegen.triton.worker_process import Worker
from smelt.errors import SmeltError
from smelt.explain.entries import entries
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse
from smelt.tune.scheduled_gpu import rates_of

TABLE = Path(__file__).parents[1] / "golden" / "triton" / "resources.txt"
ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
TENSOR_CORES = {
    "sm_80": ("HMMA", "IMMA"),
    "sm_90": ("HGMMA", "IGMMA"),
    "sm_100": ("UTCHMMA",),
    "sm_120": ("HMMA", "IMMA"),
    "gfx942": ("v_mfma_",),
}
"""What instructions of products in narrow types begin with, by architecture."""
WARP_CORES = (*TENSOR_CORES["sm_80"], *TENSOR_CORES["gfx942"])
"""The same of single warps: those of a warp group take 64 rows and more."""
VECTOR_LOADS = ("LDG.128", "global_load_dwordx4", "buffer_load_dwordx4")
"""Loads of 16 bytes."""


@dataclass(frozen=True)
class Program:
    """A function with the types of its arguments, or a golden kernel with its sizes.

    `expects` names kinds of instructions: "products" on tensor cores, "few rows" on those of single
    warps, "vectors" of 16 bytes.
    """

    function: Callable[..., Any] | str
    arguments: tuple[str, ...] = ()
    sizes: dict[str, int] | None = None
    rounding: str = "eager"
    expects: tuple[str, ...] = ()

    def kernels(self) -> list[tuple[Kernel, dict[str, int]]]:
        """The kernels of the program, with their sizes."""
        if isinstance(self.function, str):
            return [(parse(GOLDENS[self.function]), self.sizes or {})]
        specs = [sm.spec(a) for a in self.arguments]
        with sm.config(device_code=False, rounding=self.rounding):
            report = sm.explain(self.function, *specs, target="sm_90")
        every = entries(report.compiled, report.sizes)
        checks = [k.kind == "check" for k in report.data.kernels]
        return [
            (e.kernel, dict(e.sizes))
            for e, is_check in zip(every, checks, strict=True)
            if e.kernel is not None and not is_check
        ]

    @property
    def policy(self) -> Policy:
        """How exact its arithmetic is."""
        return FAST if self.rounding == "fast" else EXACT


def softmax(x):
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def linear_gelu(x, w, b):
    return sm.nn.gelu(x @ w + b)


def swiglu(x, a, b):
    return sm.nn.silu(x @ a) * (x @ b)


def norm_qkv(x, g, w):
    return sm.nn.rms_norm(x, g) @ w


def causal(q, k, v):
    return sm.nn.attention(q, k, v, causal=True)


def conv(x, w, mean, variance):
    return sm.nn.relu(sm.nn.batch_norm(sm.nn.conv(x, w, padding=1), mean, variance))


def normalised(x, mean, variance):
    return sm.nn.relu(sm.nn.batch_norm(x, mean, variance))


def depthwise(x, w):
    return sm.nn.relu(sm.nn.conv(x, w, padding=1, groups=x.shape[1]))


def conv_last(x, w):
    y = sm.nn.conv(sm.permute_dims(x, (0, 3, 1, 2)), w, padding=1)
    return sm.permute_dims(sm.nn.relu(y), (0, 2, 3, 1))


def attention_state(q, k, v, s):
    def step(s, x):
        q, k, v = x
        s = s * 0.9 + k[..., None] * v[:, :, None, :]
        return s, sm.sum(q[..., None] * s, axis=2)

    return sm.scan(step, s, (q, k, v))


def cell(x, w, h):
    return sm.scan(lambda h, x: (sm.tanh(h @ w + x), h), h, x)


def adam(p, g, m, v):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (sm.sqrt(v) + 1e-8), m, v


def embedding(ids, table, g):
    return sm.nn.rms_norm(sm.take(table, ids, axis=0), g)


def splade(x, w):
    return sm.max(sm.log1p(sm.nn.relu(x @ w)), axis=1)


def integers(x, w):
    return sm.matmul(sm.astype(x, sm.int32), sm.astype(w, sm.int32))


LINEAR = ("{0}[4096,1024]", "{0}[1024,4096]", "{0}[4096]")
VECTORS, PRODUCTS = ("vectors",), ("products",)


def of(types: tuple[str, ...], dtype: str) -> tuple[str, ...]:
    return tuple(t.format(dtype) for t in types)


PROGRAMS = {
    "softmax 1000 f32": Program(softmax, ("f32[4096,1000]",), expects=VECTORS),
    "softmax 64 f32": Program(softmax, ("f32[65536,64]",)),
    "softmax 4096 bf16": Program(softmax, ("bf16[4096,4096]",), expects=VECTORS),
    "softmax 4096 fast": Program(softmax, ("f32[4096,4096]",), rounding="fast", expects=VECTORS),
    "softmax 32768 f32": Program(softmax, ("f32[2048,32768]",), expects=VECTORS),
    "softmax 131072 f32": Program(softmax, ("f32[512,131072]",), expects=VECTORS),
    "softmax 65536 bf16": Program(softmax, ("bf16[4096,65536]",), expects=VECTORS),
    "layer_norm 65536": Program(
        sm.nn.layer_norm, ("bf16[4096,65536]", "bf16[65536]", "bf16[65536]"), expects=VECTORS
    ),
    "log_softmax": Program(sm.nn.log_softmax, ("f32[4096,4096]",), expects=VECTORS),
    "layer_norm": Program(
        sm.nn.layer_norm, ("bf16[8192,4096]", "bf16[4096]", "bf16[4096]"), expects=VECTORS
    ),
    "rms_norm": Program(sm.nn.rms_norm, ("f32[8192,4096]", "f32[4096]"), expects=VECTORS),
    "gelu": Program(sm.nn.gelu, ("bf16[4096,4096]",), expects=VECTORS),
    "gelu fast": Program(sm.nn.gelu, ("f32[4096,4096]",), rounding="fast", expects=VECTORS),
    "transposed": Program(lambda x: sm.exp(x.T) * 2, ("f32[4096,4096]",), expects=VECTORS),
    "bias and dropout mask": Program(
        lambda x, b, m: sm.where(m, x + b, 0.0),
        ("f32[4096,4096]", "f32[4096]", "bool[4096,4096]"),
        expects=VECTORS,
    ),
    "images of 7 x 7": Program(normalised, ("bf16[256,512,7,7]", "bf16[512]", "bf16[512]")),
    "bias of 50": Program(
        lambda x, b: sm.nn.gelu(x + b), ("bf16[65536,50]", "bf16[50]"), expects=VECTORS
    ),
    "softmax 3 x 16": Program(sm.nn.softmax, ("f32[65536,3,16]",), expects=VECTORS),
    "sums of images": Program(lambda x: sm.sum(x, axis=0), ("f32[512,64,28,28]",), expects=VECTORS),
    "column sums": Program(lambda x: sm.sum(x, axis=0), ("f32[8192,4096]",), expects=VECTORS),
    "row variance": Program(lambda x: sm.var(x, axis=1), ("f32[8192,4096]",), expects=VECTORS),
    "argmax": Program(lambda x: sm.argmax(x, axis=1), ("f32[4096,4096]",)),
    "cumulative sum": Program(lambda x: sm.cumulative_sum(x, axis=1), ("f32[4096,4096]",)),
    "embedding": Program(
        embedding, ("i64[8192]", "bf16[32000,1024]", "bf16[1024]"), expects=VECTORS
    ),
    "rotary": Program(sm.nn.rotary, ("bf16[4,2048,16,64]",), expects=VECTORS),
    "adam": Program(adam, ("f32[4096,4096]",) * 4, expects=VECTORS),
    "histogram": Program(lambda ids: sm.bincount(ids, minlength=256), ("i64[1000000]",)),
    "linear gelu bf16": Program(linear_gelu, of(LINEAR, "bf16"), expects=PRODUCTS),
    "linear gelu f16": Program(linear_gelu, of(LINEAR, "f16"), expects=PRODUCTS),
    "linear gelu f32": Program(linear_gelu, of(LINEAR, "f32")),
    "linear gelu fast": Program(linear_gelu, of(LINEAR, "bf16"), rounding="fast", expects=PRODUCTS),
    "linear tf32": Program(lambda x, w: x @ w, of(LINEAR[:2], "f32"), rounding="fast"),
    "linear tf32 rows": Program(
        lambda x, w: x @ w.T, ("f32[4096,1024]", "f32[4096,1024]"), rounding="fast"
    ),
    "linear 16 rows": Program(
        lambda x, w: x @ w, ("bf16[16,4096]", "bf16[4096,4096]"), expects=("few rows",)
    ),
    "batched products": Program(
        lambda x, w: x @ w, ("bf16[64,512,512]", "bf16[64,512,512]"), expects=PRODUCTS
    ),
    "products of small matrices": Program(
        lambda x, w: x @ w, ("bf16[4096,16,16]", "bf16[4096,16,16]")
    ),
    "attention of 32 positions": Program(
        sm.nn.attention, ("bf16[4096,8,32,32]",) * 3, rounding="fast"
    ),
    "int8 products": Program(integers, ("i8[4096,1024]", "i8[1024,4096]")),
    "swiglu": Program(
        swiglu, ("bf16[4096,1024]", "bf16[1024,2816]", "bf16[1024,2816]"), expects=PRODUCTS
    ),
    "norm and projection": Program(
        norm_qkv, ("bf16[4096,1024]", "bf16[1024]", "bf16[1024,3072]"), rounding="fast"
    ),
    "linear and cross entropy": Program(
        lambda x, w, y: sm.nn.cross_entropy(x @ w, y),
        ("bf16[4096,1024]", "bf16[1024,32000]", "i64[4096]"),
    ),
    "splade": Program(splade, ("bf16[32,256,768]", "bf16[768,30522]")),
    "attention D64 fast": Program(
        sm.nn.attention, ("bf16[4,16,2048,64]",) * 3, rounding="fast", expects=PRODUCTS
    ),
    "attention D128 fast": Program(
        causal, ("bf16[4,16,2048,128]",) * 3, rounding="fast", expects=PRODUCTS
    ),
    "attention D64 f32": Program(causal, ("f32[4,16,2048,64]",) * 3),
    "attention D128 bf16": Program(causal, ("bf16[4,16,2048,128]",) * 3, expects=PRODUCTS),
    "decode": Program(
        sm.nn.attention, ("bf16[8,32,1,128]",) + ("bf16[8,32,4096,128]",) * 2, rounding="fast"
    ),
    "conv last": Program(
        conv_last, ("bf16[32,28,28,256]", "bf16[256,256,3,3]"), expects=("products",)
    ),
    "attention state": Program(attention_state, (*(3 * ("f32[256,4,16,64]",)), "f32[4,16,64,64]")),
    "cell": Program(cell, ("f32[256,512,64]", "f32[64,64]", "f32[512,64]")),
    "conv 3x3": Program(conv, ("f32[32,64,56,56]", "f32[64,64,3,3]", "f32[64]", "f32[64]")),
    "depthwise": Program(depthwise, ("f32[32,128,56,56]", "f32[128,1,3,3]"), expects=VECTORS),
    "golden add_layernorm": Program("add_layernorm", sizes={"r": 8192, "c": 4096}, expects=VECTORS),
    "golden causal_attention": Program(
        "causal_attention",
        sizes=dict(zip("bhmnde", (4, 16, 2048, 2048, 64, 64), strict=True)),
        rounding="fast",
    ),
    "golden linear_gelu": Program("linear_gelu", sizes={"m": 4096, "n": 4096, "k": 1024}),
}
QUICK = (
    "softmax 1000 f32",
    "layer_norm",
    "gelu",
    "column sums",
    "argmax",
    "cumulative sum",
    "embedding",
    "linear gelu bf16",
    "attention D128 fast",
    "adam",
)
"""Programs of `make test`, for one architecture."""


def rates(arch: str) -> DeviceRates:
    """The first device with an architecture."""
    return rates_of(gpu(arch))


def compiled(name: str, arch: str, compiler: TritonCompiler) -> Iterator[SelectedLaunch]:
    """The launches of a program, compiled."""
    program = PROGRAMS[name]
    for kernel, sizes in program.kernels():
        yield from select(kernel, sizes, rates(arch), compiler, program.policy).launches


def lines(name: str, arch: str, launches: list[SelectedLaunch]) -> list[str]:
    """The rows of the table for a program."""
    result: list[str] = []
    for launch in launches:
        head = f"{name} | {arch} | {launch.stage.program.name}"
        if launch.program is None:
            result.append(f"{head} | not compiled")
            continue
        needs = launch.program.resources
        counts = " ".join(
            f"{m}:{n}" for m, n in sorted(key_instructions(needs.instructions).items())
        )
        spills = f", spills {needs.spills}" if needs.spills else ""
        result.append(
            f"{head} | {launch.chosen.blocks} | {needs.registers} registers{spills} | "
            f"{needs.shared_bytes} shared | {counts}"
        )
    return result


def main() -> None:
    """Write the table of all programs."""
    names = sys.argv[1:] or list(PROGRAMS)
    pairs = [(n, a) for n in names for a in ARCHS]

    def one(pair: tuple[str, str]) -> list[str]:
        compiler = TritonCompiler(worker=Worker())
        try:
            result = lines(*pair, list(compiled(*pair, compiler)))
        except SmeltError as error:
            result = [f"{pair[0]} | {pair[1]} | {error}".splitlines()[0]]
        print("\n".join(result), flush=True)
        return result

    with ThreadPoolExecutor(2) as pool:
        table = [line for result in pool.map(one, pairs) for line in result]
    if not sys.argv[1:]:
        TABLE.write_text("\n".join([f"# {TritonCompiler().identity}", *table, ""]))


if __name__ == "__main__":
    main()
