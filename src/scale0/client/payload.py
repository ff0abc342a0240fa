"""Arguments and results as JSON bodies, for calls and tasks alike.

Positional arguments are an array, keyword arguments an object; with both, the object's key `*` holds the array. No
arguments are an empty body. A result is one JSON value.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_type_hints

import msgspec

from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.kernel.json_text import MAX_BODY_EXPONENTS, SHORT_BYTES, has_slow_numbers
from scale0.transport.core.codec import depth_within

MAX_DEPTH: Final = 64
POSITIONAL: Final = "*"
POSITIONAL_KINDS: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

BUILTINS: Final = (bytes, bytearray, memoryview)
"""Types that the search for numbers need not convert."""

_encode: Final = msgspec.json.Encoder().encode
_decode_plain: Final = msgspec.json.Decoder().decode


def encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    if not kwargs:
        return encode(args) if args else b""
    if not args:
        return encode(kwargs)
    return encode({POSITIONAL: args, **kwargs})


def encode(value: Any) -> bytes:
    """A value in JSON; ValueError if it contains a number that JSON does not have."""
    body = _encode(value)
    # msgspec turns NaN and infinity into null: only a body with null is searched.
    if value is not None and b"null" in body and _has_no_json(value):
        raise ValueError("JSON has neither NaN nor infinity, and this value contains NaN or infinity: use None or text")
    return body


def _has_no_json(value: Any) -> bool:
    """True if there is NaN or infinity in a value that can be encoded."""
    waiting = [msgspec.to_builtins(value, builtin_types=BUILTINS, str_keys=True, enc_hook=str)]
    while waiting:
        one = waiting.pop()
        if type(one) is float and not math.isfinite(one):
            return True
        if type(one) is dict:
            waiting += one.values()
        elif type(one) in (list, tuple):
            waiting += one
    return False


def body_of(arguments: dict[str, Any]) -> bytes:
    """Remove `config` or `body` from the arguments of a management command, and encode it as the message's body."""
    config, body = arguments.pop("config", None), arguments.pop("body", None)
    given = body if config is None else config
    # The standard library encodes NaN, and the broker rejects it; msgspec would turn it into null.
    return json.dumps(given).encode() if given is not None else b""


def decode(body: bytes) -> Any:
    return _decode(body) if body else None


def finite(text: str) -> float:
    """A number with a fraction or an exponent, as msgspec reads it."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is out of range")
    return number


_decode_slow: Final = msgspec.json.Decoder(float_hook=finite).decode


def _decode(body: bytes) -> Any:
    """Decode JSON. Many numbers that msgspec decodes slowly are read by Python, between whose calls other threads run:
    a worker must not miss its heartbeats because of an argument."""
    if len(body) > SHORT_BYTES and has_slow_numbers(body, MAX_BODY_EXPONENTS):
        return _decode_slow(body)
    return _decode_plain(body)


def decode_arguments(body: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in a body; `Refusal` if it does not hold any."""
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
    """The parameters of a function: binds arguments, and converts them by its annotations."""

    __slots__ = ("_max_positional", "_min_positional", "_plain", "_positional", "_signature", "_types")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        try:
            hints = get_type_hints(function)
        except Exception:  # without type hints nothing is converted
            hints = {}
        self._types = {name: hints[name] for name in self._signature.parameters if name in hints}
        self._plain = not self._types
        positional = [one for one in self._signature.parameters.values() if one.kind in POSITIONAL_KINDS]
        others = [one for one in self._signature.parameters.values() if one.kind not in POSITIONAL_KINDS]
        is_simple = all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in others)
        self._positional = tuple((one.name, self._types.get(one.name, Any)) for one in positional)
        self._min_positional = sum(one.default is one.empty for one in positional)
        self._max_positional = len(positional) if is_simple else -1
        """With at most this many positional arguments, `inspect` need not bind them."""

    def bind(self, body: bytes) -> tuple[Sequence[Any], Mapping[str, Any]]:
        args, kwargs = decode_arguments(body)
        if not kwargs and self._min_positional <= len(args) <= self._max_positional:
            if not self._plain:
                for index, value in enumerate(args):
                    name, wanted = self._positional[index]
                    if wanted is not Any and type(value) is not wanted:
                        args[index] = self._convert(name, value)
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
            # A type without a JSON form is left to the function.
            return value
