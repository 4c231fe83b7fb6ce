"""Small networks."""

from __future__ import annotations

import smelt as sm


def perceptron(
    x: "f32[16384,784]", w: "f32[784,512]", b: "f32[512]", v: "f32[512,10]", c: "f32[10]"
):
    """Two layers."""
    return sm.nn.softmax(sm.nn.relu(x @ w + b) @ v + c, axis=1)


def gated_block(
    x: "bf16[8192,2048]", g: "bf16[2048]", a: "bf16[2048,5632]", b: "bf16[2048,5632]",
    o: "bf16[5632,2048]",
):  # fmt: skip
    """RMS norm, SwiGLU and the residual."""
    h = sm.nn.rms_norm(x, g)
    return x + (sm.nn.silu(h @ a) * (h @ b)) @ o


def encoder_layer(
    x: "bf16[16,512,768]", g: "bf16[768]", b: "bf16[768]", p: "bf16[768,2304]",
    o: "bf16[768,768]", u: "bf16[768,3072]", d: "bf16[3072,768]",
):  # fmt: skip
    """A layer of a transformer's encoder."""
    h = sm.reshape(x @ p, (16, 512, 3, 12, 64))
    q, k, v = (sm.permute_dims(h[:, :, n], (0, 2, 1, 3)) for n in range(3))
    y = sm.reshape(sm.permute_dims(sm.nn.attention(q, k, v), (0, 2, 1, 3)), (16, 512, 768))
    x = sm.nn.layer_norm(x + y @ o, g, b)
    return sm.nn.layer_norm(x + sm.nn.gelu(x @ u) @ d, g, b)


def residual_block(x: "bf16[32,64,56,56]", w: "bf16[64,64,3,3]", v: "bf16[64,64,3,3]"):
    """Two convolutions and the residual."""
    y = sm.nn.relu(sm.nn.conv(x, w, padding=1))
    return sm.nn.relu(x + sm.nn.conv(y, v, padding=1))


def recurrence(xs: "f32[128,512,1024]", w: "f32[1024,1024]"):
    """Last state of a recurrent layer, a loop of products."""
    return sm.scan(lambda h, x: (sm.tanh(h @ w + x), None), xs[0], xs)[0]


def training_step(x: "f32[16384,784]", y: "f32[16384,10]", w: "f32[784,512]", v: "f32[512,10]"):
    """Loss and gradients of two layers."""

    def loss(w, v):
        return sm.mean((sm.nn.relu(x @ w) @ v - y) ** 2)

    return sm.value_and_grad(loss, (0, 1))(w, v)
