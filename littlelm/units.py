"""Numbers as people read them."""

from __future__ import annotations


def human(number: float) -> str:
    """Three digits and a suffix: 7,412,352 -> `7.41M`, 0.5 -> `0.5`."""
    for scale, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale * 0.9995:
            return _digits(number / scale) + suffix
    return _digits(number)


def flops(number: float) -> str:
    """FLOP with the prefix of the SI: 3.8e12 -> `3.8 TFLOP`."""
    for scale, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale * 0.9995:
            return f"{_digits(number / scale)} {prefix}FLOP"
    return f"{_digits(number)} FLOP"


def _digits(number: float) -> str:
    text = f"{number:.3g}"
    return f"{number:.0f}" if "e" in text else text


def duration(seconds: float) -> str:
    """`43 h 10 min`, `5 min 12 s`, `8.4 s`, `12 ms`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def usd(amount: float) -> str:
    """`$998.20`; below ten cents with four digits after the point."""
    return f"${amount:,.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"
