"""Format numbers with units for people: three digits, decimal prefixes.

>>> show_bytes(25_165_824), show_time(1_423_000), show_rate(61e9), show_factor(4.01)
('25.2 MB', '1.42 ms', '61 GB/s', '4.0x')
"""

from __future__ import annotations


def three_digits(number: float) -> str:
    """Format a number from 0 to 1000 with three digits.

    >>> (
    ...     three_digits(0),
    ...     three_digits(1.234),
    ...     three_digits(12.34),
    ...     three_digits(123.4),
    ...     three_digits(999.7),
    ... )
    ('0', '1.23', '12.3', '123', '1000')
    """
    if number == 0:
        return "0"
    return (
        f"{number:.2f}"
        if number < 9.995
        else f"{number:.1f}"
        if number < 99.95
        else f"{number:.0f}"
    )


def _scaled(number: float, steps: tuple[tuple[float, str], ...]) -> str:
    for scale, unit in steps:
        if abs(number) >= scale * 0.9995:
            return f"{three_digits(abs(number) / scale)} {unit}"
    return f"{three_digits(abs(number))} {steps[-1][1]}"


def show_bytes(number: float) -> str:
    """Format bytes, as in `201 MB`; whole bytes below a thousand."""
    if abs(number) < 1000:
        return f"{number:.0f} B"
    return _scaled(number, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")))


def show_time(ns: float) -> str:
    """Format nanoseconds, as in `1.42 ms`."""
    return _scaled(ns, ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")))


def show_rate(per_second: float) -> str:
    """Format bytes per second, as in `61 GB/s`.

    >>> show_rate(9.61e9), show_rate(4.7536e12)
    ('9.61 GB/s', '4754 GB/s')
    """
    rate = per_second / 1e9
    return f"{rate:.0f} GB/s" if rate >= 1000 else f"{rate:.3g} GB/s"


def show_count(number: int, one: str) -> str:
    """Format a count, as in `1 kernel`, `3 kernels`."""
    return f"{number} {one if number == 1 else one + 's'}"


def show_factor(ratio: float) -> str:
    """Format a factor, as in `4.0x`."""
    return f"{ratio:.1f}x"
