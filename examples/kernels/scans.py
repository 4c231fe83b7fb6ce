"""Scans, searches and updates at computed positions."""

from __future__ import annotations

import smelt as sm


def running_sum(x: "f32[134217728]"):
    """Sums of all elements before each."""
    return sm.cumulative_sum(x)


def running_sums(x: "f32[16384,4096]"):
    """Running sums of rows."""
    return sm.cumulative_sum(x, axis=1)


def largest(x: "f32[16384,32768]"):
    """Positions of the largest elements of rows."""
    return sm.argmax(x, axis=1)


def embedding(ids: "i64[8192]", table: "bf16[131072,4096]", g: "bf16[4096]"):
    """Rows of a table, with an RMS norm."""
    return sm.nn.rms_norm(sm.take(table, ids, axis=0), g)


def histogram(ids: "i64[16777216]"):
    """Counts of 256 values."""
    return sm.bincount(ids, minlength=256)
