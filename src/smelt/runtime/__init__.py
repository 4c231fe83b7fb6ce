"""Running compiled plans on this machine: loading code, threads, memory, the object cache."""
