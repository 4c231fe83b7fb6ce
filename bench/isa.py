"""Hold every library to an older instruction set, which any machine can measure.

>>> sorted(VARIABLES)
['avx2']

Libraries choose their code by the processor when they are loaded; each reads a variable of its own
that forbids wider instructions. ONNX Runtime has none, and JAX's matrix products do not heed it:
they are left out (`held`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.process import command
from smelt import knobs

__all__ = ["UNLIMITED", "VARIABLES", "held", "limited_command"]

VARIABLES: Mapping[str, Mapping[str, str]] = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch's own kernels, and what Inductor generates
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"
        " AVX512_SPR X86_V4",  # names of NumPy 2.1 to 2.4; unknown ones are ignored
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "SMELT_HOST_ISA": "avx2",
        # Its cache holds weights packed for one instruction set, and does not say for which.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "smelt-inductor-avx2"),
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    }
}
"""Instruction set -> the variables by which each library is told."""

UNLIMITED = ("onnxruntime", "jax")
"""Peers whose matrix products cannot be told."""


def held(peers: Iterable[str], isa: str = "") -> tuple[str, ...]:
    """Return the peers whose products keep to an instruction set: by default the process's.

    >>> held(("numpy", "jax"), "avx2"), held(("numpy", "jax"), "auto")
    (('numpy',), ('numpy', 'jax'))
    """
    is_limited = (isa or knobs.HOST_ISA.get()) in VARIABLES
    return tuple(peer for peer in peers if not (is_limited and peer in UNLIMITED))


def limited_command(isa: str, arguments: Sequence[str]) -> list[str]:
    """Return a command line that runs the benchmarks with libraries held to `isa`.

    >>> limited_command("avx2", ["--quick"])[-3:]
    ['-m', 'bench', '--quick']
    """
    return command(["-m", "bench", *arguments], VARIABLES[isa])
