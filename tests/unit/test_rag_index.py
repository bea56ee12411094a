"""An index on disk: what is found, what an `add` costs, filters, bad input, and a process that is killed."""

import datetime
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ragwords import Words

from ipyllama.errors import BadOption, BadSource, DocumentWarning, MissingPackage, StoreError, UnknownIndex
from ipyllama.rag import Chunk, Hit, Index, Retriever, as_retriever
from ipyllama.rag.fuse import fuse
from ipyllama.rag.retrievers import found_by

DOCS = {
    "cats": "The cat sat on the mat. Cats purr when they are content.",
    "dogs": "A dog barks at the postman. Dogs fetch sticks.",
    "whales": "The blue whale is the largest animal. Whales sing to each other.",
}


@pytest.fixture
def words() -> Words:
    return Words()


@pytest.fixture
def index(tmp_path, words) -> Index:
    return Index.create("pets", DOCS, location=tmp_path / "rag", embed=words)


def test_all_modes_find_what_is_asked_for(index):
    for mode in ("vector", "text", "hybrid"):
        hits = index.search("whale animal", k=2, mode=mode)
        assert hits[0].chunk.source == "whales"
        assert len(hits) <= 2
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    best = index.search("whale animal")[0]
    assert (best.vector_rank, best.text_rank) == (1, 1)
    assert index.search("whale animal", mode="vector")[0].text_rank is None
    assert isinstance(index, Retriever)


def test_large_indexes_are_as_exact_as_small_ones(tmp_path, words):
    index = Index.create("many", location=tmp_path, embed=words)
    documents = {f"d{i}": f"number {i} and {i * 7919 % 1000} of {i % 13}" for i in range(1500)}
    for part in (list(documents.items())[:1200], list(documents.items())[1200:]):
        index.add(part)
    index.remove("d77")
    del documents["d77"]
    vectors = words(list(documents.values()))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = list(documents)
    for question in ("number 7 of 3", "and 919", documents["d1400"]):
        asked = words([question])[0]
        expected = vectors @ (asked / np.linalg.norm(asked))
        for hit in (hits := index.search(question, 20, "vector")):
            assert hit.score == pytest.approx(expected[names.index(hit.chunk.source)], abs=1e-4)
        assert [hit.score for hit in hits] == pytest.approx(sorted(expected, reverse=True)[:20], abs=1e-4)


def test_stems_and_accents_make_no_difference_to_words(index):
    index.add([("cafe", "Un café au lait, s'il vous plaît.")])
    assert index.search("barking", mode="text")[0].chunk.source == "dogs"
    assert index.search("cafe", mode="text")[0].chunk.source == "cafe"
    assert index.search("zebra", mode="text") == []


def test_words_are_found_where_no_spaces_part_them(index):
    index.add(
        [
            ("library", "天文台的图书馆每天早上九点开门，晚上八点关门。每人最多可以借五本书，借期为三十天。" * 2),
            ("station", "東京駅で新幹線のチケットを買いました。猫がいます。"),
            ("thai", "หอสมุดเปิดเวลาเก้าโมงเช้า"),
            ("korean", "도서관은 아홉시에 문을 엽니다"),
        ]
    )
    for query, source in {
        "图书馆": "library",
        "图书馆几点开门？": "library",
        "新幹線のチケット": "station",
        "猫": "station",
        "หอสมุด": "thai",
        "도서관": "korean",
    }.items():
        hits = index.search(query, mode="text")
        assert [hit.chunk.source for hit in hits][:1] == [source], query
    assert "图书馆每天" in index.search("图书馆", k=1, mode="text")[0].chunk.text  # what is shown is as it was
    assert index.search("whale 鯨", mode="text")[0].chunk.source == "whales"
    assert index.search("馆书图", mode="text") == []


@pytest.mark.parametrize("query", ["'", '"', "a AND (b", "*", "id:*", "\\", "\0", "';drop", "whale\ud800", "漢"])
def test_any_text_can_be_asked(index, query):
    for mode in ("vector", "text", "hybrid"):
        index.search(query, mode=mode)
    assert len(index) == 3


