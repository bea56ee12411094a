"""llama.cpp for ipyllama: thin bindings over ext/engine."""

from collections.abc import Mapping, Sequence as _Sequence
import enum
from typing import Annotated, Literal

import numpy
import numpy.typing
from numpy.typing import NDArray
from typing_extensions import Buffer


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

    def cls_label(self, i: int) -> str | None:
        """
        What output i of the classifier stands for, or None where the file does not say.
        """

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
    def sep(self) -> int:
        """Token between two texts, -1 if there is none."""

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
    def add_sep(self) -> bool:
        """True if two texts stand with `sep` between them."""

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
    def n_embd_out(self) -> int:
        """Width of an embedding."""

    @property
    def n_cls_out(self) -> int:
        """Outputs of the classifier of a ranking model, 0 if there is none."""

    @property
    def pooling(self) -> str:
        """
        How embeddings of tokens become one, as the file says: none, mean, cls, last, rank; 'unspecified' if it says nothing.
        """

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
        """Tokens of KV memory, shared by all sequences."""

    @n_ctx.setter
    def n_ctx(self, arg: int, /) -> None: ...

    @property
    def n_batch(self) -> int:
        """Most tokens in one step."""

    @n_batch.setter
    def n_batch(self, arg: int, /) -> None: ...

    @property
    def n_ubatch(self) -> int:
        """
        Most tokens in one micro-batch; 0 is n_batch, and so is every number with a windowed model.
        """

    @n_ubatch.setter
    def n_ubatch(self, arg: int, /) -> None: ...

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
    def n_threads_batch(self) -> int:
        """The same for several tokens; 0 is n_threads."""

    @n_threads_batch.setter
    def n_threads_batch(self, arg: int, /) -> None: ...

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
    def offload_kqv(self) -> bool:
        """KV memory on the GPU, where there is one."""

    @offload_kqv.setter
    def offload_kqv(self, arg: bool, /) -> None: ...

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

    @property
    def embeddings(self) -> bool:
        """Compute embeddings as well as logits."""

    @embeddings.setter
    def embeddings(self, arg: bool, /) -> None: ...

    @property
    def pooling(self) -> str:
        """
        How embeddings of tokens become one: none, mean, cls, last, rank; unspecified is the model's own.
        """

    @pooling.setter
    def pooling(self, arg: str, /) -> None: ...

    @property
    def rope_freq_base(self) -> float:
        """Base of RoPE; 0 is the model's."""

    @rope_freq_base.setter
    def rope_freq_base(self, arg: float, /) -> None: ...

    @property
    def rope_freq_scale(self) -> float:
        """Scale of RoPE; 0 is the model's."""

    @rope_freq_scale.setter
    def rope_freq_scale(self, arg: float, /) -> None: ...

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

    def decode(self, batch: Batch) -> None:
        """
        One step for all sequences of the batch. Raises Aborted if the abort flag is set; the ledgers then hold what is in memory. On recurrent and hybrid models that may be nothing, and after a step of several sequences it is nothing in any sequence of the context.
        """

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """
        CPU threads of steps of one token, and of several. Results may differ in the last bits.
        """

    @property
    def memory(self) -> Memory:
        """What is in the memory, over all sequences."""

    @property
    def n_ctx(self) -> int:
        """Tokens of KV memory, as llama.cpp rounded it."""

    @property
    def n_batch(self) -> int:
        """Most tokens in one step."""

    @property
    def n_ubatch(self) -> int:
        """Most tokens in one micro-batch."""

    @property
    def n_seq_max(self) -> int:
        """Most sequences at once."""

    @property
    def n_vocab(self) -> int:
        """Tokens in the model's vocabulary."""

    @property
    def n_threads(self) -> int:
        """CPU threads of steps of one token."""

    @property
    def n_threads_batch(self) -> int:
        """CPU threads of steps of several tokens."""

    def state_size(self) -> int:
        """Bytes that save() would give."""

    def save(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """
        The state of all sequences, as llama.cpp writes it: uint8, shape (n,). The array owns its data. Every cell is in it, those outside a window too.
        """

    def save_into(self, out: Buffer | numpy.typing.NDArray[numpy.uint8]) -> int:
        """
        save() into a buffer that can be written to; returns the number of bytes.
        """

    @property
    def state_limit(self) -> int:
        """No state of this context, or of a sequence of it, has more bytes."""

    def state_tokens(self, state: Buffer | numpy.typing.NDArray[numpy.uint8]) -> dict[int, int]:
        """
        Number of tokens of each sequence in a saved state, by sequence number. Raises BadState like restore(). Recurrent state alone tells its last position only: then as if the tokens began at position 0.
        """

    def restore(self, state: Buffer | numpy.typing.NDArray[numpy.uint8], tokens: Mapping[int, _Sequence[int]]) -> None:
        """
        Replace everything by a saved state; `tokens` are those of each sequence, by number. Sequences that the state holds have to exist. The bytes are checked against this model and context first: BadState, and all is as it was, where they differ.
        """

    def set_adapters(self, adapters: _Sequence[tuple[Adapter, float]], keep_memory: bool = False) -> None:
        """
        Compute with these (adapter, scale) pairs from now on, their effects added up; an empty list takes all off. What sequences hold was computed otherwise, so they must be empty: BadArgument, unless `keep_memory` insists.
        """

    @property
    def adapters(self) -> list[tuple[Adapter, float]]:
        """The (adapter, scale) pairs now set, in order."""

    def set_control_vector(self, data: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], first_layer: int, last_layer: int, keep_memory: bool = False) -> None:
        """
        Add row i of `data`, float32 of shape (n_layer, n_embd), to the output of layer i, for the layers from `first_layer` (1 or more: row 0 is never used) to `last_layer`. `keep_memory` as in set_adapters().
        """

    def clear_control_vector(self, keep_memory: bool = False) -> None:
        """Take the control vector off."""

    def embed(self, inputs: _Sequence[_Sequence[int]]) -> list[numpy.typing.NDArray[numpy.float32]]:
        """
        Embeddings of several token lists in one step, in a context with embeddings=True: for each a float32 array that owns its data. Its shape is (n_embd_out,) if the context pools by mean, cls or last, (n_cls_out,) by rank, and (n_tokens, n_embd_out) with pooling 'none'. At most n_ubatch tokens together, and as many inputs as sequences are free (n_seq_max). Nothing stays in memory; logits of the last step are lost. Raises Aborted if the abort flag is set.
        """

