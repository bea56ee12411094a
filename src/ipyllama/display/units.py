"""Numbers as people read them."""

from __future__ import annotations


def format_count(n: int) -> str:
    """1234567 -> "1,234,567"."""
    return f"{n:,}"


def plural(n: int, one: str, many: str | None = None) -> str:
    """A count and its noun: "1 token", "1,024 tokens"."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def format_bytes(n: float) -> str:
    """Decimal units, three figures: 93012345 -> "93.0 MB"."""
    size = float(n)
    if abs(size) < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if abs(size) < 999.5 or unit == "TB":
            return f"{size:.{0 if abs(size) >= 99.95 else 1}f} {unit}"
    raise AssertionError("unreachable: the last unit takes every size")


def format_limit(n: int) -> str:
    """A limit as it is written: 2147483648 -> "2 GiB"; others as `format_bytes`."""
    for power, unit in enumerate(("TiB", "GiB", "MiB", "KiB")):
        size, rest = divmod(n, 1024 ** (4 - power))
        if 0 < size < 10_000 and not rest:
            return f"{size:,} {unit}"
    return format_bytes(n)


def format_ago(seconds: float) -> str:
    """30 -> "just now", 300 -> "5 min ago", 7200 -> "2 h ago", 864000 -> "10 days ago"."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes} min ago"
    hours = round(minutes / 60)
    return f"{hours} h ago" if hours < 48 else f"{plural(round(hours / 24), 'day')} ago"


def format_seconds(seconds: float) -> str:
    """0.0412 -> "41 ms", 1.23 -> "1.2 s", 42 -> "42 s", 125 -> "2 min 5 s", 4000 -> "1 h 7 min"."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def format_rate(per_second: float) -> str:
    """Tokens per second: two figures where it is slow, whole numbers from ten on: "4.8/s", "48/s", "1,234/s"."""
    return f"{per_second:.1f}/s" if per_second < 9.95 else f"{per_second:,.0f}/s"


def format_share(share: float) -> str:
    """A probability: 0.62 -> "62%", 0.034 -> "3.4%", 0.9997 -> "99.97%", 0.00002 -> "<0.01%"."""
    if 0 < share < 0.0001:
        return "<0.01%"
    if 0.995 <= share < 0.99995:
        return f"{share * 100:.2f}%"
    digits = 0 if share >= 0.0995 or share == 0 else 1 if share >= 0.00995 else 2
    return f"{share * 100:.{digits}f}%"
