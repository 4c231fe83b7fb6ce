"""The compiler: from a graph to an executable, for processors and for GPUs."""
