"""Tab on the lines of the magics: the pure function, and inside a real IPython completer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from ipyllama.magics.complete import complete, make_matcher, word_before


def models() -> list[str]:
    return ["smollm2", "my model.gguf", "hf:a/b.gguf"]


def chats() -> list[str]:
    return ["main", "review"]


NAMES = {
    "models": models,
    "chats": chats,
    "entries": lambda: ["3f2a91c0", "91c03f2a"],
    "turns": lambda: ["1", "2"],
    "bundles": lambda: ["lesson.kv"],
    "indexes": lambda: ["handbook", "faq"],
    "ways": lambda: ("error", "drop-oldest", "shift", "summarise-by"),
}
TALK = ["chat", "tree", "goto", "rm", "rename", "undo", "history", "copy", "export", "resume"]
LOOK = ["tokens", "branch", "sample"]
LAST = [*LOOK, "index", "search", "help"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "%llama ",
            [
                "load",
                "unload",
                "use",
                "models",
                "info",
                "status",
                "kv",
                "reset",
                *TALK,
                "cache",
                "why",
                *LAST,
            ],
        ),
        ("%llama index ", ["handbook", "faq"]),
        ("%llama index handbook --", ["--embed", "--remove", "--drop", "--help"]),
        ("%llama search f", ["faq"]),
        ("%llama search faq --mode ", ["hybrid", "vector", "text"]),
        ("%%llama --rag ", ["handbook", "faq"]),
        ("%%llama --mode t", ["text"]),
        ("%llama tokens ", ["1", "2"]),
        ("%llama branch ", ["1", "2"]),
        ("%llama branch 1 0 x --", ["--name", "--max-tokens", "--chat", "--help"]),
        ("%llama sample --t", ["--turn", "--temperature", "--top-k", "--top-p"]),
        ("%llama sample --turn ", ["1", "2"]),
        ("%%llama --show ", ["tokens"]),
        ("%%llama --lo", ["--logit-bias", "--logprobs"]),
        ("%llama u", ["unload", "use", "undo"]),
        ("    %llama re", ["reset", "rename", "resume"]),
        ("%llama load ", ["smollm2", '"my model.gguf"', "hf:a/b.gguf"]),
        ("%llama load hf:a", ["hf:a/b.gguf"]),
        ("%llama load my", ['"my model.gguf"']),
        ('%llama load "my mo', ['"my model.gguf"']),
        ("%llama unload s", ["smollm2"]),
        ("%llama use s", ["smollm2"]),
        ("%llama load smollm2 ", ["--n-ctx", "--threads", "--help"]),
        ("%llama load smollm2 --n-ctx 5 --", ["--threads", "--help"]),
        ("%llama load --n-ctx 5 s", ["smollm2"]),
        ("%llama load --n-ctx ", []),
        ("%llama models s", []),
        ("%llama reset --chat ", ["main", "review"]),
        ("%llama nonsense ", []),
        ("%llama cache e", ["export"]),
        ("%llama cache o", ["off", "on"]),
        ("%llama cache nonsense ", []),
        ("%llama cache --", ["--help"]),
        ("%llama cache ls ", ["--model", "--sort", "--number", "--help"]),
        ("%llama cache ls --sort ", ["age", "size", "saved"]),
        ("%llama cache ls --sort=s", ["size", "saved"]),
        ("%llama cache ls -m s", ["smollm2"]),
        ("%llama cache rm ", ["3f2a91c0", "91c03f2a"]),
        ("%llama cache rm 3f2a91c0 ", ["91c03f2a"]),
        ("%llama cache rm --older ", []),
        ("%llama cache rm --o", ["--older"]),
        ("%llama cache export x --cell ", ["1", "2"]),
        ("%llama cache import ", ["lesson.kv"]),
        ("%llama why ", ["1", "2"]),
        ("%llama why --chat ", ["main", "review"]),
        ("%llama help c", ["chat", "copy", "cache"]),
        ("%llama help cache r", ["rm"]),
        ("%llama help load ", []),
        ("%%llama --t", ["--think", "--temperature", "--top-p", "--top-k", "--typical-p"]),
        ("%%llama --temperature 1 --t", ["--think", "--top-p", "--top-k", "--typical-p"]),
        ("%%llama -t 1 --t", ["--think", "--top-p", "--top-k", "--typical-p"]),
        ("%%llama --stop a --st", ["--stop"]),
        ("%%llama --model s", ["smollm2"]),
        ("%%llama -m s", ["smollm2"]),
        ("%%llama --model=s", ["smollm2"]),
        ("%%llama --chat r", ["review"]),
        ("%%llama --reuse ", ["exact", "token", "fused"]),
        ("%%llama --after ", ["1", "2"]),
        ("%%llama --on-full s", ["shift", "summarise-by"]),
        ("%llama goto ", ["1", "2"]),
        ("%llama rm 1", ["1"]),
        ("%llama rename ", ["1", "2"]),
        ("%llama chat r", ["review"]),
        ("%llama chat review --", ["--cells", "--help"]),
        ("%llama tree --chat r", ["review"]),
        ("%llama resume --", ["--chat", "--help"]),
        ("%%llama --system ", []),
        ('%%llama --system "be --', []),
        ("%%llama", []),
        ("%llamas ", []),
        ("x = %llama ", []),
        ("  %%llama --t", []),
        ("tell me of %llama lo", []),
    ],
)
def test_what_tab_offers(line: str, found: list[str]) -> None:
    assert complete(line, len(line), NAMES) == found


def test_only_what_stands_before_the_cursor_counts() -> None:
    assert complete("%llama lo smollm2", len("%llama lo"), NAMES) == ["load"]


@pytest.mark.parametrize(
    ("line", "word"),
    [("%llama lo", "lo"), ("%llama load ", ""), ('a "b c', '"b c'), ("--model=hf:a", "hf:a"), ("", "")],
)
def test_the_word_that_is_replaced(line: str, word: str) -> None:
    assert word_before(line, len(line)) == word


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    shell.Completer.custom_matchers.append(make_matcher(NAMES))
    yield shell
    shell.Completer.custom_matchers.pop()
    InteractiveShell.clear_instance()


def completions(shell: InteractiveShell, cell: str) -> list[str]:
    """The cell as it would read after each choice."""
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        return [cell[: c.start] + c.text + cell[c.end :] for c in shell.Completer.completions(cell, len(cell))]


def test_in_ipython_only_our_words_are_offered(shell: InteractiveShell) -> None:
    assert completions(shell, "%llama lo") == ["%llama load"]
    assert completions(shell, "x = 1\n%llama load hf:a/") == ["x = 1\n%llama load hf:a/b.gguf"]
    assert completions(shell, '%llama load "my m') == ['%llama load "my model.gguf"']
    assert completions(shell, "%%llama --model=sm") == ["%%llama --model=smollm2"]
    assert completions(shell, "%%llama --top") == ["%%llama --top-p", "%%llama --top-k"]


def test_in_ipython_a_cell_body_is_left_alone(shell: InteractiveShell) -> None:
    assert "%%llama\n%llama load" not in completions(shell, "%%llama\n%llama lo")
    assert "%%time\n%%llama --top-p" not in completions(shell, "%%time\n%%llama --top")
