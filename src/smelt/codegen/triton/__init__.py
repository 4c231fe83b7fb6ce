"""The GPU back end's texts: a kernel printed as a Triton program.

    from smelt.codegen.triton.source import triton_source

    print(triton_source(kernel, {"r": 4096, "c": 1000}))

Nothing here imports Triton: the source is text, the same for the same kernel and sizes.
"""
