"""LlamaIndex: a model of ours as LLM and as embedding, an index of ours as retriever.

    from ipyllama.adapters.llama_index import LlamaEmbedding, LlamaLLM
    Settings.llm = LlamaLLM(llm=ipyllama.load("smollm2"))
    Settings.embed_model = LlamaEmbedding(llm=ipyllama.load("minilm"))

Needs `pip install 'ipyllama[llamaindex]'`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ipyllama.adapters.conversation import conversation
from ipyllama.errors import BadOption, MissingPackage

try:
    from llama_index.core.base.llms.types import (
        ChatMessage,
        ChatResponse,
        ChatResponseGen,
        CompletionResponse,
        CompletionResponseGen,
        LLMMetadata,
        MessageRole,
        TextBlock,
    )
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.llms import CustomLLM
    from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ImportError as error:
    raise MissingPackage(
        "LlamaIndex's adapters need llama-index-core, which is not installed: pip install 'ipyllama[llamaindex]'"
    ) from error

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class LlamaLLM(CustomLLM):
    """A loaded model. Its replies are kept and its prompt prefixes reused as in a `Chat`."""

    llm: Any
    """an `ipyllama.LLM`"""
    options: dict[str, Any] = {}  # noqa: RUF012 - a field, which pydantic copies
    """generation options for every call; a call's own come before them"""

    @classmethod
    def class_name(cls) -> str:
        """As LlamaIndex names it in what it saves."""
        return "ipyllama"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex plans prompts by."""
        return LLMMetadata(
            context_window=self.llm.n_ctx,
            num_output=self.options.get("max_tokens", 256),
            is_chat_model=self.llm.template is not None,
            model_name=self.llm.name,
        )

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Continue a text as it is."""
        reply = self.llm.complete(prompt, **self.options | kwargs)
        return CompletionResponse(text=reply.text, raw=reply)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """The same, as it is written."""
        stream = self.llm.stream(prompt, **self.options | kwargs)

        def pieces() -> CompletionResponseGen:
            text = ""
            for piece in stream:
                text += piece
                yield CompletionResponse(text=text, delta=piece)
            yield CompletionResponse(text=text, delta="", raw=stream.reply)  # tells what it cost

        return pieces()

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer the last message."""
        chat, question = conversation(self.llm, _said(messages))
        turn = chat.ask(question, **self.options | kwargs)
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=turn.text), raw=turn)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """The same, as it is written."""
        chat, question = conversation(self.llm, _said(messages))
        stream = chat.stream(question, **self.options | kwargs)

        def pieces() -> ChatResponseGen:
            text = ""
            for piece in stream:
                text += piece
                yield ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=piece)
            message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
            yield ChatResponse(message=message, delta="", raw=stream.reply)

        return pieces()


class LlamaEmbedding(BaseEmbedding):
    """A loaded embedding model."""

    llm: Any

    @classmethod
    def class_name(cls) -> str:
        """As LlamaIndex names it in what it saves."""
        return "ipyllama"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self.llm.embed(texts).tolist()
        return vectors


class LlamaRetriever(BaseRetriever):
    """An `Index`, or any `Retriever` of ours."""

    def __init__(self, index: Any, k: int = 4) -> None:
        self.index, self.k = index, k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(
                    id_=hit.chunk.id,
                    text=hit.chunk.text,
                    metadata={**hit.chunk.metadata, "source": hit.chunk.source, "title": hit.chunk.title},
                ),
                score=hit.score,
            )
            for hit in self.index.search(query_bundle.query_str, self.k)
        ]


def _said(messages: Sequence[ChatMessage]) -> Iterator[tuple[str, str]]:
    for message in messages:
        role = _ROLES.get(message.role.value)
        if role is None:
            raise BadOption(f"messages of role '{message.role.value}' cannot be read: use system, user and assistant")
        if not all(isinstance(block, TextBlock) for block in message.blocks):
            raise BadOption("only text can be read: a message holds an image or something else")
        yield role, message.content or ""