class Capability:
    """What sequences of a model and context can do, tried out."""

    @property
    def level(self) -> str:
        """
        'full': cut anywhere. 'extend': only go back to copies. 'none': no memory, or no way back.
        """

    @property
    def can_shift(self) -> bool:
        """True if positions can be moved."""

    @property
    def reason(self) -> str:
        """Why it cannot do everything; '' if it can."""

class Memory:
    """The KV memory of a whole context."""

    def clear(self, data: bool = True) -> None:
        """Empty all sequences. `data` also sets the buffers to zero."""

    @property
    def used(self) -> int:
        """Cells that hold something; a cell that sequences share counts once."""

    @property
    def total(self) -> int:
        """
        Cells there are: one per token, or with recurrent models one per sequence and one to spare.
        """

    @property
    def counts(self) -> dict[int, int]:
        """Tokens by sequence number, of sequences in use."""

    @property
    def can_shift(self) -> bool:
        """
        llama.cpp's word on whether positions can be moved; Sequence.add knows more.
        """

    def capability(self) -> Capability:
        """
        What sequences can do here. The first call evaluates four tokens in free cells, and logits of the last step are lost.
        """

class Outputs(enum.Enum):
    """After which tokens of a step logits are computed."""

    NONE = 0
    """After none."""

    LAST = 1
    """After the last."""

    ALL = 2
    """After each."""

class Batch:
    """Tokens of several sequences for one step."""

    def __init__(self) -> None: ...

    def add(self, sequence: Sequence, tokens: _Sequence[int], outputs: Outputs = Outputs.LAST, position: int | None = None) -> None:
        """
        Tokens to evaluate after what the sequence holds. `position` is that of the first: by default the next one, and 0 in an empty sequence. A sequence can be added once.
        """

    def clear(self) -> None:
        """Forget what was added."""

    def __len__(self) -> int:
        """Number of tokens."""

class DeviceState:
    """A sequence's state in the memory of the device."""

    @property
    def n_tokens(self) -> int:
        """Tokens that it is of."""

