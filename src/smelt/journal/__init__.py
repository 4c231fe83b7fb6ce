"""Tell what Smelt does while it works: facts, logs, progress and the user's tracebacks."""
