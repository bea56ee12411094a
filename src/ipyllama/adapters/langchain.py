"""LangChain: a model of ours as chat model and as embeddings, an index of ours as retriever.

    from ipyllama.adapters.langchain import ChatLlama
    (prompt | ChatLlama(llm=ipyllama.load("smollm2")) | parser).invoke({"topic": "KV caches"})

Needs `pip install 'ipyllama[langchain]'`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ipyllama.adapters.conversation import conversation
from ipyllama.errors import BadOption, MissingPackage

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    from langchain_core.retrievers import BaseRetriever
except ImportError as error:
    raise MissingPackage(
        "LangChain's adapters need langchain-core, which is not installed: pip install 'ipyllama[langchain]'"
    ) from error

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata

    from ipyllama.engine import Stream
    from ipyllama.reply import Reply

_ROLES = {"system": "system", "human": "user", "ai": "assistant"}


class ChatLlama(BaseChatModel):
    """A loaded model. Its replies are kept and its prompt prefixes reused as in a `Chat`."""

    llm: Any
    """an `ipyllama.LLM`"""
    options: dict[str, Any] = {}  # noqa: RUF012 - a field, which pydantic copies
    """generation options for every call; a call's own, and its stop words, come before them"""

    @property
    def _llm_type(self) -> str:
        return "ipyllama"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.llm.name, **self.options}

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        chat, question = conversation(self.llm, _said(messages))
        return _result(chat.ask(question, **self._chosen(stop, kwargs)))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        chat, question = conversation(self.llm, _said(messages))
        return _result(await chat.aask(question, **self._chosen(stop, kwargs)))

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        stream = self._begin(messages, stop, kwargs)
        for text in stream:
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
            if run_manager:
                run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk
        yield _last(stream)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        stream = self._begin(messages, stop, kwargs)
        async for text in stream:
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
            if run_manager:
                await run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk
        yield _last(stream)

    def bind_tools(self, tools: Any, **kwargs: Any) -> NoReturn:
        """Raises `BadOption`: there are no tools here."""
        raise BadOption(
            f"{self.llm.name} calls no tools here, so it has no structured output either: bind(grammar=...) makes its "
            "answers follow a grammar"
        )

    def _begin(self, messages: list[BaseMessage], stop: list[str] | None, more: dict[str, Any]) -> Stream[Any]:
        chat, question = conversation(self.llm, _said(messages))
        return chat.stream(question, **self._chosen(stop, more))

    def _chosen(self, stop: list[str] | None, more: dict[str, Any]) -> dict[str, Any]:
        chosen = {**self.options, **more}
        return chosen if stop is None else chosen | {"stop": stop}


class LlamaEmbeddings(Embeddings):
    """A loaded embedding model."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector of length 1 for each text."""
        vectors: list[list[float]] = self.llm.embed(texts).tolist() if texts else []
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text."""
        return self.embed_documents([text])[0]


class LlamaRetriever(BaseRetriever):
    """An `Index`, or any `Retriever` of ours."""

    index: Any
    k: int = 4

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [
            Document(
                page_content=hit.chunk.text,
                id=hit.chunk.id,
                metadata={
                    **hit.chunk.metadata,
                    "source": hit.chunk.source,
                    "title": hit.chunk.title,
                    "start": hit.chunk.start,
                    "score": hit.score,
                },
            )
            for hit in self.index.search(query, self.k)
        ]


def _said(messages: Iterable[BaseMessage]) -> Iterator[tuple[str, str]]:
    for message in messages:
        role = _ROLES.get(message.type)
        if role is None:
            raise BadOption(f"messages of type {message.type!r} cannot be read: use system, human and ai messages")
        blocks = [message.content] if isinstance(message.content, str) else message.content
        texts = [block if isinstance(block, str) else block.get("text") for block in blocks]
        if not all(isinstance(text, str) for text in texts):
            raise BadOption("only text can be read: a message holds an image or something else")
        yield role, "".join(filter(None, texts))


def _result(reply: Reply) -> ChatResult:
    message = AIMessage(content=reply.text, usage_metadata=_usage(reply), response_metadata=_facts(reply))
    return ChatResult(generations=[ChatGeneration(message=message)])


def _last(stream: Stream[Any]) -> ChatGenerationChunk:
    """The chunk without text that tells what the answer cost."""
    reply = stream.reply
    assert reply is not None
    chunk = AIMessageChunk(
        content="", usage_metadata=_usage(reply), response_metadata=_facts(reply), chunk_position="last"
    )
    return ChatGenerationChunk(message=chunk)


def _usage(reply: Reply) -> UsageMetadata:
    usage = reply.usage
    return {
        "input_tokens": usage.prompt,
        "output_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "input_token_details": {"cache_read": usage.reused + usage.restored},
    }


def _facts(reply: Reply) -> dict[str, Any]:
    return {"model_name": reply.model, "finish_reason": reply.finish_reason}
