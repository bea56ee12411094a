"""minilm and the index over it: vectors that mean something, kept, and the same again."""

import numpy as np
import pytest
from native.bert import Bert, cosine

import ipyllama
from ipyllama import Layout
from ipyllama.errors import BadOption, PromptTooLong, WrongModel
from ipyllama.rag import Index, ask
from ipyllama.rag.embedding import Embedding, Memo, ends_batch

TEXTS = ["How do I parse JSON?", "Reading a JSON document in Python", "The cat sat on the mat"]
DOCS = {
    "json": "The json module turns text into lists and dictionaries: json.loads(text).",
    "garden": "Water tomatoes in the morning, and shade young plants from the sun.",
    "tax": "Income is reported once a year; what is paid too much comes back.",
}


@pytest.fixture(scope="module")
def minilm():
    with ipyllama.load("minilm", n_threads=1, cache=None) as llm:
        yield llm


def test_minilm_is_what_the_paper_computes(minilm):
    oracle = Bert(minilm.file[0])
    (separator,) = minilm.tokenize("[SEP]", add_special=False, parse_special=True)
    for text, vector in zip(TEXTS, minilm.embed(TEXTS), strict=True):
        tokens = [*minilm.tokenize(text), separator]  # [CLS] ... [SEP], as it was trained
        assert cosine(vector, oracle(tokens).mean(axis=0)) > 0.9995
    vectors = minilm.embed(TEXTS)
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > 0.6
    assert vectors[0] @ vectors[2] < 0.2


def test_an_index_finds_by_meaning(minilm, tmp_path):
    index = Index.create("docs", DOCS, location=tmp_path, embed=minilm)
    hit = index.search("vegetables and flowers", k=1, mode="vector")[0]
    assert hit.chunk.source == "garden"
    assert 0.1 < hit.score < 1
    assert [index.search(text, k=1)[0].chunk.source for text in ("decode a string", "the revenue office")] == [
        "json",
        "tax",
    ]
    assert repr(index) == "<Index docs: 3 chunks of 3 documents, minilm>"


def test_vectors_are_kept(minilm, tmp_path, monkeypatch):
    index = Index.create("docs", DOCS, location=tmp_path, embed=minilm)
    first = index.search("tomatoes")
    index.drop()
    monkeypatch.setattr(type(minilm), "embed", lambda self, texts, **options: np.ones((len(texts), 384), np.float32))
    again = Index.create("docs", DOCS, location=tmp_path, embed=minilm)
    monkeypatch.undo()
    assert again.search("tomatoes") == first
    kept = [file for file in (tmp_path / ".embeddings").rglob("*") if file.is_file()]
    assert {file.suffix for file in kept} <= {".npy", ".json", ".py", ""}
    assert not any(b"tomatoes" in file.read_bytes() for file in kept)


def test_damaged_vectors_are_computed_again(minilm, tmp_path):
    embedding = Embedding(minilm, Memo(tmp_path))
    first = embedding.kept(TEXTS)
    for file in tmp_path.rglob("*.npy"):
        file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
    again = Embedding(minilm, Memo(tmp_path)).kept(TEXTS)
    assert (again == first).all()


def test_where_nothing_can_be_kept_all_is_computed(minilm, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="vectors are not kept"):
        vectors = Embedding(minilm, Memo(tmp_path / "file")).kept(TEXTS)
    assert (vectors == minilm.embed(TEXTS)).all()


def test_one_text_more_changes_one_batch():
    def batches(texts):
        batch, found = [], []
        for text in texts:
            batch.append(text)
            if ends_batch(text, len(batch)):
                found.append(tuple(batch))
                batch = []
        return {*found, tuple(batch)}

    texts = [f"text {i}" for i in range(2000)]
    before, after = batches(texts), batches([*texts[:500], "one more", *texts[500:]])
    assert len(before) > 30
    assert len(after - before) <= 2


def test_another_model_is_refused(minilm, load, tmp_path):
    Index.create("docs", DOCS, location=tmp_path, embed=minilm)
    bert = load("bert")
    with pytest.raises(WrongModel, match="other weights"):
        Index.open("docs", tmp_path, embed=bert).search("tomatoes")
    with pytest.raises(BadOption, match="drop"):
        Index.create("docs", DOCS, location=tmp_path, embed=bert)
    with pytest.raises(BadOption, match="embeds 512 tokens at once"):
        Index.create("more", DOCS, location=tmp_path, embed=minilm, chunk_tokens=600)


def test_a_long_word_is_no_chunk_without_end(minilm, tmp_path):
    index = Index.create("docs", [("blob", "QUJD" * 20_000)], location=tmp_path, embed=minilm)
    hits = index.search("QUJD", k=50, mode="vector")
    assert max(len(hit.chunk.text) for hit in hits) <= 256 * 8


def test_a_ranking_model_ranks(minilm, load, tmp_path):
    ranker = load("bert-rank")
    index = Index.create("docs", DOCS, location=tmp_path, embed=minilm, rerank=ranker)
    hits = index.search("tomatoes", k=3)
    expected = ranker.rerank("tomatoes", [hit.chunk.text for hit in hits])
    assert [hit.score for hit in hits] == pytest.approx(expected.tolist())
    assert len(hits) == 3


def test_as_many_chunks_are_read_as_fit(load, monkeypatch):
    llm = load("llama", n_ctx=1024)
    read = Layout.read
    sizes: list[int] = []
    monkeypatch.setattr(Layout, "read", lambda self, vocab: sizes.append(len(self.chunks)) or read(self, vocab))
    reply = ask(llm, lambda query: [f"chunk {n}" for n in range(400)], "why?", 400, instruction="Go.", max_tokens=4)
    n = len(reply.hits)
    assert 1 < n < 400
    assert f"{400 - n} of 400 chunks were left out" in reply.notes[0]
    assert {hit.chunk.text for hit in reply.hits} == {f"chunk {i}" for i in range(n)}  # the best ones
    assert {n, n + 1} <= set(sizes)  # one more has no room
    assert len(sizes) < 40
    assert len(ask(llm, lambda query: ["wide " * 150], "why?", 1, instruction="Go.", max_tokens=512).hits) == 1
    with pytest.raises(PromptTooLong) as error:
        ask(llm, lambda query: ["word " * 5000], "why?", instruction="Go.", max_tokens=4)
    assert error.value.n_over > 0
    with pytest.raises(BadOption, match="instruction"):
        ask(llm, lambda query: ["a"], "why?", instruction=None)
