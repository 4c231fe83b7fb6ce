"""The flat graph that is scheduled: its items, and what turns one graph into an equal one."""
