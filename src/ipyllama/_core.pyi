"""llama.cpp for ipyllama: thin bindings over ext/engine."""

from collections.abc import Sequence as _Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def build_info() -> dict[str, str]:
    """What this extension was built from and how."""

def system_info() -> str:
    """ggml's features and instruction sets, one line."""

def devices() -> list[tuple[str, str]]:
    """(name, description) of each compute device."""

def log_since(number: int) -> list[tuple[int, int, str]]:
    """
    llama.cpp's log lines from `number` on: (number, level, text); levels 1 debug, 2 info, 3 warning, 4 error. The buffer holds the last 512 lines.
    """

def set_crash_file(path: str) -> None:
    """
    Where llama.cpp's message goes if it ends the process; nothing is created before. "" is nowhere.
    """

def set_crash_facts(facts: str) -> None:
    """Lines of "name: value" that go into that file as well."""

def log_next() -> int:
    """The number that the next log line will get."""

class LoadProgress:
    """Watches and cancels a running Model.load."""

    def __init__(self) -> None: ...

    @property
    def fraction(self) -> float:
        """0.0 to 1.0."""

    def cancel(self) -> None:
        """Make the load raise Aborted."""

class Model:
    """Weights, vocabulary and metadata of one GGUF file."""

    def close(self) -> None:
        """Free what this object holds. Safe to call twice and from any thread."""

    @property
    def closed(self) -> bool:
        """True after close()."""

    def __enter__(self) -> Model: ...

    def __exit__(self, *exception: object) -> None: ...

    @staticmethod
    def load(path: str, *, n_gpu_layers: int = -1, use_mmap: bool = True, vocab_only: bool = False, check_tensors: bool = False, progress: LoadProgress | None = None) -> Model:
        """
        Load a GGUF file. Raises BadModelFile, or Aborted when `progress` was cancelled. `n_gpu_layers` below 0 means all layers, where there is a GPU.
        """

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """
        Token ids of `text`. `add_special` adds BOS and EOS where the model wants them; `parse_special` reads control tokens written out in the text as such.
        """

    def detokenize(self, tokens: _Sequence[int], special: bool = False) -> bytes:
        """The bytes of `tokens`; a cut inside a character is not valid UTF-8."""

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token; control tokens are empty unless `special`."""

    def is_eog(self, token: int) -> bool:
        """True for tokens that end generation (EOS, end of turn)."""

    def is_control(self, token: int) -> bool:
        """True for control tokens."""

    def metadata(self) -> dict[str, str]:
        """GGUF metadata, scalars only, as text."""

    def chat_template(self, name: str | None = None) -> str | None:
        """The Jinja source of the chat template in the file, or None."""

    @property
    def description(self) -> str:
        """Architecture, size and quantisation in a few words."""

    @property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""

    @property
    def bos(self) -> int:
        """Beginning-of-sequence token, -1 if there is none."""

    @property
    def eos(self) -> int:
        """End-of-sequence token, -1 if there is none."""

    @property
    def eot(self) -> int:
        """End-of-turn token, -1 if there is none."""

    @property
    def add_bos(self) -> bool:
        """True if prompts begin with BOS."""

    @property
    def add_eos(self) -> bool:
        """True if texts end with EOS."""

    @property
    def size(self) -> int:
        """Bytes of all tensors."""

    @property
    def n_params(self) -> int:
        """Number of parameters."""

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context in training."""

    @property
    def n_embd(self) -> int:
        """Width of the residual stream."""

    @property
    def n_layer(self) -> int:
        """Number of layers."""

    @property
    def n_head(self) -> int:
        """Query heads of the first layer."""

    @property
    def n_head_kv(self) -> int:
        """KV heads of the first layer."""

    @property
    def n_swa(self) -> int:
        """Sliding window in tokens, 0 if there is none."""

    @property
    def is_recurrent(self) -> bool:
        """True for Mamba, RWKV and the like."""

    @property
    def is_hybrid(self) -> bool:
        """True for Jamba, LFM2 and the like."""

    @property
    def has_encoder(self) -> bool:
        """True for encoder-decoder models."""

    @property
    def has_decoder(self) -> bool:
        """True for models that can generate."""

class ContextOptions:
    """How to make a Context. `n_batch` is the longest step in tokens."""

    def __init__(self) -> None: ...

    @property
    def n_ctx(self) -> int:
        """Tokens of KV memory."""

    @n_ctx.setter
    def n_ctx(self, arg: int, /) -> None: ...

    @property
    def n_batch(self) -> int:
        """Most tokens in one step."""

    @n_batch.setter
    def n_batch(self, arg: int, /) -> None: ...

    @property
    def n_seq_max(self) -> int:
        """Most sequences at once."""

    @n_seq_max.setter
    def n_seq_max(self, arg: int, /) -> None: ...

    @property
    def n_threads(self) -> int:
        """CPU threads of a step."""

    @n_threads.setter
    def n_threads(self, arg: int, /) -> None: ...

    @property
    def flash_attention(self) -> int:
        """1 on, 0 off, -1 llama.cpp decides."""

    @flash_attention.setter
    def flash_attention(self, arg: int, /) -> None: ...

    @property
    def swa_full(self) -> bool:
        """Keep cells outside the window, so that trims stay exact."""

    @swa_full.setter
    def swa_full(self, arg: bool, /) -> None: ...

    @property
    def type_k(self) -> str:
        """Type of K cells: f16, q8_0 ..."""

    @type_k.setter
    def type_k(self, arg: str, /) -> None: ...

    @property
    def type_v(self) -> str:
        """Type of V cells."""

    @type_v.setter
    def type_v(self, arg: str, /) -> None: ...

