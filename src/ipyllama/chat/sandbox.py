"""The jinja2 environment that chat templates run in: no files, no Python internals, nothing of ours but values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_LENGTH: Final = 1 << 24
"""Characters, or elements, of one value in a template."""


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here only a scope."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as a plain set)

    def parse(self, parser: Parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class SafeNamespace(Namespace):
    """A `namespace()` without underscore names: jinja2 would call a stored `__call__` unchecked."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self`: a template may store that name
        for name in dict(*args[1:], **kwargs):
            _check(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check(name)
        super().__setitem__(name, value)


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, which bounds `range`, with the operators bounded that make huge values out of little."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        size = right if operator == "**" else _length(left) * _length(right) if operator == "*" else 0
        if size > MAX_RANGE:
            raise OverflowError(f"a template may not compute {type(left).__name__} {operator} {right}")
        result = super().call_binop(context, operator, left, right)
        if hasattr(result, "__len__") and len(result) > MAX_LENGTH:
            raise OverflowError(f"a template may not make a {type(result).__name__} of {len(result):,}")
        return result


def environment(functions: Mapping[str, Callable[..., Any]]) -> Sandbox:
    """The environment, with `functions` as global names beside jinja2's own."""
    env = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = _to_json
    env.globals.update(functions, namespace=SafeNamespace)
    return env


def variables(source: str) -> set[str]:
    """The names that a template reads from outside; none where it does not compile."""
    try:
        return meta.find_undeclared_variables(environment({}).parse(source))
    except (TemplateError, RecursionError):
        return set()


def _length(value: Any) -> float:
    return len(value) if hasattr(value, "__len__") else value


def _check(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a template may not store {name!r} in a namespace")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes `<`, `>`, `&` and `'` for HTML, which a prompt must not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
