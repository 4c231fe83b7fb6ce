"""Loop transformations of a nest: partitioning, unrolling, distribution, versioning, tails."""