class Context:
    """KV memory and compute buffers for one model; keeps the model alive."""

    def __init__(self, model: Model, options: ContextOptions) -> None: ...

    def close(self) -> None:
        """Free what this object holds. Safe to call twice and from any thread."""

    @property
    def closed(self) -> bool:
        """True after close()."""

    def __enter__(self) -> Context: ...

    def __exit__(self, *exception: object) -> None: ...

    def abort(self) -> None:
        """
        End a running step within one micro-batch; refuse steps until clear_abort().
        """

    def clear_abort(self) -> None:
        """Allow steps again."""

    @property
    def n_ctx(self) -> int:
        """Tokens of KV memory, as llama.cpp rounded it."""

    @property
    def n_batch(self) -> int:
        """Most tokens in one step."""

    @property
    def n_seq_max(self) -> int:
        """Most sequences at once."""

    @property
    def n_threads(self) -> int:
        """CPU threads of a step."""

class Snapshot:
    """The KV of a whole sequence, copied out of its context."""

    @property
    def tokens(self) -> list[int]:
        """The ledger when it was taken."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

class Sequence:
    """One run of tokens with KV in a context."""

    def __init__(self, context: Context, id: int = 0) -> None: ...

    def decode(self, tokens: _Sequence[int]) -> None:
        """
        One step: evaluate up to n_batch tokens after the ledger. Raises Aborted if the abort flag is set; the ledger then holds what is in memory, which on recurrent and hybrid models may be nothing.
        """

    def trim(self, n: int) -> None:
        """
        Keep the first n tokens. Raises CannotTrim where the architecture refuses; look at len() afterwards.
        """

    def clear(self) -> None:
        """Forget everything."""

    def __len__(self) -> int: ...

    @property
    def tokens(self) -> list[int]:
        """The ledger: ids of the tokens with KV, in order."""

    @property
    def pos_min(self) -> int:
        """First position in memory, -1 if empty."""

    @property
    def pos_max(self) -> int:
        """Last position in memory, -1 if empty."""

    @property
    def has_logits(self) -> bool:
        """True if logits() would answer."""

    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """
        Logits after the last token evaluated: float32, shape (n_vocab,). The array owns its data.
        """

    def snapshot(self) -> Snapshot:
        """
        Copy the KV and the ledger out. Of a windowed model's layers only the window is copied: what is longer comes back equal within rounding, and cannot be trimmed.
        """

    def restore(self, snapshot: Snapshot) -> None:
        """
        Replace what the sequence holds. Raises BadState, and is then empty, if the snapshot does not fit.
        """

class SamplerOptions:
    """How to choose the next token."""

    def __init__(self) -> None: ...

    @property
    def temperature(self) -> float:
        """0 takes the most probable token."""

    @temperature.setter
    def temperature(self, arg: float, /) -> None: ...

    @property
    def top_k(self) -> int:
        """Keep the k most probable tokens; 0 is off."""

    @top_k.setter
    def top_k(self, arg: int, /) -> None: ...

    @property
    def top_p(self) -> float:
        """Keep the smallest set with this probability; 1 is off."""

    @top_p.setter
    def top_p(self, arg: float, /) -> None: ...

    @property
    def min_p(self) -> float:
        """Drop tokens below this share of the most probable; 0 is off."""

    @min_p.setter
    def min_p(self, arg: float, /) -> None: ...

    @property
    def repeat_penalty(self) -> float:
        """Divides logits of recent tokens; 1 is off."""

    @repeat_penalty.setter
    def repeat_penalty(self, arg: float, /) -> None: ...

    @property
    def repeat_last_n(self) -> int:
        """How many recent tokens are penalised."""

    @repeat_last_n.setter
    def repeat_last_n(self, arg: int, /) -> None: ...

    @property
    def seed(self) -> int:
        """Seed of the random draw, 32 bits."""

    @seed.setter
    def seed(self, arg: int, /) -> None: ...

class Sampler:
    """
    Chooses tokens from logits: penalties, top-k, top-p, min-p, temperature, draw, in this order.
    """

    def __init__(self, model: Model, options: SamplerOptions) -> None: ...

    def close(self) -> None:
        """Free what this object holds. Safe to call twice and from any thread."""

    @property
    def closed(self) -> bool:
        """True after close()."""

    def __enter__(self) -> Sampler: ...

    def __exit__(self, *exception: object) -> None: ...

    def sample(self, sequence: Sequence) -> int:
        """
        The next token, from the sequence's last logits; it counts as accepted.
        """

    def accept(self, tokens: _Sequence[int]) -> None:
        """Take note of tokens already in the ledger, for the penalties."""

    def reset(self) -> None:
        """Forget accepted tokens and start the random draw again."""
