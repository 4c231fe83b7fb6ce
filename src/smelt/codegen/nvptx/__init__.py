"""Kernels of maps and simple reductions as PTX, through LLVM alone: no Triton, no toolkit."""
