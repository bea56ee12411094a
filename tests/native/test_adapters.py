"""Our models in LangChain and LlamaIndex, and their retrievers here: answers, streaming, stop words, prefix memory."""

import asyncio
import sys

import pytest
from ragwords import Words

from ipyllama.adapters.conversation import conversation
from ipyllama.errors import BadOption, MissingPackage
from ipyllama.rag import Index, as_retriever

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

QUESTION = "Name three colours."
DOCS = {"cats": "Cats purr when they are content.", "whales": "The blue whale is the largest animal."}


@pytest.fixture
def smol(load):
    return load("smollm2", n_ctx=2048)


def test_messages_become_a_conversation(smol):
    said = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello."), ("user", "One"), ("user", "two")]
    chat, question = conversation(smol, said)
    assert question == "One\n\ntwo"
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
    ]
    for bad in ([], said[:3], [("user", "a"), ("system", "b"), ("user", "c")]):
        with pytest.raises(BadOption):
            conversation(smol, bad)


# -- LangChain ----------------------------------------------------------------------------------------------


def test_langchain_gets_our_answer(smol):
    from langchain_core.messages import HumanMessage, SystemMessage

    from ipyllama.adapters.langchain import ChatLlama

    model = ChatLlama(llm=smol, options={"max_tokens": 12, "temperature": 0})
    said = [SystemMessage("Be brief."), HumanMessage(QUESTION)]
    expected = smol.chat("Be brief.").ask(QUESTION, max_tokens=12, temperature=0, fresh=True)
    answer = model.invoke(said)
    assert answer.content == expected.text
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.usage_metadata["output_tokens"] == 12
    assert answer.usage_metadata["input_token_details"]["cache_read"] > 0  # read a moment ago
    pieces = list(model.stream(said))
    assert len(pieces) > 3
    assert "".join(piece.content for piece in pieces) == expected.text
    assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) == 12
    assert pieces[-1].response_metadata["finish_reason"] == "length"
    assert asyncio.run(model.ainvoke(said)).content == expected.text

    async def streamed() -> str:
        return "".join([piece.content async for piece in model.astream(said)])

    assert asyncio.run(streamed()) == expected.text
    word = expected.text.split()[2]
    stopped = model.invoke(said, stop=[word])
    assert stopped.content == expected.text[: expected.text.index(word)]
    assert model.bind(max_tokens=3).invoke(said).usage_metadata["output_tokens"] == 3


def test_langchain_continues_what_was_said(smol):
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    from ipyllama.adapters.langchain import ChatLlama

    model = ChatLlama(llm=smol, options={"max_tokens": 8, "temperature": 0})
    first = model.invoke([HumanMessage(QUESTION * 30)])
    second = model.invoke([HumanMessage(QUESTION * 30), AIMessage(first.content), HumanMessage("And a fourth?")])
    usage = second.usage_metadata
    assert usage["input_token_details"]["cache_read"] > first.usage_metadata["input_tokens"] // 2
    with pytest.raises(BadOption, match="of type 'tool'"):
        model.invoke([HumanMessage("x"), ToolMessage("y", tool_call_id="1")])
    with pytest.raises(BadOption, match="only text"):
        model.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}])])
    for refused in (model.bind_tools, model.with_structured_output):
        with pytest.raises(BadOption, match="no tools"):
            refused({"title": "x", "type": "object"})


def test_langchain_embeds_and_retrieves(load, tmp_path):
    from langchain_core.vectorstores import InMemoryVectorStore

    from ipyllama.adapters.langchain import LlamaEmbeddings, LlamaRetriever

    bert = load("bert")
    embeddings = LlamaEmbeddings(bert)
    assert embeddings.embed_query("cat") == bert.embed(["cat"])[0].tolist()
    assert embeddings.embed_documents([]) == []
    store = InMemoryVectorStore.from_texts(list(DOCS.values()), embeddings, [{"source": name} for name in DOCS])
    theirs = as_retriever(store).search("Cats purr when they are content.", k=1)
    assert (theirs[0].chunk.source, theirs[0].chunk.text) == ("cats", DOCS["cats"])
    index = Index.create("pets", DOCS, location=tmp_path, embed=Words())
    ours = LlamaRetriever(index=index, k=1).invoke("blue whale")
    assert (ours[0].page_content, ours[0].metadata["source"]) == (DOCS["whales"], "whales")
    again = as_retriever(LlamaRetriever(index=index, k=2)).search("blue whale", k=1)
    assert [hit.chunk.source for hit in again] == ["whales"]


