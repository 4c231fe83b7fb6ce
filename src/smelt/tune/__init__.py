"""Autotuning: race alternative plans where the cost model is unsure, and remember the winner.

A decision whose two predicted times differ little is flipped: operators that the plan fuses are
separated, or the other way round, or a library computes products (`library_products`). Each plan
that differs is compiled, must give the same results, and alternates with the best one so far. The
winner is kept on disk under the program's text, the machine and the sizes' magnitudes; the setting
`tune` says when to race and when to use the result. On a device plans race by `device_plans`, and
the schedules of their kernels by `schedules`.

    settings = choose(HostRace(program, build, journal), machine_id(target))
    with knobs.config(settings):
        compiled = build()
"""
