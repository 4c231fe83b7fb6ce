"""Graphs as text that tests of several stages compile."""

SOFTMAX = """graph f(x: f32[n,m]) {
  a = reduce.max(x) {axes=(1,)}
  b = reshape(a) {shape=(n,1)}
  c = sub(x, b)
  d = exp(c)
  e = reduce.sum(d) {axes=(1,)}
  g = reshape(e) {shape=(n,1)}
  h = div(d, g)
  return h
}"""
