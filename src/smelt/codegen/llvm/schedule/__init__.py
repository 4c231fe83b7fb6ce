"""Scheduling: tasks, loop nests, the plan of each contraction, and the cost of the whole."""