# -- LlamaIndex ---------------------------------------------------------------------------------------------


def test_llama_index_gets_our_answer(smol):
    from llama_index.core.llms import ChatMessage

    from ipyllama.adapters.llama_index import LlamaLLM

    model = LlamaLLM(llm=smol, options={"max_tokens": 12, "temperature": 0})
    assert (model.metadata.context_window, model.metadata.is_chat_model) == (2048, True)
    said = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=QUESTION)]
    expected = smol.chat("Be brief.").ask(QUESTION, max_tokens=12, temperature=0)
    answer = model.chat(said)
    assert answer.message.content == expected.text
    assert answer.raw.usage.reused > 0
    pieces = list(model.stream_chat(said))
    assert "".join(piece.delta for piece in pieces) == expected.text
    assert pieces[-1].message.content == expected.text
    assert pieces[-1].raw.usage.generated == 12
    text = "The colours of the rainbow are"
    continued = smol.complete(text, max_tokens=12, temperature=0)
    assert model.complete(text).text == continued.text
    streamed = list(model.stream_complete(text))
    assert "".join(piece.delta for piece in streamed) == streamed[-1].text == continued.text
    assert streamed[-1].raw.finish_reason == "length"
    word = continued.text.split()[2]
    assert model.complete(text, stop=[word]).text == continued.text[: continued.text.index(word)]


def test_llama_index_is_told_what_cannot_be_read(smol):
    from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock

    from ipyllama.adapters.llama_index import LlamaLLM

    model = LlamaLLM(llm=smol, options={"max_tokens": 2})
    seen = [ChatMessage(role="user", blocks=[TextBlock(text="What is this?"), ImageBlock(image=b"GIF89a")])]
    for ask in (model.chat, model.stream_chat):
        with pytest.raises(BadOption, match="only text can be read"):
            list(ask(seen))
    parts = [ChatMessage(role="user", blocks=[TextBlock(text="Say"), TextBlock(text="hello.")])]
    assert model.chat(parts).raw.message == parts[0].content
    with pytest.raises(BadOption, match="tools"):
        model.chat([ChatMessage(role="user", content="x")], tools=[])


def test_llama_index_embeds_and_retrieves(load, tmp_path):
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    from ipyllama.adapters.llama_index import LlamaEmbedding, LlamaRetriever

    bert = load("bert")
    embedding = LlamaEmbedding(llm=bert)
    assert embedding.get_text_embedding("cat") == bert.embed(["cat"])[0].tolist()
    nodes = [TextNode(text=text, metadata={"source": name}) for name, text in DOCS.items()]
    theirs = VectorStoreIndex(nodes, embed_model=embedding).as_retriever(similarity_top_k=2)
    hits = as_retriever(theirs).search("whale", k=2)
    assert {hit.chunk.source for hit in hits} == set(DOCS)
    assert hits[0].score >= hits[1].score
    index = Index.create("pets", DOCS, location=tmp_path, embed=Words())
    (ours,) = LlamaRetriever(index, k=1).retrieve("blue whale")
    assert (ours.node.get_content(), ours.node.metadata["source"]) == (DOCS["whales"], "whales")


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [
        ("langchain", "langchain_core.documents", "langchain"),
        ("llama_index", "llama_index.core.embeddings", "llamaindex"),
    ],
)
def test_without_the_package_it_is_said_what_to_install(adapter, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"ipyllama.adapters.{adapter}", raising=False)
    with pytest.raises(MissingPackage, match=rf"pip install 'ipyllama\[{extra}\]'"):
        __import__(f"ipyllama.adapters.{adapter}")
