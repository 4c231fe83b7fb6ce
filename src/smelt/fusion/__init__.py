"""Fusion: Graph -> Plan. Which operators become one kernel, and why."""
