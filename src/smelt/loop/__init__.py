"""Loops: how a kernel runs on a CPU, and the passes that rewrite it."""