def test_bad_questions_are_refused(index):
    for bad in ({"query": " "}, {"query": 3}, {"query": "x", "k": 0}, {"query": "x", "mode": "fuzzy"}):
        with pytest.raises(BadOption):
            index.search(**bad)


def test_chunks_say_where_they_are_from(home, words):
    (home / "a.md").write_text("# Top\n\nintro text\n\n## Sub\n\nbody text\n")
    index = Index.create("docs", "a.md", embed=words)
    hit = index.search("body", k=1)[0]
    assert (hit.chunk.source, hit.chunk.title, hit.chunk.text) == ("a.md", "Top > Sub", "body text")
    assert (home / "a.md").read_text()[hit.chunk.start :].startswith("body text")
    assert "Top > Sub\nbody text" in words.asked


# -- adding -------------------------------------------------------------------------------------------------


def test_an_unchanged_document_costs_nothing(home, words):
    (home / "docs").mkdir()
    for name in "abc":
        (home / f"docs/{name}.txt").write_text(f"text of {name}")
    index = Index.create("docs", "docs", embed=words)
    asked = len(words.asked)
    os.utime(home / "docs/a.txt", (1, 1))  # touched, not changed
    again = index.add("docs")
    assert (again.unchanged, again.embedded, len(words.asked)) == (3, 0, asked)
    assert (index.add("docs").unchanged, index.sources()) == (3, {f"docs/{name}.txt": 1 for name in "abc"})


def test_of_a_changed_document_only_what_changed_is_embedded(home, words):
    paragraphs = [f"paragraph {i} " + "lorem ipsum dolor " * 12 for i in range(20)]
    (home / "a.txt").write_text("\n\n".join(paragraphs))
    index = Index.create("docs", "a.txt", embed=words, chunk_tokens=64, overlap=0)
    before = {hit.chunk.id: hit.chunk for hit in index.search("paragraph", k=100, mode="vector")}
    words.asked.clear()
    paragraphs[3] = "another one " + "sit amet " * 20
    (home / "a.txt").write_text("\n\n".join(paragraphs))
    added = index.add("a.txt")
    assert (added.changed, added.embedded) == (1, 1)
    assert len(words.asked) == 1
    after = {hit.chunk.id: hit.chunk for hit in index.search("paragraph", k=100, mode="vector")}
    assert len(after) == len(before) == len(index)
    assert len(after.keys() - before.keys()) == 1
    text = (home / "a.txt").read_text()
    assert all(text[chunk.start :].startswith(chunk.text) for chunk in after.values())
    assert not any("paragraph 3 " in chunk.text for chunk in after.values())


def test_a_change_that_was_not_finished_is_taken_back(home, words):
    def numbered(name: str, n: int) -> str:
        return " ".join(f"{name}{i}" for i in range(n))

    class Failing(Words):
        def __call__(self, texts: list[str]):
            if self.asked:
                raise ConnectionError("the service is down")  # no fault of the file
            return super().__call__(texts)

    (home / "a.txt").write_text(numbered("first", 200))
    index = Index.create("docs", "a.txt", embed=words, chunk_tokens=64, overlap=0)
    before = {hit.chunk.id for hit in index.search("first", k=900, mode="vector")}
    (home / "a.txt").write_text(numbered("second", 9000))
    with pytest.raises(ConnectionError):
        Index.open("docs", embed=Failing()).add("a.txt")
    assert len(index) > len(before)
    (home / "a.txt").write_text(numbered("first", 200))
    assert index.add("a.txt").embedded == 0
    assert {hit.chunk.id for hit in index.search("first", k=900, mode="vector")} == before


def test_what_left_its_folder_leaves_the_index(home, words):
    (home / "docs").mkdir()
    for name in "ab":
        (home / f"docs/{name}.txt").write_text(f"text of {name}")
    index = Index.create("docs", ["docs", ("note", "of its own")], embed=words)
    (home / "docs/a.txt").unlink()
    assert index.add("docs").removed == 1
    assert sorted(index.sources()) == ["docs/b.txt", "note"]
    (home / "docs/b.txt").write_bytes(b"\0\0binary")
    with pytest.warns(DocumentWarning, match="a binary file"):
        index.add("docs")
    assert sorted(index.sources()) == ["note"]
    assert len(index) == 1


