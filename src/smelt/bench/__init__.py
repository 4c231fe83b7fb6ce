"""The benchmark: the same functions in NumPy, PyTorch, JAX and Smelt, against the machine's floor.

`smelt bench` runs it. `workloads` says what is computed, `peers` how each library is asked for
it, `run` takes the times with every library in a process of its own and all of them in turn, and
`table`, `plot` and `page` show the result. Libraries that are not installed are reported so.

>>> from smelt.bench.workloads import WORKLOADS
>>> "softmax_4096" in WORKLOADS
True
"""