class Sequence:
    """One run of tokens with KV in a context; keeps the context alive."""

    def __init__(self, context: Context, id: int | None = None) -> None: ...

    def close(self) -> None:
        """Free what this object holds. Safe to call twice and from any thread."""

    @property
    def closed(self) -> bool:
        """True after close()."""

    def __enter__(self) -> Sequence: ...

    def __exit__(self, *exception: object) -> None: ...

    def decode(self, tokens: _Sequence[int], outputs: Outputs = Outputs.LAST, position: int | None = None) -> None:
        """
        One step: evaluate up to n_batch tokens after the ledger. `position` is that of the first token, in an empty sequence. Raises Aborted if the abort flag is set; the ledger then holds what is in memory, which on recurrent and hybrid models may be nothing.
        """

    def __len__(self) -> int:
        """Number of tokens."""

    @property
    def context(self) -> Context:
        """The context it belongs to."""

    @property
    def id(self) -> int:
        """Its number in the context."""

    @property
    def tokens(self) -> list[int]:
        """
        The ledger: ids of the tokens with KV, ordered by position; -1 for a piece of an image or sound.
        """

    @property
    def positions(self) -> list[int]:
        """Their positions."""

    @property
    def cells(self) -> list[int]:
        """A number for each token's cell, the same in sequences that share it."""

    @property
    def pos_min(self) -> int:
        """
        llama.cpp's first position, -1 if empty. A window moves it on; of recurrent state it is the last.
        """

    @property
    def pos_max(self) -> int:
        """llama.cpp's last position, -1 if empty."""

    @property
    def has_logits(self) -> bool:
        """True if logits() would answer."""

    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """
        Logits after the last token evaluated: float32, shape (n_vocab,). The array owns its data.
        """

    def all_logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        Logits after each token of the last step that asked for them: float32, shape (n, n_vocab). The array owns its data.
        """

    def embeddings(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """
        Embedding of the last token evaluated, in a context with embeddings and pooling 'none': float32, shape (n_embd,). The array owns its data.
        """

    def rm(self, p0: int = 0, p1: int | None = None) -> None:
        """
        Forget the tokens at positions [p0, p1). Raises CannotTrim, and all is as it was, where the memory cannot do that. Positions of the rest stay: see add().
        """

    def trim(self, n: int) -> None:
        """
        Keep the first n tokens. Raises CannotTrim, and all is as it was, where the memory cannot do that.
        """

    def cp(self, source: Sequence, p0: int = 0, p1: int | None = None) -> None:
        """
        Share the source's cells at positions [p0, p1). Nothing is copied. Raises CannotTrim where only a whole sequence can be shared, BadArgument if a position is taken here.
        """

    def fork(self) -> Sequence:
        """
        A new sequence with the same tokens, in shared cells. Needs a free sequence number (n_seq_max).
        """

    def add(self, p0: int, p1: int | None, delta: int) -> None:
        """
        Move the tokens at positions [p0, p1) by delta; None is the end. Their keys are turned at the next step: close to what evaluation there would give, not equal. Raises CannotShift, and all is as it was, where the memory cannot do that or another sequence shares the cells.
        """

    def div(self, p0: int, p1: int | None, divisor: int) -> None:
        """
        Divide the positions in [p0, p1), rounding down. Raises CannotShift like add().
        """

    def keep(self) -> None:
        """Empty all other sequences of the context."""

    def clear(self) -> None:
        """Forget everything."""

    def state_size(self, p0: int = 0, p1: int | None = None, *, partial: bool = False) -> int:
        """Bytes that save() with the same arguments would give."""

    def save(self, p0: int = 0, p1: int | None = None, *, partial: bool = False) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """
        The state at positions [p0, p1), as llama.cpp writes it: uint8, shape (n,). The array owns its data. Of windowed layers the window before p1 is copied. `partial` copies windowed and recurrent layers only, see rewind(). Raises CannotTrim where there is no state for that range. A pending shift is applied first, which loses the logits.
        """

    def save_into(self, out: Buffer | numpy.typing.NDArray[numpy.uint8], p0: int = 0, p1: int | None = None, *, partial: bool = False) -> int:
        """
        save() into a buffer that can be written to; returns the number of bytes.
        """

    def state_tokens(self, state: Buffer | numpy.typing.NDArray[numpy.uint8]) -> int:
        """
        Number of tokens that a saved state is of. Raises BadState like restore(). Recurrent state alone tells its last position only: then as if the tokens began at position 0.
        """

    def restore(self, state: Buffer | numpy.typing.NDArray[numpy.uint8], tokens: _Sequence[int]) -> None:
        """
        Replace what the sequence holds by a saved state and the tokens that it is of. The bytes are checked against this model and context first: BadState, and all is as it was, where they differ. Nothing can tell whether the numbers in them are those of these tokens; values that are no numbers spoil the whole context until Memory.clear(). There are no logits until the next step.
        """

    def append(self, state: Buffer | numpy.typing.NDArray[numpy.uint8], tokens: _Sequence[int]) -> None:
        """
        Add the saved state of a range of positions after what the sequence holds. Checked like restore().
        """

    def rewind(self, partial: Buffer | numpy.typing.NDArray[numpy.uint8], tokens: _Sequence[int]) -> None:
        """
        Go back to these tokens, which the sequence begins with, by the partial state that was saved when it held just them. For windowed and hybrid models, where a cut alone cannot. Checked like restore().
        """

    def save_on_device(self) -> DeviceState:
        """
        Copy the state within the device's memory. Saving the sequence again takes the copy's place. Raises BadArgument with quantised KV or without flash-attention, where llama.cpp cannot do that.
        """

    def restore_on_device(self, state: DeviceState) -> None:
        """
        Replace what the sequence holds by its last save_on_device(). Raises BadState for any other.
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

