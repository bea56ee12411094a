"""The same weights in another quantisation: what a kernel is worth that takes several tokens at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, quants

ONE_BY_ONE: Final = {GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q5_0, GGMLQuantizationType.Q5_1}
"""llama.cpp multiplies these on a CPU with one token after the other."""


def as_q8_0(source: Path, target: Path) -> bool:
    """Write `source` with those weights as Q8_0; False, and nothing is written, where there are none."""
    reader = GGUFReader(source)
    if not any(tensor.tensor_type in ONE_BY_ONE for tensor in reader.tensors):
        return False
    writer = GGUFWriter(target, str(_value(reader, "general.architecture")))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    for tensor in reader.tensors:
        kind, data = tensor.tensor_type, tensor.data
        if kind in ONE_BY_ONE:
            data = quants.quantize(quants.dequantize(data, kind), GGMLQuantizationType.Q8_0)
            kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return True


def _value(reader: GGUFReader, name: str) -> object:
    field = reader.get_field(name)
    assert field is not None
    return field.contents()
