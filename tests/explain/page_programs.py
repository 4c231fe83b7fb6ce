"""Programs whose pages are tested, with their reports."""

from __future__ import annotations

from functools import cache

import numpy as np

import smelt as sm
from smelt import knobs


def array(*shape):
    return sm.asarray(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def log_relu(x, b):
    h = x + b
    h = sm.maximum(h, 0.0)
    return sm.log(h + 1.0)


def attention(q, k, v):
    return sm.nn.attention(q, k, v)


def looked_up(table, ids, scale):
    h = sm.nn.gelu(table)
    return sm.take(h, ids, axis=0) * scale


def layer(x, w, b):
    h = sm.nn.gelu(x @ w + b)
    return sm.nn.softmax(h @ w.T, axis=-1), x.T


ARGUMENTS = {
    log_relu: lambda: (array(256, 128), array(128)),
    attention: lambda: (array(1, 4, 512, 64), array(1, 4, 512, 64), array(1, 4, 512, 64)),
    looked_up: lambda: (array(512, 256), sm.asarray(np.arange(8192) % 512), array(256)),
    layer: lambda: (array(64, 48), array(48, 96), array(96)),
}
PROGRAMS = {f.__name__: f for f in ARGUMENTS}


@cache
def report(name):
    f = PROGRAMS[name]
    with knobs.config(cache=False):
        return sm.explain(f, *ARGUMENTS[f]())


@cache
def data(name):
    return report(name).to_data(page=True)
