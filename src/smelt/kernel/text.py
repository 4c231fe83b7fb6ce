"""Text form of kernels: parsing what was printed gives an equal kernel.

Users see this text as their fused kernel; it is also the cache key and the bug report.
`docs/kernels.md` explains the language by example.

>>> source = '''kernel log_relu(x: f32[r,c], b: f32[c]) -> y: f32[r,c]
...   grid r, c/4096
...   y[r,c] = log(max(x[r,c] + b[c], 0))'''
>>> kernel = parse(source)
>>> text(kernel) == source
True
>>> parse("kernel k(x: f32[n]) -> y: f32[n]\\n  y[n] = exp(z[n])")
Traceback (most recent call last):
    ...
smelt.errors.KernelTextError: E402 unreadable kernel: 'z' is not a parameter
  at line 2, column 14:  y[n] = exp(z[n])
                                    ^
  help: Print a kernel with sm.explain(f, *args).kernels[0].text for an example of the form.
"""

from smelt.kernel.text_parse import parse
from smelt.kernel.text_print import RESERVED, statement_text, text, value_text

__all__ = ["RESERVED", "parse", "statement_text", "text", "value_text"]
