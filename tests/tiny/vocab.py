"""Two small vocabularies: SentencePiece with bytes and ChatML markers, and WordPiece."""

from __future__ import annotations

import gguf

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPACE = "\u2581"
_PRINTABLE = [chr(code) for code in range(33, 127)]
_WORDS = ("the", "cat", "dog", "paris", "capital", "france")
_TYPE = gguf.TokenType


def add_sentencepiece(writer: gguf.GGUFWriter) -> list[str]:
    """356 tokens: special ones, 256 bytes, ChatML markers, single characters. Returns them in order of id."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    markers = ["<|im_start|>", "<|im_end|>"]
    pieces = [SPACE, *_PRINTABLE]  # so that text is not all byte tokens
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *markers, *pieces]
    types = [_TYPE.UNKNOWN, _TYPE.CONTROL, _TYPE.CONTROL] + [_TYPE.BYTE] * len(bytes_)
    types += [_TYPE.CONTROL] * len(markers) + [_TYPE.NORMAL] * len(pieces)
    scores = [0.0] * (len(tokens) - len(pieces)) + [-float(i) - 1 for i in range(len(pieces))]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHATML)
    return tokens


def add_wordpiece(writer: gguf.GGUFWriter) -> list[str]:
    """Special tokens, each character as start and inside of a word, a few words. Returns them in order of id."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [piece for char in _PRINTABLE if not char.isupper() for piece in (SPACE + char, char)]
    tokens = [*special, *pieces, *(SPACE + word for word in _WORDS)]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([_TYPE.CONTROL] * len(special) + [_TYPE.NORMAL] * (len(tokens) - len(special)))
    writer.add_token_type_count(2)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_unk_token_id(1)
    writer.add_sep_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_mask_token_id(4)
    return tokens
