"""llama.cpp for ipyllama: thin bindings over ext/engine."""

from collections.abc import Mapping, Sequence as _Sequence
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

class Candidates:
    """What samplers left to choose from, in their order."""

    @property
    def tokens(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """Token ids: int32, shape (n,). The array owns its data."""

    @property
    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """Their logits: float32, shape (n,), an owner."""

    @property
    def probabilities(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """Softmax of these logits: float32, shape (n,), an owner."""

    @property
    def selected(self) -> int | None:
        """The token chosen, None if the last sampler only filters."""

    def __len__(self) -> int: ...

class Sampler:
    """
    Chooses tokens from logits. Each static method makes a sampler of that kind; chain() puts them in order.
    """

    def close(self) -> None:
        """Free what this object holds. Safe to call twice and from any thread."""

    @property
    def closed(self) -> bool:
        """True after close()."""

    def __enter__(self) -> Sampler: ...

    def __exit__(self, *exception: object) -> None: ...

    @staticmethod
    def top_k(k: int) -> Sampler:
        """Keep the k most probable tokens; 0 keeps all."""

    @staticmethod
    def top_p(p: float, min_keep: int = 1) -> Sampler:
        """
        Keep the most probable tokens that together have probability p; 1 keeps all. `min_keep` tokens are kept in any case. Nucleus sampling: https://arxiv.org/abs/1904.09751
        """

    @staticmethod
    def min_p(p: float, min_keep: int = 1) -> Sampler:
        """
        Keep tokens with at least p times the probability of the most probable one; 0 keeps all. https://arxiv.org/abs/2407.01082
        """

    @staticmethod
    def typical(p: float, min_keep: int = 1) -> Sampler:
        """
        Keep the tokens whose surprise is closest to the entropy, up to probability p; 1 keeps all. https://arxiv.org/abs/2202.00666
        """

    @staticmethod
    def top_n_sigma(n: float) -> Sampler:
        """
        Keep logits within n standard deviations of the largest; 0 keeps all. https://arxiv.org/abs/2411.07641
        """

    @staticmethod
    def xtc(probability: float, threshold: float = 0.10000000149011612, min_keep: int = 1, seed: int = 0) -> Sampler:
        """
        Exclude top choices: with `probability`, drop all tokens of at least `threshold` but the least probable of them. A threshold above 0.5 is off.
        """

    @staticmethod
    def infill(model: Model) -> Sampler:
        """
        For text between two others: merge tokens that begin alike, end rather than guess. It wants at most 1,024 candidates: put a top_k before it.
        """

    @staticmethod
    def temp(temperature: float) -> Sampler:
        """
        Divide logits by the temperature; 0 keeps only the most probable token.
        """

    @staticmethod
    def temp_ext(temperature: float, delta: float, exponent: float = 1.0) -> Sampler:
        """
        Dynamic temperature, from temperature - delta to temperature + delta, growing with the entropy to the power `exponent`. The largest logit becomes 0. https://arxiv.org/abs/2309.02772
        """

    @staticmethod
    def penalties(model: Model, *, last_n: int = 64, repeat: float = 1.0, frequency: float = 0.0, presence: float = 0.0) -> Sampler:
        """
        Of tokens among the `last_n` accepted ones, divide positive logits by `repeat` and multiply others; subtract `frequency` for each time, and `presence` once.
        """

    @staticmethod
    def dry(model: Model, *, multiplier: float = 0.800000011920929, base: float = 1.75, allowed_length: int = 2, last_n: int = 64, breakers: _Sequence[str] = ['\n', ':', '"', '*']) -> Sampler:
        """
        Don't repeat yourself: from a token that would extend a repetition of n >= allowed_length tokens among the last `last_n`, subtract multiplier * base ** (n - allowed_length). A repetition does not reach across `breakers`.
        """

    @staticmethod
    def logit_bias(model: Model, biases: Mapping[int, float]) -> Sampler:
        """Add to the logits of tokens, by id; -inf forbids a token."""

    @staticmethod
    def grammar(model: Model, text: str, root: str = 'root') -> Sampler:
        """
        Keep tokens that continue a text of this GBNF grammar. Raises BadGrammar, with line and column.
        """

    @staticmethod
    def grammar_lazy_patterns(model: Model, text: str, *, root: str = 'root', patterns: _Sequence[str] = [], tokens: _Sequence[int] = []) -> Sampler:
        """
        Like grammar, but only once a regular expression of `patterns` is found in what was accepted (the text from its first group on must then fit), or a token of `tokens` was accepted.
        """

    @staticmethod
    def greedy() -> Sampler:
        """Choose the most probable token."""

    @staticmethod
    def dist(seed: int = 0) -> Sampler:
        """
        Draw a token by probability. Seed 4294967295 draws another seed: look at `seed`.
        """

    @staticmethod
    def mirostat(model: Model, tau: float = 5.0, eta: float = 0.10000000149011612, m: int = 100, seed: int = 0) -> Sampler:
        """
        Draw so that the surprise stays near `tau` bits, learning at rate `eta` from `m` tokens. https://arxiv.org/abs/2007.14966
        """

    @staticmethod
    def mirostat_v2(tau: float = 5.0, eta: float = 0.10000000149011612, seed: int = 0) -> Sampler:
        """
        Mirostat 2: drop tokens of more surprise than a moving bound, then draw.
        """

    @staticmethod
    def adaptive_p(target: float, decay: float = 0.8999999761581421, seed: int = 0) -> Sampler:
        """
        Draw tokens near the probability `target`, on average over 1 / (1 - decay) tokens. https://github.com/ggml-org/llama.cpp/pull/17927
        """

    @staticmethod
    def chain(parts: _Sequence[Sampler]) -> Sampler:
        """
        Samplers that work one after another, copied with their state; parts that are chains are taken apart. Only the last may choose.
        """

    def sample(self, sequence: Sequence) -> int:
        """
        The next token, from the sequence's last logits; it counts as accepted. Raises BadGrammar where no token fits, and BadArgument if the last sampler only filters.
        """

    def apply(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Candidates:
        """
        What is left of logits of shape (n_vocab,), float32. Draws as sample() does, and accepts nothing.
        """

    def accept(self, tokens: _Sequence[int]) -> None:
        """
        Take note of tokens that come next in the ledger: penalties count them, grammars move on. Raises BadGrammar for a token that does not fit; those before it stay accepted.
        """

    def reset(self) -> None:
        """Forget accepted tokens and start the random draws again."""

    def clone(self) -> Sampler:
        """A copy that goes on from the same state."""

    @property
    def name(self) -> str:
        """The name of its static method."""

    @property
    def names(self) -> list[str]:
        """The names of the parts, in order."""

    @property
    def seed(self) -> int | None:
        """The seed of the last part that draws, None if none does."""

def top_logprobs(sequence: Sequence, k: int) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,))], Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
    """
    The k most probable tokens of the sequence's last logits, ties by id: ids, int32, and the natural logarithms of their probabilities over the whole vocabulary, float32; both of shape (k,), owners.
    """
