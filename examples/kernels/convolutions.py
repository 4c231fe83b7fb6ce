"""Convolutions and pooling."""

from __future__ import annotations

import smelt as sm


def conv3x3(x: "bf16[32,64,56,56]", w: "bf16[64,64,3,3]"):
    """A 3 x 3 convolution with ReLU."""
    return sm.nn.relu(sm.nn.conv(x, w, padding=1))


def conv3x3_last(x: "bf16[32,56,56,64]", w: "bf16[64,64,3,3]"):
    """The convolution of images whose channels come last."""
    y = sm.nn.conv(sm.permute_dims(x, (0, 3, 1, 2)), w, padding=1)
    return sm.permute_dims(y, (0, 2, 3, 1))


def pointwise_conv(x: "bf16[32,256,28,28]", w: "bf16[512,256,1,1]", b: "bf16[512]"):
    """A 1 x 1 convolution with bias and GELU."""
    return sm.nn.gelu(sm.nn.conv(x, w) + b[:, None, None])


def depthwise(x: "f32[32,144,56,56]", w: "f32[144,1,3,3]"):
    """A depthwise convolution."""
    return sm.nn.conv(x, w, padding=1, groups=144)


def max_pool(x: "f32[64,64,112,112]"):
    """The largest of two by two."""
    return sm.nn.max_pool(x, 2)
