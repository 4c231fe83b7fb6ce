"""Code generation: a Kernel becomes machine code."""
