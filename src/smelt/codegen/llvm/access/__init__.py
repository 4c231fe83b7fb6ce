"""How lanes reach memory: vectors, tails, steps, patterns, margins, what is asked for ahead."""
