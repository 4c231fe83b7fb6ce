"""The loop-level IR between kernels and LLVM, and the rewrites of it."""