def test_documents_are_removed_by_name_and_by_folder(home, words):
    (home / "docs/sub").mkdir(parents=True)
    for name in ("docs/a.txt", "docs/sub/b.txt", "c.txt"):
        (home / name).write_text(f"text of {name}")
    index = Index.create("docs", ["docs", "c.txt"], embed=words)
    assert index.remove("docs/sub/") == 1
    assert index.remove("docs") == 1
    assert list(index.sources()) == ["c.txt"]
    assert [hit.chunk.source for hit in index.search("text of", k=9)] == ["c.txt"]
    with pytest.raises(BadOption, match="no document 'docs'"):
        index.remove("docs")
    for nothing in ("", "/", "//"):  # which is not the beginning of every name
        with pytest.raises(BadOption, match="no document"):
            index.remove(nothing)
    index.add(["docs", "docs/*.txt"])
    assert index.remove("./docs/sub") == index.remove(home / "docs/a.txt") == index.remove("./c.txt") == 1


def test_two_texts_of_one_name_are_told(home, words):
    (home / "a.txt").write_text("a file")
    index = Index.create("docs", [("one", "text"), ("one", "text"), "a.txt", "*.txt"], embed=words)
    assert index.problems == {}
    for _ in range(2):
        with pytest.warns(DocumentWarning, match="two documents have this name"):
            added = index.add([("one", "text"), ("one", "another"), ("two", "text"), ("two", "text", {"year": 1})])
        assert list(added.problems) == ["one", "two"]
    assert index.sources() == {"a.txt": 1, "one": 1, "two": 1}
    with pytest.warns(DocumentWarning):
        assert str(index.add("nowhere")) == "documents: none added; 0 chunks embedded; 1 document with problems"


def test_what_can_be_no_document_makes_no_index(home, words):
    for bad in ([3], [("a", "text"), 3]):
        with pytest.raises(BadSource):
            Index.create("bad", bad, embed=words)
        assert Index.names() == []
    Index.create("bad", embed=words)
    with pytest.raises(BadSource):
        Index.create("bad", [3], embed=words)
    assert Index.names() == ["bad"]  # it was there before


def test_a_warning_points_at_the_line_of_who_gave_the_documents(home, words):
    with pytest.warns(DocumentWarning) as created:
        index = Index.create("docs", "missing.md", embed=words)
    with pytest.warns(DocumentWarning) as added:
        index.add("missing.md")
    assert [warning.filename for warning in (*created, *added)] == [__file__, __file__]


