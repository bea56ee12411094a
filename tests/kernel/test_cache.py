"""`%llama cache` and `%llama why`, in a real kernel over a store in a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernel.session import FORGET, Kernel

STORY = "The quick brown fox jumps over the lazy dog. " * 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "prefix"


@pytest.fixture(scope="module")
def shared(new_kernel: Callable[..., Kernel], store: Path) -> Kernel:
    """A kernel whose prefix states go to the folder `store`, which others may use as well."""
    kernel = new_kernel(IPYLLAMA_PREFIX_DIR=str(store))
    kernel.run("%load_ext ipyllama")
    return kernel


@pytest.fixture
def kernel(shared: Kernel, tiny: Callable[[str], Path]) -> Iterator[Kernel]:
    """The kernel, a tiny model answering, nothing kept and no conversation yet."""
    shared.run(f'%llama load "{tiny("llama")}" --threads 1\n%llama cache clear --yes\n{FORGET}')
    yield shared
    shared.run("%llama cache on\n%llama unload")


def blocks(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kv"))


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()[2:] if not line.startswith("(")]


def shown(kernel: Kernel, line: str) -> str:
    """What a line shows last."""
    bundles = kernel.run(line).bundles
    assert all({"text/plain", "text/html"} <= set(bundle) for bundle in bundles)
    return bundles[-1]["text/plain"]


def test_status_tells_what_is_where(kernel: Kernel, store: Path) -> None:
    kernel.run(f"%%llama -n 5\n{STORY}")
    text = shown(kernel, "%llama cache flush\n%llama cache")
    assert f"{store} (IPYLLAMA_PREFIX_DIR says so)" in text
    files = blocks(store)
    assert f"of 10 GiB, {len(files)} blocks" in text
    assert re.search(r"in RAM +\S+ [kM]?B of", text)
    assert text.startswith(shown(kernel, "%llama cache status"))
    assert text.endswith(shown(kernel, "%llama cache ls"))


def test_what_is_pinned_stays(kernel: Kernel, store: Path) -> None:
    kernel.run(f"%%llama --raw -n 5\n{STORY}")
    ((name, *_),) = rows(shown(kernel, "%llama cache flush\n%llama cache ls"))
    assert shown(kernel, f"%llama cache pin {name[:6]}") == (
        f"{name[:6]} pinned: no limit and no age deletes it; %llama cache unpin lets it go"
    )
    assert "yes" in rows(shown(kernel, "%llama cache ls"))[0]
    assert (
        kernel.fail(f"%llama cache rm {name}")
        .content["evalue"]
        .endswith(f"{name} is pinned: %llama cache unpin {name} first")
    )
    limit = kernel.fail("%llama cache limit 1.5k").content
    assert limit["ename"] == "StoreFull"
    before = blocks(store)
    assert kernel.fail("%llama cache pin zz").content["evalue"].startswith("no prefix is called 'zz'")
    shown(kernel, f"%llama cache unpin {name}")
    shown(kernel, "%llama cache limit 1.5k")
    assert len(blocks(store)) < len(before)
    shown(kernel, "%llama cache limit 10G")


def test_ls_shows_each_prefix_once_and_no_text_of_a_shared_store(kernel: Kernel) -> None:
    assert shown(kernel, "%llama cache ls").startswith("nothing is kept in")
    kernel.run(f"%%llama -n 5 --out first\n{STORY}")
    kernel.run("%%llama -n 5 --out second\nAnd then?")
    kernel.run(f"%%llama -n 5 --chat other --out third\n{STORY} Why?")
    text = shown(kernel, "%llama cache ls --sort size")
    assert len(rows(text)) == 2
    lengths = {int(row[1].replace(",", "")) for row in rows(text)}
    assert lengths == {kernel.value("len(second.ledger) - 1"), kernel.value("len(third.ledger) - 1")}
    assert "fox" not in text
    assert text.endswith("(text not shown: shared cache)")
    assert len(rows(shown(kernel, "%llama cache ls -n 1"))) == 1
    assert "nothing is kept of nobody" in shown(kernel, "%llama cache ls --model nobody")


def test_rm_deletes_by_short_name(kernel: Kernel, store: Path) -> None:
    kernel.run(f"%%llama -n 5\n{STORY}")
    kernel.run(f"%%llama -n 5 --chat other\n{STORY} Why?")
    kernel.run("%llama cache flush")
    names = [row[0] for row in rows(shown(kernel, "%llama cache ls"))]
    assert sorted(kernel.complete("%llama cache rm ")) == sorted(f"%llama cache rm {name}" for name in names)
    before = len(blocks(store))
    assert shown(kernel, f"%llama cache rm {names[0][:5]}").startswith("deleted 1 prefix: ")
    assert 0 < len(blocks(store)) < before
    assert [row[0] for row in rows(shown(kernel, "%llama cache ls"))] == names[1:]
    assert "deleted 0 prefixes" in shown(kernel, "%llama cache rm --older 1h")
    for line, message in [
        ("%llama cache rm zz", "no prefix is called 'zz'"),
        ("%llama cache rm", "needs the name of a prefix"),
    ]:
        assert message in kernel.fail(line).error
        assert len(kernel.fail(line).error.splitlines()) == 1


def test_limit_holds_at_once(kernel: Kernel, store: Path) -> None:
    kernel.run(f"%%llama -n 5\n{STORY}")
    kernel.run("%llama cache flush")
    assert shown(kernel, "%llama cache limit").startswith("10 GiB on disk, ")
    assert "1 KiB on disk, 2 MiB in RAM in this session; " in shown(kernel, "%llama cache limit 1K --ram 2M")
    assert blocks(store) == []
    assert shown(kernel, "%llama cache limit 10G") == "10 GiB on disk, 2 MiB in RAM in this session"
    assert "a size is a number of bytes" in kernel.fail("%llama cache limit much").error
    kernel.run("%llama cache limit --ram 1G")


def test_where_tells_how_to_move(kernel: Kernel, store: Path) -> None:
    text = shown(kernel, "%llama cache where")
    assert str(store) in text
    assert "IPYLLAMA_PREFIX_DIR" in text


def test_off_looks_up_and_saves_nothing(kernel: Kernel, store: Path) -> None:
    kernel.run("%llama cache off")
    kernel.run(f"%%llama -n 5 --out cold\n{STORY}")
    kernel.run("%%llama -n 5 --chat other\nSomething else.")
    kernel.run(f"%%llama -n 5 --chat third --out again\n{STORY}")
    kernel.run("%llama cache flush")
    assert kernel.usage("again")["restored"] == 0
    assert blocks(store) == []
    assert "off: nothing is looked up or saved" in shown(kernel, "%llama cache")
    kernel.run("%llama cache on")
    kernel.run(f"%%llama -n 5 --chat fourth --out again\n{STORY} On.")
    kernel.run("%llama cache flush")
    assert blocks(store) != []
    assert "off" not in shown(kernel, "%llama cache")


def test_verify_names_what_is_damaged(kernel: Kernel, store: Path) -> None:
    kernel.run(f"%%llama -n 5\n{STORY}")
    kernel.run("%llama cache flush")
    files = blocks(store)
    assert shown(kernel, "%llama cache verify") == f"{len(files)} blocks read: all sound"
    data = bytearray(files[0].read_bytes())
    data[-1] ^= 1
    files[0].write_bytes(data)
    text = shown(kernel, "%llama cache verify")
    assert f"{len(files) - 1} blocks sound, 1 damaged" in text
    assert f"{files[0].name}: its state is damaged" in text
    assert not files[0].exists()
    assert "1 block: " in shown(kernel, "%llama cache")  # named there from now on
    assert f"{files[0].name}: its state" in shown(kernel, "%llama cache")


def test_clear_says_first_what_it_would_delete(kernel: Kernel, store: Path) -> None:
    kernel.run(f"%%llama -n 5 --out first\n{STORY}")
    kernel.run("%llama cache flush")
    n = len(blocks(store))
    assert f"--yes would delete {n} blocks in {store} (" in shown(kernel, "%llama cache clear")
    assert len(blocks(store)) == n
    assert "2 would be that many bytes" in kernel.fail("%llama cache limit 2").error
    assert len(blocks(store)) == n
    assert shown(kernel, "%llama cache clear -y").startswith(f"deleted {n} blocks in {store} (")
    assert blocks(store) == []


def test_export_and_import_carry_prefixes_to_another_store(
    kernel: Kernel, new_kernel: Callable[..., Kernel], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    kernel.run(f"%%llama -n 5 --out first\n{STORY}")
    kernel.run("%%llama -n 5 --chat other\nSomething else.")
    bundle = tmp_path / "lesson.kv"
    assert "lesson.kv" in shown(kernel, f'%llama cache export "{bundle}" --cell 1 --chat default')
    other = new_kernel(IPYLLAMA_PREFIX_DIR=str(tmp_path / "elsewhere"))
    other.run(f'%load_ext ipyllama\n%llama load "{tiny("llama")}" --threads 1')
    assert "lesson.kv" in shown(other, f'%llama cache import "{bundle}"')
    assert len(rows(shown(other, "%llama cache ls"))) == 1
    other.run(f"%%llama -n 5 --out again\n{STORY} Once more.")
    usage = other.usage("again")
    assert usage["restored"] > 0
    assert "no such file" in other.fail(f'%llama cache import "{bundle}.nowhere"').error.lower()


def test_a_notebooks_own_store_shows_text(
    new_kernel: Callable[..., Kernel], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    kernel = new_kernel(IPYLLAMA_PREFIX_DIR="", JPY_SESSION_NAME=str(tmp_path / "my lesson.ipynb"))
    kernel.run(f'%load_ext ipyllama\n%llama load "{tiny("llama-bigram")}" --threads 1')
    kernel.run("%%llama --raw -n 5\nWhat does the fox say?")
    kernel.run("%llama cache flush")
    assert len(blocks(tmp_path / ".ipyllama" / "my lesson")) > 0
    text = shown(kernel, "%llama cache ls")
    assert "What does the fox say" in text
    assert "beside the notebook" in shown(kernel, "%llama cache")
    kernel.run(f'%llama load "{tiny("llama")}" --threads 1\n%llama unload tiny-llama-bigram')
    assert "(model not loaded)" in shown(kernel, "%llama cache ls")


def test_without_a_model_the_usual_store_is_shown(shared: Kernel, store: Path) -> None:
    shared.run("%llama cache clear --yes")
    assert str(store) in shown(shared, "%llama cache")
    assert "nothing is kept" in shown(shared, "%llama cache ls")
    assert "no model is loaded" in shared.fail("%llama cache export x.kv").error


def test_help_of_the_group_and_of_its_members(shared: Kernel) -> None:
    assert "%llama cache rm [ENTRY...]" in shared.run("%llama cache --help").printed
    assert "--older AGE" in shared.run("%llama help cache rm").printed
    assert "--older" not in shared.run("%llama cache ls --help").printed
    assert shared.run("%llama cache help").printed == shared.run("%llama cache --help").printed


def test_why_shows_each_turn_and_both_sides(kernel: Kernel) -> None:
    assert "there is no turn yet" in kernel.fail("%llama why").error
    kernel.run(f"%%llama -n 5 --system 'You are terse.' --out first\n{STORY}", "cell-1")
    kernel.run("%%llama -n 5 --out second\nAnd then?", "cell-2")
    result = kernel.run("%llama why")
    table, explanation = (bundle["text/plain"] for bundle in result.bundles)
    assert [row[-1] for row in rows(table)] == ["first use", "continued"]
    assert explanation.startswith("continued: ")
    kernel.run("%%llama -n 5 --system 'You are chatty.' --out third\nAnd now?", "cell-3")
    for line in ("%llama why", "%llama why 3", "%llama why cell-3", "%llama why --chat default"):
        table, explanation = (bundle["text/plain"] for bundle in kernel.run(line).bundles)
        assert rows(table)[-1][-1] == "system prompt changed"
        assert re.search(r"before .*\[-.*terse.*-\]", explanation)
        assert re.search(r"now .*\{\+.*chatty.*\+\}", explanation)
    assert kernel.run("%llama why 1").bundles[-1]["text/plain"].startswith("first use")
    assert kernel.complete("%llama why ") == ["%llama why 1", "%llama why 2", "%llama why 3"]
    assert "there are turns 1 to 3" in kernel.fail("%llama why 4").error
    assert "first use" in kernel.run("print(first.why)").printed


def test_why_numbers_turns_as_the_tree_does(kernel: Kernel) -> None:
    kernel.run("%%llama -n 3 --reset --name start\nHello", "cell-1")
    kernel.run("%%llama -n 3 --after start\nOne way", "cell-2")
    kernel.run("%%llama -n 3 --after start\nAnother way", "cell-3")
    table, _ = (bundle["text/plain"] for bundle in kernel.run("%llama why").bundles)
    assert [row[:-5] for row in rows(table)] == [["1", "Hello"], ["→", "3", "Another way"]]
    table, _ = (bundle["text/plain"] for bundle in kernel.run("%llama why 2").bundles)
    assert [row[:-5] for row in rows(table)] == [["1", "Hello"], ["→", "2", "One way"]]


def test_why_of_a_turn_of_an_earlier_kernel(
    new_kernel: Callable[..., Kernel], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    for code in ("%%llama -n 3\nHello", "%llama resume"):
        kernel = new_kernel(IPYLLAMA_PREFIX_DIR=str(tmp_path / "kept"))
        kernel.run(f'%load_ext ipyllama\n%llama load "{tiny("llama")}" --threads 1')
        kernel.run(code, "cell-1")
    kernel.run("%%llama -n 3\nAnd then?", "cell-2")
    table, explanation = (bundle["text/plain"] for bundle in kernel.run("%llama why 1").bundles)
    assert [row[-1] for row in rows(table)] == ["an earlier kernel's", "continued"]
    assert explanation == "an earlier kernel read it: why it cost that is not kept"


def test_why_of_a_raw_answer(kernel: Kernel) -> None:
    kernel.run(f"%%llama --raw -n 5\n{STORY}")
    kernel.run(f"%%llama --raw -n 5\n{STORY[:100]} but now something else {STORY[100:]}")
    (bundle,) = kernel.run("%llama why").bundles
    assert bundle["text/plain"].startswith("text changed: ")
    assert "{+" in bundle["text/plain"]
    kernel.run(f"%%llama --raw -n 5\n{STORY}")
    assert shown(kernel, "%llama why") == "replayed: nothing was read for it"


def test_why_of_a_model_that_is_gone_shows_no_text(kernel: Kernel, tiny: Callable[[str], Path]) -> None:
    kernel.run("%%llama -n 5 --system 'You are terse.'\nHello there?")
    kernel.run("%%llama -n 5 --system 'You are chatty.'\nHello there?")
    kernel.run(f'%llama load "{tiny("llama-bigram")}" --threads 1\n%llama unload tiny-llama')
    text = shown(kernel, "%llama why")
    assert text.startswith("system prompt changed: ")
    assert text.endswith("(text not shown: tiny-llama is not loaded)")  # another's vocabulary would show other words
