"""Benchmark: the same functions in NumPy, PyTorch, JAX and Smelt, compared with the memory floor.

`python -m bench` runs it. `workloads` defines the computations, `peers` how each library runs them,
`run` measures with every library in a process of its own and all of them round-robin, and `table`,
`plot` and `page` show the result. Libraries that are not installed are listed as such.

>>> from bench.workloads import WORKLOADS
>>> "softmax_4096" in WORKLOADS
True
"""
