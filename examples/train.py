"""Train a tiny transformer to write this file, in plain array code.

Adam trains it.

    python examples/train.py          train it, and print its loss and a line that it writes

Forward, backward and update are one function under `sm.jit`: the gradient is recorded behind the
loss and Adam behind the gradient, and all of it is planned together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import smelt as sm

WIDTH, HEADS, LENGTH, BATCH = 32, 2, 16, 16
Parameters = dict[str, Any]


def initial(vocabulary: int, seed: int = 0) -> Parameters:
    """Weights of one block, normal with the usual scales."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    return {
        "tokens": normal(vocabulary, WIDTH),
        "places": normal(LENGTH, WIDTH),
        "q": normal(WIDTH, WIDTH),
        "k": normal(WIDTH, WIDTH),
        "v": normal(WIDTH, WIDTH),
        "mix": normal(WIDTH, WIDTH),
        "up": normal(WIDTH, 4 * WIDTH),
        "up_bias": np.zeros(4 * WIDTH, np.float32),
        "down": normal(4 * WIDTH, WIDTH),
        "norm": np.ones(WIDTH, np.float32),
        "head": normal(WIDTH, vocabulary),
    }


def logits(p: Parameters, tokens: Any) -> Any:
    """Scores [batch, length, vocabulary] of what follows each of tokens: i64[batch, length]."""
    x = sm.take(p["tokens"], tokens, axis=0) + p["places"]
    batch, length, width = x.shape

    def heads(h: Any) -> Any:
        split = sm.reshape(h, (batch, length, HEADS, width // HEADS))
        return sm.permute_dims(split, (0, 2, 1, 3))

    h = sm.nn.rms_norm(x)
    seen = sm.nn.attention(heads(h @ p["q"]), heads(h @ p["k"]), heads(h @ p["v"]), causal=True)
    x = x + sm.reshape(sm.permute_dims(seen, (0, 2, 1, 3)), x.shape) @ p["mix"]
    h = sm.nn.gelu(sm.nn.rms_norm(x) @ p["up"] + p["up_bias"], approximate="tanh")
    return sm.nn.rms_norm(x + h @ p["down"], p["norm"]) @ p["head"]


def loss(p: Parameters, tokens: Any) -> Any:
    """How badly each token of i64[batch, length + 1] foretells the next, in nats."""
    return sm.nn.cross_entropy(logits(p, tokens[:, :-1]), tokens[:, 1:])


def adam(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    step: Any,
    rate: float = 3e-3,
    decay: float = 0.9,
    spread: float = 0.99,
) -> tuple[Any, Any, Any]:
    """One array updated, with the running moments of its gradient (D. Kingma and J. Ba, 2015)."""
    m = decay * m + (1 - decay) * g
    v = spread * v + (1 - spread) * g * g
    size = (m / (1 - decay**step)) / (sm.sqrt(v / (1 - spread**step)) + 1e-8)
    return p - rate * size, m, v


@sm.jit
def train_step(p: Parameters, m: Parameters, v: Parameters, step: Any, tokens: Any) -> Any:
    """The loss, and parameters and moments after one step; `step` counts from 1.0."""
    value, slopes = sm.value_and_grad(loss)(p, tokens)
    new = {name: adam(p[name], slopes[name], m[name], v[name], step) for name in p}
    return value, *({name: parts[k] for name, parts in new.items()} for k in range(3))


def batches(text: str, steps: int, seed: int = 1) -> Any:
    """Random pieces of a text, as numbers of its characters: i64[BATCH, LENGTH + 1] each."""
    letters = sorted(set(text))
    numbers = np.array([letters.index(c) for c in text])
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - LENGTH - 1, BATCH)
        yield numbers[starts[:, None] + np.arange(LENGTH + 1)]


def train(text: str, steps: int) -> tuple[Parameters, list[float]]:
    """Parameters after `steps` steps, and the loss before each."""
    p: Any = initial(len(set(text)))
    m = v = {name: np.zeros_like(a) for name, a in p.items()}
    losses: list[float] = []
    for k, tokens in enumerate(batches(text, steps)):
        value, p, m, v = train_step(p, m, v, float(k + 1), tokens)
        losses.append(float(value))
    return p, losses


def write(p: Parameters, text: str, start: str, count: int) -> str:
    """`start` continued by the likeliest characters."""
    letters = sorted(set(text))
    scores = sm.jit(logits)
    for _ in range(count):
        tokens = np.array([[letters.index(c) for c in start[-LENGTH:].rjust(LENGTH)]])
        best = int(sm.argmax(scores(p, tokens)[0, -1]))
        start += letters[best]
    return start


def main() -> None:
    """Train on this file."""
    text = Path(__file__).read_text(encoding="utf-8")
    p, losses = train(text, 400)
    for k in (0, 50, 100, 200, 300, 399):
        print(f"step {k + 1:3}  loss {losses[k]:.3f}")
    print(repr(write(p, text, "def ", 40)))


if __name__ == "__main__":
    main()
