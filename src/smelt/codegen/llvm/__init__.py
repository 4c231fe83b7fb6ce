"""The CPU back end: LLVM through llvmlite."""
