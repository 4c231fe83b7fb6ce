"""Rewrite kernels into kernels that compute the same: one module a transform, for all machines."""
