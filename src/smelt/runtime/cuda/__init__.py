"""Run plans on NVIDIA GPUs: driver, memory, launches, arrays.

Nothing here is imported, and no driver is loaded, before a device is requested.
"""
