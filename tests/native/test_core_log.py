"""llama.cpp's log: into the ring buffer, into error messages, into the logger, and onto no file descriptor."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from native.core import make_context, run_apart

from ipyllama import _core
from ipyllama.engine import native_log
from ipyllama.errors import BadModelFile


def test_lines_come_in_order_with_their_levels(tiny) -> None:
    mark = _core.log_next()
    _core.Model.load(str(tiny("llama")))
    lines = _core.log_since(mark)
    assert [number for number, _, _ in lines] == list(range(mark, _core.log_next()))
    assert {level for _, level, _ in lines} <= {1, 2, 3, 4}
    assert any("general.architecture" in text for _, _, text in lines)
    assert not any(text.endswith("\n") for _, _, text in lines)
    assert _core.log_since(_core.log_next()) == []


def test_the_buffer_keeps_the_newest_lines(tiny) -> None:
    for _ in range(12):
        _core.Model.load(str(tiny("llama")))
    lines = _core.log_since(0)
    assert len(lines) == 512
    assert lines[-1][0] == _core.log_next() - 1


def test_an_error_carries_only_its_own_lines(tmp_path: Path) -> None:
    messages = []
    for name, content in (("one", b"JUNK" * 9), ("two", b"GGUF")):
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(content)
        with pytest.raises(BadModelFile) as caught:
            _core.Model.load(str(file))
        messages.append(str(caught.value))
    assert "invalid magic" in messages[0]
    assert "invalid magic" not in messages[1]
    assert "one.gguf" not in messages[1]


def test_the_logger_gets_each_line_once(tiny, caplog: pytest.LogCaptureFixture) -> None:
    native_log.forward()
    with caplog.at_level(logging.DEBUG, logger="ipyllama.llama_cpp"):
        model = _core.Model.load(str(tiny("llama")))
        make_context(model, n_ctx=8192)  # more than it was trained on: a warning
        native_log.forward()
        records = list(caplog.records)
        native_log.forward()
    assert caplog.records == records
    assert any(record.levelno == logging.DEBUG and "general.architecture" in record.getMessage() for record in records)
    assert any(record.levelno == logging.INFO and "n_ctx_train" in record.getMessage() for record in records)


def test_no_word_on_stdout_or_stderr(tiny, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _core.system_info(), _core.devices(), _core.build_info()
    (tmp_path / "bad.gguf").write_bytes(tiny("llama").read_bytes()[:-500])
    for path in (tiny("llama"), tmp_path / "bad.gguf", tmp_path / "missing.gguf"):
        try:
            sequence = _core.Sequence(make_context(_core.Model.load(str(path))))
        except BadModelFile:
            continue
        sequence.decode([1, 2, 3])
    assert capfd.readouterr() == ("", "")


def test_not_even_when_it_is_the_first_thing_in_a_process(tmp_path: Path) -> None:
    code = """
    import sys
    from ipyllama import _core
    from ipyllama.errors import BadModelFile
    try:
        _core.Model.load(sys.argv[1])
    except BadModelFile:
        pass
    _core.devices(), _core.system_info()
    """
    assert run_apart(code, tmp_path) == ""


def test_what_it_was_built_from() -> None:
    info = _core.build_info()
    assert set(info) >= {"version", "llama_cpp_commit", "options", "compiler", "build_type"}
    assert _core.__version__ == info["version"]
    assert "CPU" in _core.system_info()
    assert any(name == "CPU" for name, _ in _core.devices())
