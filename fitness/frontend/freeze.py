"""Writes the chosen autotune configuration into the source, so that the exported kernel runs what was evaluated."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import libcst as cst

from fitness.frontend.plan import Config

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


def freeze(source: str, chosen: Mapping[str, Config]) -> str:
    """`source` with the `configs` of each autotuned kernel in `chosen` reduced to the chosen one.

    The decorator stays: Triton uses a single configuration without measuring it, and a user can add others by hand.
    Returns "" if no kernel is autotuned, if a setting is neither number nor text (`tl.float16`), or if libcst cannot
    read the source.
    """
    if not chosen or not all(_is_plain(v) for config in chosen.values() for v in _settings(config).values()):
        return ""
    try:
        return cst.parse_module(source).visit(_Freezer(chosen)).code
    except cst.ParserSyntaxError:
        return ""


def _named(config: Config) -> dict[str, str]:
    """The settings in the configuration's label, by name, as texts.

    The quantifiers are possessive, so matching cannot backtrack: a candidate could write a label that takes minutes.
    """
    return dict(re.findall(r"\b(\w++)\s*+[:=]\s*+(\w*+)", config.label))


def _settings(config: Config) -> dict[str, Any]:
    return {n: config.args[n] for n in _named(config) if n in config.args and n not in _OPTIONS}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))


def _expression(config: Config) -> cst.BaseExpression:
    """`[triton.Config({...}, num_warps=...)]`."""
    named, settings = _named(config), _settings(config)
    # The label calls an option None if the launch sets it; the launch still does.
    options = {n: config.options[n] for n in named if n in _OPTIONS and named[n] != "None" and n in config.options}
    keywords = "".join(f", {name}={value!r}" for name, value in options.items())
    return cst.parse_expression(f"[triton.Config({settings!r}{keywords})]")


class _Freezer(cst.CSTTransformer):
    def __init__(self, chosen: Mapping[str, Config]) -> None:
        self._chosen = chosen

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        config = self._chosen.get(original_node.name.value)
        if config is None:
            return updated_node
        decorators = [_with_only(config, d) for d in updated_node.decorators]
        return updated_node.with_changes(decorators=decorators)


def _with_only(config: Config, decorator: cst.Decorator) -> cst.Decorator:
    """An autotune decorator with that configuration alone; other decorators as they are."""
    call = decorator.decorator
    if not (isinstance(call, cst.Call) and _last_name(call.func) == "autotune"):
        return decorator
    args = [
        arg.with_changes(value=_expression(config)) if _is_configs(i, arg) else arg for i, arg in enumerate(call.args)
    ]
    return decorator.with_changes(decorator=call.with_changes(args=args))


def _is_configs(position: int, arg: cst.Arg) -> bool:
    return arg.keyword.value == "configs" if arg.keyword else position == 0


def _last_name(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""
