"""Chat templates of the kinds that models ship, written for these tests, and a small real tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ipyllama.chat import ChatTemplate

CHATML: Final = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

DEFAULT_SYSTEM: Final = (
    """\
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou are kind.<|im_end|>\\n' }}
{%- endif %}
"""
    + CHATML
)

HEADERS: Final = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start|>' + message.role + '<|end|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

INST: Final = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate\\nuser/assistant') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""

THINK: Final = """\
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and not loop.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

THINK_PROMPT: Final = THINK.replace("{%- if enable", "{{- '<think>\\n' }}\n    {%- if enable")

DATE: Final = "{{ '<|im_start|>system\\nToday is ' + strftime_now('%d %b %Y') + '.<|im_end|>\\n' }}" + CHATML

PLAIN: Final = """\
{% for message in messages %}
{{ message.role | title }}: {{ message.content }}
{% endfor %}
Assistant:"""

SPECIAL: Final = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<|other_end|>")
EOG: Final = ("</s>", "<|im_end|>", "<|eot|>", "<|other_end|>")


def template(source: str, now: datetime = datetime(2026, 3, 9, 12, 0)) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "</s>", now=lambda: now)


class Bytes:
    """A byte-level vocabulary: 256 bytes, the special tokens, and one merged token for `ab`."""

    AB: Final = 256 + len(SPECIAL)

    def __init__(self, add_bos: bool = False) -> None:
        self.bos, self.add_bos = self.special("<s>"), add_bos

    def special(self, text: str) -> int:
        return 256 + SPECIAL.index(text)

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        assert not add_special, "BOS is the ledger's to place"
        parts = re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text) if parse_special else [text]
        tokens: list[int] = []
        for part in parts:
            if parse_special and part in SPECIAL:
                tokens.append(self.special(part))
                continue
            for piece in re.findall(b"ab|.", part.encode(), re.DOTALL):
                tokens.append(self.AB if piece == b"ab" else piece[0])
        return tokens

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b"ab" if token == self.AB else b""

    def is_eog(self, token: int) -> bool:
        return 256 <= token < self.AB and SPECIAL[token - 256] in EOG

    def text(self, tokens: Sequence[int]) -> str:
        """With special tokens written out."""
        return b"".join(SPECIAL[t - 256].encode() if 256 <= t < self.AB else self.piece(t) for t in tokens).decode(
            "utf-8", "replace"
        )