def test_bad_files_are_told_and_the_rest_is_indexed(home, words):
    (home / "docs/empty").mkdir(parents=True)
    (home / "docs/good.txt").write_text("good text")
    (home / "docs/broken.pdf").write_bytes(b"%PDF-1.4 broken")
    (home / "docs/image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (home / "docs/latin.txt").write_bytes("Größe".encode("cp1252"))
    (home / "docs/nothing.txt").write_bytes(b"")
    with (home / "docs/line.json").open("wb") as file:
        file.truncate(50_000_000)
    with pytest.warns(DocumentWarning, match="index.problems has all"):
        index = Index.create("docs", ["docs", "docs/empty", "missing.md"], embed=words)
    assert sorted(index.sources()) == ["docs/good.txt", "docs/latin.txt"]
    assert {name: why.split(":")[0] for name, why in index.problems.items()} == {
        "docs/broken.pdf": "the PDF cannot be read",
        "docs/empty": "an empty folder",
        "docs/image.png": "a binary file, not text",
        "docs/latin.txt": "is not UTF-8",
        "docs/line.json": "50 MB, over the limit of 34 MB",
        "docs/nothing.txt": "there is no text in it",
        "missing.md": "there is no such file or folder. To index a text itself give (name, text)",
    }
    with pytest.warns(DocumentWarning):
        index.add("docs")  # what is odd is told each time
    assert "docs/latin.txt" in index.problems


def test_metadata_filters(tmp_path, words):
    facts = [{"year": 2000 + i, "lang": ["en", "de"][i % 2], "o'k": True} for i in range(6)]
    documents = [(f"d{i}", "same words here", each) for i, each in enumerate(facts)]
    documents.append(("x", "same words here", {"year": "unknown", "none": None}))
    index = Index.create("m", documents, location=tmp_path, embed=words)

    def found(**where) -> set[str]:
        hits = [index.search("same words", k=20, mode=mode, where=where) for mode in ("vector", "text", "hybrid")]
        names = [{hit.chunk.source for hit in each} for each in hits]
        assert names[0] == names[1] == names[2]
        return names[0]

    assert found(year=2003) == {"d3"}
    assert found(year={">=": 2002, "<": 2004}) == {"d2", "d3"}
    assert found(year=np.int64(2003)) == found(year=np.float32(2003)) == {"d3"}
    assert found(year=[2001, "unknown"]) == {"d1", "x"}
    assert found(lang="de", year={">": 2001}) == {"d3", "d5"}
    assert found(lang={"!=": "de"}) == {"d0", "d2", "d4", "x"}
    assert found(**{"o'k": True}, source=["d1", "x"]) == {"d1"}
    assert found(lang="' OR 1=1 --") == set()
    assert found(year=True) == set()
    assert index.keys() == ["lang", "o'k", "year"]
    assert index.search("same", where={"year": 2003})[0].chunk.metadata == facts[3]
    refused = [({"yeer": 1}, "did you mean 'year'"), ({"year": {"~": 1}}, "compares by"), ({"year": None}, "must be")]
    refused += [({"year": {"<": number}}, "must be") for number in (float("inf"), float("nan"), 10**400, [1])]
    for bad, match in refused:
        with pytest.raises(BadOption, match=match):
            index.search("same", where=bad)


def test_metadata_of_all_kinds_can_be_kept_and_asked_for(tmp_path, words):
    day = datetime.date(2024, 5, 1)
    facts = {"ns": 1_700_000_000_000_000_001, "huge": 10**400, "day": day, "\ud800": "\ud800x", "half": "\ud800x"}
    index = Index.create("m", [("a", "text", facts)], location=tmp_path, embed=words)
    asked = [{"ns": {">": 1_600_000_000_000_000_001}}, {"day": day}, {"day": {"<": datetime.date(2025, 1, 1)}}]
    for where in [*asked, {"half": "\ud800x"}, {"?": "?x"}, {"ns": {"!=": 3}}]:
        assert len(index.search("text", where=where)) == 1
    assert index.search("text", where={"source": "\ud800"}) == []
    assert index.search("text")[0].chunk.metadata["huge"] == 10**400


# -- names and settings -------------------------------------------------------------------------------------


def test_an_index_is_found_again(index, words, tmp_path):
    root = tmp_path / "rag"
    assert Index.names(root) == ["pets"]
    again = Index.open("pets", root, embed=words)
    assert again.search("whale")[0] == index.search("whale")[0]
    assert oct((root / "pets").stat().st_mode)[-3:] == "700"
    assert (root / "pets/.gitignore").read_text() == "*\n"
    with pytest.raises(UnknownIndex, match="did you mean 'pets'"):
        Index.open("pet", root)
    with pytest.raises(BadOption, match="made with the callable Words"):
        Index.open("pets", root)
    again.drop()
    assert (Index.names(root), (root / "pets").exists()) == ([], False)


def test_created_again_it_is_brought_up_to_date(index, words, tmp_path):
    asked = len(words.asked)
    again = Index.create("pets", {**DOCS, "birds": "A bird sings."}, location=tmp_path / "rag", embed=words)
    assert (len(again), len(words.asked) - asked) == (4, 1)
    assert len(index) == 4  # seen by who had it open
    with pytest.raises(BadOption, match="chunk_tokens=256, not 100"):
        Index.create("pets", DOCS, location=tmp_path / "rag", embed=words, chunk_tokens=100)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a\0b", 3])
def test_bad_names_are_refused(name, tmp_path):
    with pytest.raises(BadOption, match="an index is named by"):
        Index.create(name, location=tmp_path, embed=Words())


def test_it_lies_beside_the_notebook(home, words, monkeypatch):
    monkeypatch.delenv("IPYLLAMA_PREFIX_DIR", raising=False)
    monkeypatch.setenv("JPY_SESSION_NAME", str(home / "My notes.ipynb"))
    index = Index.create("docs", DOCS, embed=words)
    assert index.folder == home / ".ipyllama/My notes/rag/docs"
    assert Index.names() == ["docs"]


def test_a_damaged_index_says_so(index, words, tmp_path):
    for file in (tmp_path / "rag/pets/chunks.lance").rglob("*.lance"):
        file.write_bytes(b"damage" * 10)
    with pytest.raises(StoreError, match="cannot be used") as error:
        Index.open("pets", tmp_path / "rag", embed=words).search("whale")
    assert "delete that folder" in str(error.value)
    assert ".rs" not in str(error.value)
    (tmp_path / "rag/pets/index.json").write_text("{}")
    with pytest.raises(StoreError, match="another version"):
        Index.open("pets", tmp_path / "rag", embed=words)


def test_an_index_that_is_gone_says_so(index, words, tmp_path):
    Index.open("pets", tmp_path / "rag", embed=words).drop()
    for use in (lambda: index.search("whale"), lambda: index.add({"a": "text"}), lambda: repr(index)):
        with pytest.raises(StoreError, match="there no more"):
            use()


def test_where_no_index_can_be_is_said(tmp_path, words):
    Index.create("table", DOCS, location=tmp_path, embed=words)
    with pytest.raises(UnknownIndex, match=r"mean 'table'\? Index"):
        Index.open("tabel", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="location=FOLDER"):
        Index.create("x", DOCS, location=tmp_path / "file", embed=words)
    with pytest.raises(BadOption, match="location"):
        Index.create("x", DOCS, location=3, embed=words)


@pytest.mark.parametrize(
    ("embed", "why"),
    [
        (lambda texts: [1.0, 2.0], "a row for each"),
        (lambda texts: [[float("nan")]] * len(texts), "not finite"),
        (lambda texts: [[1e300]] * len(texts), "not finite"),
        (lambda texts: ["a"] * len(texts), "an array of numbers"),
        (lambda texts: ([1.0] for text in texts), "an array of numbers"),
        (lambda texts: [[1.0], [1.0, 2.0]], "an array of numbers"),
        (lambda texts: [[1j]] * len(texts), "an array of numbers"),
        (3, "embed must be"),
    ],
)
def test_bad_embeddings_are_refused(embed, why, tmp_path):
    with pytest.raises(BadOption, match=why):
        Index.create("x", DOCS, location=tmp_path, embed=embed)
    assert Index.names(tmp_path) == []


def test_vectors_of_another_length_are_refused(index, words, tmp_path):
    for use in (lambda index: index.search("whale"), lambda index: index.add({"a": "text"})):
        with pytest.raises(BadOption, match="rows of 5 numbers"):
            use(Index.open("pets", tmp_path / "rag", embed=lambda texts: np.ones((len(texts), 5))))
    assert len(index) == 3


@pytest.mark.parametrize("scores", [None, [1], ["a"] * 2, [[1], [2, 3]], [float("nan")] * 2])
def test_bad_rankings_are_refused(scores, tmp_path, words):
    index = Index.create("x", {"a": "one", "b": "two"}, location=tmp_path, embed=words, rerank=lambda q, t: scores)
    with pytest.raises(BadOption, match="a number for each of 2 texts"):
        index.search("one")


def test_a_reranker_has_the_last_word(tmp_path, words):
    def shortest(query: str, texts: list[str]) -> list[float]:
        return [-len(text) for text in texts]

    index = Index.create("pets", DOCS, location=tmp_path, embed=words, rerank=shortest)
    hits = index.search("whale animal", k=2)
    assert [hit.chunk.source for hit in hits] == ["dogs", "cats"]
    assert hits[0].score == -len(DOCS["dogs"])
    with pytest.raises(BadOption, match="ranks with the callable"):
        Index.open("pets", tmp_path, embed=words)
    assert Index.open("pets", tmp_path, embed=words, rerank=shortest).search("whale animal", k=2) == hits


def test_what_a_killed_process_left_is_no_index(tmp_path, words):
    (tmp_path / "pets/chunks.lance/data").mkdir(parents=True)
    (tmp_path / "pets/chunks.lance/data/half").write_bytes(b"half")
    assert Index.names(tmp_path) == []
    assert len(Index.create("pets", DOCS, location=tmp_path, embed=words)) == 3


def test_a_missing_package_is_named(monkeypatch, tmp_path, words):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(MissingPackage, match=r"pip install 'ipyllama\[rag\]'"):
        Index.create("x", location=tmp_path, embed=words)


def test_progress_counts_bytes(tmp_path, words):
    seen = []
    Index.create("x", DOCS, location=tmp_path, embed=words, progress=lambda *report: seen.append(report))
    total = sum(map(len, DOCS.values()))
    assert seen[-1] == (total, total, "indexing x")
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)


