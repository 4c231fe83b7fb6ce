"""Plans raced by measurement where the model of costs is unsure, and remembered on this machine.

A decision whose two times differ by little is turned over: operators that the plan fuses are kept
apart, or the other way round.  Each plan that differs is compiled, must give the same numbers, and
runs in turns with the best one so far.  What wins is kept on disk under the program's text, the
machine and the sizes' magnitudes; the setting `tune` says when to race and when to remember.

    settings = choose(program, build, target, journal)
    with knobs.config(settings):
        compiled = build()
"""