class Adapter:
    """
    A LoRA adapter for one model, which it keeps alive. A context that uses it keeps it alive too, whatever happens to this object.
    """

    def close(self) -> None:
        """Free what this object holds. Safe to call twice and from any thread."""

    @property
    def closed(self) -> bool:
        """True after close()."""

    def __enter__(self) -> Adapter: ...

    def __exit__(self, *exception: object) -> None: ...

    @staticmethod
    def load(model: Model, path: str) -> Adapter:
        """
        Load a LoRA adapter from a GGUF file. Raises BadModelFile if the file is damaged, is no LoRA adapter, or was made for another architecture or for weights of other shapes.
        """

    def metadata(self) -> dict[str, str]:
        """GGUF metadata, scalars only, as text."""

    @property
    def path(self) -> str:
        """The file that it came from."""

    @property
    def invocation_tokens(self) -> list[int]:
        """
        Of an activated LoRA (aLoRA): the tokens from which on it is meant to be set. Empty for others.
        """

class Chunk:
    """
    A piece of a prompt: text, or what is encoded at once of an image or a sound.
    """

    @property
    def kind(self) -> Literal['text', 'image', 'audio']:
        """text, image or audio."""

    @property
    def tokens(self) -> list[int]:
        """Token ids of text; empty for media."""

    @property
    def n_tokens(self) -> int:
        """Cells of KV memory that it takes."""

    @property
    def n_positions(self) -> int:
        """
        Positions that it takes: fewer than tokens where those of an image are two-dimensional (M-RoPE).
        """

    @property
    def id(self) -> str | None:
        """
        Of media: the SHA-256 of the array (kind, shape and bytes), and which part of it this is.
        """

    def __repr__(self) -> str: ...

class Multimodal:
    """
    A projector (mmproj) for a model, which it keeps alive: turns images and sounds into embeddings that the model reads like tokens.
    """

    def close(self) -> None:
        """Free what this object holds. Safe to call twice and from any thread."""

    @property
    def closed(self) -> bool:
        """True after close()."""

    def __enter__(self) -> Multimodal: ...

    def __exit__(self, *exception: object) -> None: ...

    @staticmethod
    def load(model: Model, path: str, *, n_threads: int = 1, use_gpu: bool = True, image_min_tokens: int = 0, image_max_tokens: int = 0) -> Multimodal:
        """
        Load a projector from a GGUF file. Raises BadModelFile if it is damaged, is no projector or was made for another model. `image_min_tokens` and `image_max_tokens` bound the tokens of an image where its size decides them; 0 leaves it to the file.
        """

    @property
    def supports_vision(self) -> bool:
        """True if it takes images."""

    @property
    def supports_audio(self) -> bool:
        """True if it takes sounds."""

    @property
    def audio_sample_rate(self) -> int:
        """Of sounds, in Hz; 0 if it takes none."""

    @property
    def marker(self) -> str:
        """What stands for an image or a sound in a text."""

    @property
    def n_embd(self) -> int:
        """Width of an embedding."""

    def tokenize(self, text: str, media: _Sequence[numpy.typing.NDArray[numpy.uint8] | numpy.typing.NDArray[numpy.float32]], add_special: bool = True, parse_special: bool = True) -> list[Chunk]:
        """
        Cut a text and its media into chunks. The n-th marker in `text` stands for the n-th of `media`: images are uint8 arrays of shape (height, width, 3), RGB; sounds are float32 arrays of shape (n_samples,), mono at audio_sample_rate, -1 to 1. Raises BadArgument if markers and media do not match.
        """

    def encode(self, chunk: Chunk) -> numpy.typing.NDArray[numpy.float32]:
        """
        The embeddings of an image or a sound: float32, shape (n_tokens, n_embd). The array owns its data. One step, which the abort flag does not end.
        """

    def evaluate(self, sequence: Sequence, chunk: Chunk, embeddings: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        Read an image or a sound into a sequence, after what it holds; `embeddings` are what encode() gave for `chunk`. Steps of n_batch tokens, which the abort flag ends. Token ids in the ledger are -1. All or nothing: after Aborted or DecodeError the sequence is as it was, or empty where it cannot be cut. Raises BadArgument if tokens that see each other both ways are more than n_batch or n_ubatch.
        """
