"""Two networks for images in plain array code: ResNet-18 and MobileNetV2, with seeded weights.

Nothing here is known to the compiler: a network is convolutions, normalisations and sums, and the
kernels are what fusing them gives.

    python examples/images.py

Sources: K. He et al., "Deep Residual Learning for Image Recognition", 2016; M. Sandler et al.,
"MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import smelt as sm

Layer = dict[str, Any]
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""ResNet-18: channels and first stride of each pair of blocks."""
BOTTLENECKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""MobileNetV2: expansion, channels, blocks, first stride."""


def seeded(seed: int = 0) -> Any:
    """A function that makes the weights of a convolution and its normalisation."""
    rng = np.random.default_rng(seed)

    def layer(out: int, channels: int, size: int, groups: int = 1) -> Layer:
        fan = channels // groups * size * size
        weight = rng.standard_normal((out, channels // groups, size, size)) * (2 / fan) ** 0.5
        mean, shift = rng.standard_normal((2, out)) * 0.1
        variance, gain = rng.uniform(0.5, 1.5, (2, out))
        found = {"weight": weight, "mean": mean, "variance": variance, "gain": gain, "shift": shift}
        return {k: v.astype(np.float32) for k, v in found.items()}

    return layer


def normed(x: Any, p: Layer, **options: Any) -> Any:
    """A convolution and the normalisation of its channels."""
    y = sm.nn.conv(x, p["weight"], **options)
    return sm.nn.batch_norm(y, p["mean"], p["variance"], p["gain"], p["shift"])


# ---- ResNet-18 ---------------------------------------------------------------------------------


def resnet18_weights(seed: int = 0, classes: int = 1000) -> Layer:
    """Weights as K. He et al. draw them."""
    layer = seeded(seed)
    found: Layer = {"stem": layer(64, 3, 7)}
    channels = 64
    for k, (out, step) in enumerate(STAGES):
        for j in range(2):
            stride = step if j == 0 else 1
            block: Layer = {"first": layer(out, channels, 3), "second": layer(out, out, 3)}
            if stride != 1 or channels != out:
                block["short"] = layer(out, channels, 1)
            found[f"block{k}{j}"] = block
            channels = out
    found["head"] = layer(classes, channels, 1)["weight"][:, :, 0, 0]
    return found


def resnet18(x: Any, p: Layer) -> Any:
    """Logits [batch, classes] of images [batch, 3, height, width]."""
    x = sm.nn.relu(normed(x, p["stem"], stride=2, padding=3))
    x = sm.nn.max_pool(x, 3, stride=2, padding=1)
    for k, (_, step) in enumerate(STAGES):
        for j in range(2):
            block, stride = p[f"block{k}{j}"], step if j == 0 else 1
            y = sm.nn.relu(normed(x, block["first"], stride=stride, padding=1))
            y = normed(y, block["second"], padding=1)
            short = normed(x, block["short"], stride=stride) if "short" in block else x
            x = sm.nn.relu(y + short)
    return sm.mean(x, axis=(2, 3)) @ p["head"].T


# ---- MobileNetV2 -------------------------------------------------------------------------------


def mobilenet_v2_weights(seed: int = 0, classes: int = 1000) -> Layer:
    """Weights drawn likewise."""
    layer = seeded(seed)
    found: Layer = {"stem": layer(32, 3, 3)}
    channels = 32
    for k, (grow, out, count, _) in enumerate(BOTTLENECKS):
        for j in range(count):
            wide = channels * grow
            block = {"expand": layer(wide, channels, 1)} if grow != 1 else {}
            block |= {"depth": layer(wide, wide, 3, wide), "project": layer(out, wide, 1)}
            found[f"block{k}{j}"] = block
            channels = out
    found["last"] = layer(1280, channels, 1)
    found["head"] = layer(classes, 1280, 1)["weight"][:, :, 0, 0]
    return found


def relu6(x: Any) -> Any:
    """x between 0 and 6."""
    return sm.minimum(sm.maximum(x, 0), 6)


def mobilenet_v2(x: Any, p: Layer) -> Any:
    """Logits [batch, classes] of images [batch, 3, height, width]."""
    x = relu6(normed(x, p["stem"], stride=2, padding=1))
    for k, (grow, _, count, step) in enumerate(BOTTLENECKS):
        for j in range(count):
            block, stride = p[f"block{k}{j}"], step if j == 0 else 1
            y = relu6(normed(x, block["expand"])) if grow != 1 else x
            wide = block["depth"]["weight"].shape[0]
            y = relu6(normed(y, block["depth"], stride=stride, padding=1, groups=int(wide)))
            y = normed(y, block["project"])
            x = x + y if j else y
    x = relu6(normed(x, p["last"]))
    return sm.mean(x, axis=(2, 3)) @ p["head"].T


NETWORKS = {
    "resnet18": (resnet18, resnet18_weights),
    "mobilenet_v2": (mobilenet_v2, mobilenet_v2_weights),
}


def main() -> None:
    """Runs both on one image and says what they became."""
    image = np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(np.float32)
    for name, (network, weights) in NETWORKS.items():
        p = weights()
        run = sm.jit(network)
        best = int(sm.argmax(run(image, p)))
        kernels = len(sm.explain(run, image, p).kernels)
        print(f"{name}: class {best}, {kernels} kernels")


if __name__ == "__main__":
    main()
