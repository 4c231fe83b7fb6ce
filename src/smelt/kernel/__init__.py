"""Kernels: tile programs that compute clusters, and the calling convention of their code."""
