"""Memory access of vectors: loads and stores, gathers, bounds checks, prefetch, vector axis."""
