"""What every peer is asked: prompts as token ids, the same for all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from ipyllama.llm import LLM

PREFIX: Final = 2000
TAIL: Final = 48
BRANCHES: Final = 10
REPLY: Final = 16
N_CTX: Final = 4096


@dataclass(frozen=True, slots=True)
class Work:
    """`prompts` begin with the same PREFIX tokens and end with a question of TAIL tokens, each with another one."""

    model: str
    n_threads: int
    n_ctx: int
    n_reply: int
    prompts: list[list[int]]
    texts: list[str]
    """the same prompts, for who takes texts only"""
    sha256: str
    """of the model's file"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_work(llm: LLM, sha256: str) -> Work:
    """Raises RuntimeError where a prompt's text is not made of the prompt's tokens."""
    story = "In the morning the light was slow to come over the hills, and the river was quiet. " * 150
    prefix = llm.tokenize(story)[:PREFIX]
    prompts, texts = [], []
    for number in range(BRANCHES + 1):
        asked = f"\n\nQuestion {chr(65 + number)}: {'and what did the old ferryman say about it then, ' * 9}"
        prompts.append(prefix + llm.tokenize(asked, add_special=False)[:TAIL])
        texts.append(llm.detokenize(prompts[-1]))
        if llm.tokenize(texts[-1]) != prompts[-1] or len(prompts[-1]) != PREFIX + TAIL:
            raise RuntimeError("the text of a prompt is not made of its tokens")
    return Work(str(llm.path), llm.n_threads, N_CTX, REPLY, prompts, texts, sha256)