def test_documents_can_come_one_by_one(tmp_path, words):
    index = Index.create("x", iter([("a", "one"), ("b", "two")]), location=tmp_path, embed=words)
    assert len(index) == 2
    with pytest.raises(BadSource):
        index.add([("c", "three"), 4])


def test_one_process_writes_at_a_time(index, words):
    from filelock import FileLock

    from ipyllama.rag import places

    with (
        FileLock(index.folder / ".lock"),
        pytest.raises(StoreError, match="another process writes"),
        places.alone(index.folder, 0.1),
    ):
        pass


# -- killed -------------------------------------------------------------------------------------------------

BUILD = """
import sys, time
from ragwords import Words
from ipyllama.rag import Index
class Slow(Words):
    def __call__(self, texts):
        time.sleep(0.02)
        print(len(texts), flush=True)
        return super().__call__(texts)
documents = [(f"d{i}", f"document {i} " + " ".join(f"w{i}x{j}" for j in range(300))) for i in range(200)]
Slow.__qualname__ = "Words"
print(len(Index.create("big", documents, location=sys.argv[1], embed=Slow(), chunk_tokens=64, overlap=0)))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", BUILD, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_killed_index_goes_on_where_it_was(tmp_path):
    with start(tmp_path / "whole") as process:
        *embedded, total = map(int, process.communicate()[0].split())
    assert sum(embedded) == total + 1  # one to see the number of dimensions
    again = 0
    for batches in (4, 9):
        with start(tmp_path / "killed") as process:
            for _ in range(batches):
                again += int(process.stdout.readline())
            time.sleep(0.03)
            process.send_signal(signal.SIGKILL)
    with start(tmp_path / "killed") as process:
        *embedded, n = map(int, process.communicate()[0].split())
    assert n == total
    assert sum(embedded) + again <= total + 3 * 128 + 3
    whole, killed = (Index.open("big", tmp_path / name, embed=Words()) for name in ("whole", "killed"))
    assert whole.sources() == killed.sources()
    for index in (whole, killed):
        assert {hit.chunk.id for hit in index.search("document 7", 1000, "vector")} <= {
            hit.chunk.id for hit in whole.search("document 7", 1000, "vector")
        }


# -- others -------------------------------------------------------------------------------------------------


def test_ranks_are_fused():
    chunks = [Chunk(str(i), f"t{i}", "s") for i in range(3)]
    hits = fuse([(chunks[0], 0.9), (chunks[1], 0.8)], [(chunks[1], 7.0), (chunks[2], 3.0)], 0.5)
    assert [hit.chunk.id for hit in hits] == ["1", "0", "2"]
    assert [(hit.vector_rank, hit.text_rank) for hit in hits] == [(2, 1), (1, None), (None, 2)]
    assert [hit.chunk.id for hit in fuse([(chunks[0], 0.9)], [(chunks[1], 7.0)], 0.0)] == ["0", "1"]


def test_other_retrievers_are_taken():
    found = [("b.md", "two"), ("c", "three", {"p": 1}), "four"]
    hits = as_retriever(lambda query: [f"about {query}", *found]).search("x", 3)
    said = [(hit.chunk.source, hit.chunk.text) for hit in hits]
    assert said == [("text 1", "about x"), ("b.md", "two"), ("c", "three")]
    assert hits[2].chunk.metadata == {"p": 1}
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    known = Hit(Chunk("1", "t", "s"), 0.5)
    assert as_retriever(lambda query: [known, known.chunk]).search("x") == [known, Hit(known.chunk, 0.5)]
    for bad in (3, None):
        with pytest.raises(BadOption):
            as_retriever(bad)
    for bad in (lambda query: "text", lambda query: [3], lambda query: None):
        with pytest.raises(BadOption):
            as_retriever(bad).search("x")


class Finds:
    """A retriever of somebody's own, that gives this."""

    def __init__(self, found: object) -> None:
        self.found = found

    def search(self, query: str, k: int = 4):
        return self.found


