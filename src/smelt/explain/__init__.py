"""Reports on compiled functions: what was fused, what was not, why, and what it costs.

    from smelt.explain.api import report

    print(report(compiled, {"n": 1000}, [x]))

Everything is read from the journal and the plan. Reports that a program file holds
(`smelt.explain.saved_report`) need no LLVM.
"""
