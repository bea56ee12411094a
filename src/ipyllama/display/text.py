"""The plain-text form of an answer: what a terminal, a diff and a text editor show."""

from __future__ import annotations

from typing import Final

from ipyllama.display.units import format_count, format_rate, format_seconds, plural
from ipyllama.reply import Reply

_ENDINGS: Final = {
    "stop": "",
    "length": "stopped at max_tokens (-n)",
    "context": "stopped: the context is full",
    "interrupted": "[interrupted]",
    "error": "[failed]",
}
"""What the footer says about each finish reason."""

_VISIBLE: Final = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_VISIBLE_C1: Final = dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def footer(reply: Reply, fresh: str = "--fresh computes it again") -> str:
    """One line about the answer's cost and ending; each note on a line of its own below it. `fresh` tells, where
    nothing was computed, how to have it computed."""
    return "\n".join((cost(reply, fresh), *map(one_line, reply.notes)))


def cost(reply: Reply, fresh: str = "") -> str:
    """`812 prompt tokens: 780 reused, 0 restored, 32 computed · first token 41 ms · 120 tokens at 48/s`."""
    if reply.replayed:
        return _replayed(reply, fresh)
    usage, timings = reply.usage, reply.timings
    parts = [
        f"{plural(usage.prompt, 'prompt token')}: {format_count(usage.reused)} reused, "
        f"{format_count(usage.restored)} restored, {format_count(usage.computed)} computed"
    ]
    if timings.first_token > 0 and usage.generated:
        parts.append(f"first token {format_seconds(timings.first_token)}")
    speed = timings.tokens_per_second(usage.generated)
    parts.append(plural(usage.generated, "token") + (f" at {format_rate(speed)}" if speed else ""))
    parts.append(_ENDINGS[reply.finish_reason])
    parts.append("fused (approximate)" if reply.fused else "")
    parts.append("prefix memory off" if reply.why and reply.why.cause == "cache off" else "")
    return " · ".join(filter(None, parts))


def _replayed(reply: Reply, fresh: str) -> str:
    parts = (
        "replayed: this exact request was answered before, nothing was computed",
        plural(reply.usage.generated, "token"),
        _ENDINGS[reply.finish_reason],
        fresh,
    )
    return " · ".join(filter(None, parts))


def body_text(reply: Reply) -> str:
    """The answer itself; where there is nothing to see, that is said."""
    thinking, text, ended = reply.parts
    if not ended:
        return "(stopped while thinking)"
    if thinking and not text.strip():
        return "(no answer after thinking)"
    if not text:
        return "(nothing written yet)" if reply.finish_reason == "interrupted" else "(empty reply)"
    return printable(text).strip("\n") if text.strip() else "(only white space)"


def reply_text(reply: Reply) -> str:
    """The answer and, set off by dashes, the footer; of thinking only that there was some."""
    lines = "\n".join(f"— {line}" for line in footer(reply).split("\n"))
    folded = f"({thought(reply.thinking)}: reply.thinking)\n\n" if reply.thinking else ""
    return f"{folded}{body_text(reply)}\n\n{lines}"


def thought(thinking: str) -> str:
    """`thought for 120 words`."""
    return f"thought for {plural(n_words(thinking), 'word')}"


def n_words(text: str) -> int:
    return len(text.split())


def printable(text: str) -> str:
    """Control characters as visible signs, so that a model cannot steer the reader's terminal."""
    return text.replace("\r\n", "\n").translate(_VISIBLE | _VISIBLE_C1)


def one_line(text: str) -> str:
    """The text with every run of white space as one space."""
    return printable(" ".join(text.split()))
