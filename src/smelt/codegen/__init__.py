"""Code generation: from a kernel to machine code."""
