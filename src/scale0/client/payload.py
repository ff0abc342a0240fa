"""Arguments and results as JSON bodies.

Lives here: one convention for calls and tasks. By position: an array. By name: an object. Both: an object whose key `*`
holds the array. No arguments: an empty body. A result is one JSON value. Never here: anything evaluated or unpickled.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_type_hints

import msgspec

from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.transport.core.codec import depth_within

MAX_DEPTH: Final = 64
POSITIONAL: Final = "*"
BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Arguments of a call, as its body."""
    if not kwargs:
        return _encode(args) if args else b""
    if not args:
        return _encode(kwargs)
    return _encode({POSITIONAL: args, **kwargs})


def encode(value: Any) -> bytes:
    """A result."""
    return _encode(value)


def body_of(arguments: dict[str, Any]) -> bytes:
    """What of a management command's arguments is its body: `config` or `body`, taken out of them."""
    config, body = arguments.pop("config", None), arguments.pop("body", None)
    given = body if config is None else config
    # By the plain library: NaN stays what it is, and the broker refuses it.
    return json.dumps(given).encode() if given is not None else b""


def decode(body: bytes) -> Any:
    """A result back; empty is None."""
    return _decode(body) if body else None


def decode_arguments(body: bytes) -> tuple[list[Any], dict[str, Any]]:
    """A body's arguments; `Refusal` if they are none."""
    if not body or body == b"[]":
        return [], {}
    if len(body) > MAX_DEPTH and not depth_within(body, MAX_DEPTH):
        raise Refusal(codes.MALFORMED, f"arguments nest deeper than {MAX_DEPTH}")
    try:
        value = _decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Refusal(codes.MALFORMED, f"the arguments are not JSON: {error}") from error
    if isinstance(value, list):
        return value, {}
    if isinstance(value, dict):
        args = value.pop(POSITIONAL, [])
        if isinstance(args, list):
            return args, value
    raise Refusal(codes.MALFORMED, "arguments are a JSON array (by position) or an object (by name)")


class Signature:
    """A function's own idea of its arguments: bound and converted by its annotations."""

    __slots__ = ("_least", "_most", "_places", "_plain", "_signature", "_types")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        try:
            hints = get_type_hints(function)
        except Exception:  # an annotation that cannot be resolved only costs the conversion
            hints = {}
        self._types = {name: hints[name] for name in self._signature.parameters if name in hints}
        self._plain = not self._types
        by_place = [one for one in self._signature.parameters.values() if one.kind in BY_PLACE]
        others = [one for one in self._signature.parameters.values() if one.kind not in BY_PLACE]
        is_simple = all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in others)
        self._places = tuple((one.name, self._types.get(one.name, Any)) for one in by_place)
        self._least = sum(one.default is one.empty for one in by_place)
        self._most = len(by_place) if is_simple else -1
        """With so many arguments, all by position, there is nothing to be bound."""

    def bind(self, body: bytes) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments in a body, as the function takes them."""
        args, kwargs = decode_arguments(body)
        if not kwargs and self._least <= len(args) <= self._most:
            if not self._plain:
                for place, value in enumerate(args):
                    name, wanted = self._places[place]
                    if wanted is not Any and type(value) is not wanted:
                        args[place] = self._convert(name, value)
            return args, kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Refusal(codes.MALFORMED, str(error)) from error
        if not self._plain:
            for name, value in bound.arguments.items():
                if name in self._types:
                    bound.arguments[name] = self._convert(name, value)
        return bound.args, bound.kwargs

    def _convert(self, name: str, value: Any) -> Any:
        wanted = self._types[name]
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            wanted = tuple[wanted, ...]  # type: ignore[valid-type]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            wanted = dict[str, wanted]  # type: ignore[valid-type]
        try:
            return msgspec.convert(value, wanted)
        except msgspec.ValidationError as error:
            raise Refusal(codes.MALFORMED, f"{name}: {error}") from error
        except TypeError:
            # A type that means nothing in JSON is the function's own business.
            return value
