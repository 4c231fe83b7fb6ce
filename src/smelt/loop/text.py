'''Text form of loops: parsing what was printed gives an equal module.

>>> source = """func total(x: f32[c*r], y: out f32[r]; r, c)
...   chunk t in 0 .. r
...     each i in 0 .. c with s = sum 0.0
...       s <- x[c*t + i]
...     y[t] = s"""
>>> text(parse(source)) == source
True
>>> parse("func f(x: f32[n]; n)\\n  each i in 0 .. n\\n    y = x[j]")
Traceback (most recent call last):
    ...
smelt.errors.LoopTextError: E407 unreadable loops: j is not bound here
  at line 3, column 11:  y = x[j]
                               ^
  help: Compare the line with the examples on the page `The loop language`.
'''

from smelt.loop.text_parse import parse
from smelt.loop.text_print import statement_text, text, value_text

__all__ = ["parse", "statement_text", "text", "value_text"]
