"""Emit GEMM, GEMV and convolution drivers: packing, register tiles, prefetch, epilogues."""