def test_what_a_retriever_gives_is_checked(index):
    known = Hit(Chunk("1", "t", "s"), 0.5)
    assert found_by(Finds(iter([known] * 9)), "x", 2) == [known, known]
    assert found_by(Finds(["one", ("b.md", "two")]), "x", 4)[1].chunk.source == "b.md"
    assert found_by(lambda query: [query], "x", 4)[0].chunk.text == "x"
    assert found_by(Finds([Hit(known.chunk, np.float32(0.5))]), "x", 4) == [known]
    hit_of = lambda **changes: Hit(replace(known.chunk, **changes), 0.5)  # noqa: E731
    odd = [None, 3, "text", {"a": "b"}, [None], [hit_of(text=3)], [hit_of(source=None)], [hit_of(start="")]]
    for found in [*odd, [Hit("t", 1.0)], [Hit(known.chunk, None)], [Hit(known.chunk, "high")]]:
        for retriever in (Finds(found), lambda query, found=found: found):
            with pytest.raises(BadOption):
                found_by(retriever, "x", 4)


def test_options_of_a_search_are_checked(index):
    assert found_by(index, "whale", 1, {"where": {"source": "cats"}})[0].chunk.source == "cats"
    for retriever, options in [(index, {"fuzzy": 1}), (Finds([]), {"mode": "text"}), (list, {"mode": 1}), (index, "x")]:
        with pytest.raises(BadOption, match="search"):
            found_by(retriever, "whale", 1, options)


def test_evaluation(index):
    pairs = [("whale", "whales"), ("barks", ["dogs", "cats"]), ("cat mat purr", "dogs")]
    result = index.evaluate(pairs, k=2)
    assert (result.n_questions, result.k, result.name) == (3, 2, "pets")
    for found in result.found:
        assert found.recall[0] == pytest.approx(2 / 3)
        assert found.recall == tuple(sorted(found.recall))
        assert 2 / 3 <= found.mrr <= 5 / 6
        assert 0 < found.seconds <= found.slowest
    assert result["text"].recall == pytest.approx((2 / 3, 2 / 3))
    assert ("cat mat purr", "dogs") in result.missed or result["hybrid"].recall[1] == 1
    assert "recall@1" in str(result)
    assert index.evaluate({"whale": Path("whales")}, k=2).found[0].recall[0] == 1
    refused = [([], "no pair"), ([("q", "lions")], "called lions"), ([3], "a pair is"), ([("q", [])], "a pair is")]
    for bad, match in [*refused, (None, "pairs are")]:
        with pytest.raises(BadOption, match=match):
            index.evaluate(bad)


def test_no_warning_where_all_is_well(tmp_path, words):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Index.create("x", DOCS, location=tmp_path, embed=words).problems == {}
