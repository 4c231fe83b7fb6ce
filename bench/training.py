"""A training step behind `torch.compile`: forward, backward and AdamW of a small language model.

The model is defined here, in the style of nanoGPT: only PyTorch is needed.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from smelt import knobs

__all__ = ["build", "measure", "page", "stepper"]

WORDS, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 2000, 192, 6, 3, 128, 4


def build() -> Any:
    """Return a module (ids, labels) -> loss; seed PyTorch first.

    Raises ImportError without PyTorch.
    """
    torch = import_module("torch")
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.down(F.gelu(self.up(self.between(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)
            self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, ids: Any, labels: Any) -> Any:
            x = self.words(ids) + self.places
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy(self.head(self.last(x)).flatten(0, 1), labels.flatten())

    return Model()


def stepper(peer: str) -> Callable[[], float]:
    """Return a function that does one step, forward, backward and AdamW, and returns the loss.

    `peer` is "eager" or a backend of `torch.compile`; the optimiser is PyTorch's own everywhere.
    """
    torch = import_module("torch")
    torch.manual_seed(0)
    model = build()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    call = model if peer == "eager" else torch.compile(model, backend=peer)
    ids, labels = (torch.randint(0, WORDS, (BATCH, LENGTH)) for _ in range(2))

    def step() -> float:
        optimiser.zero_grad()
        loss = call(ids, labels)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def measure(peers: Sequence[str], rounds: int = 6) -> dict[str, tuple[float, float]]:
    """Return by peer the minimum CPU milliseconds of a step, and the final loss.

    One thread. Peers that train are "eager" and backends of `torch.compile`.
    """
    torch = import_module("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results: dict[str, tuple[float, float]] = {}
    try:
        with knobs.config(threads=1):
            for peer in (p for p in peers if p != "onnxruntime"):
                torch._dynamo.reset()
                step = stepper(peer)
                step()
                times: list[float] = []
                loss = 0.0
                for _ in range(rounds):
                    start = time.process_time()
                    loss = step()
                    times.append(time.process_time() - start)
                results[peer] = (min(times) * 1e3, loss)
    finally:
        torch.set_num_threads(threads)
    return results


def page(measured: Mapping[str, tuple[float, float]]) -> str:
    """Return the section of the page of models.

    >>> print(page({"eager": (75.0, 6.5), "smelt": (50.0, 6.5)}).splitlines()[-1])
    | smelt | 50.0 | 1.00x | 6.500000 |
    """
    smelt_ms = measured["smelt"][0]
    model = f"{LAYERS} blocks of {WIDTH}, {WORDS} words, {BATCH} texts of {LENGTH}"
    lines = [
        "",
        "## A training step",
        "",
        f"Forward, backward and AdamW of a language model ({model}).",
        "",
        "| peer | ms | over it | loss |",
        "| --- | --: | --: | --: |",
    ]
    lines += [
        f"| {peer} | {ms:.1f} | {ms / smelt_ms:.2f}x | {loss:.6f} |"
        for peer, (ms, loss) in measured.items()
    ]
    return "\n".join(lines) + "\n"
