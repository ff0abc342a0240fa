"""Strict validation of bodies and queries, before any handler.

Litestar converts leniently (a text to a number, the last of two equal keys), so this module checks first and refuses
unknown keys, repeated keys and values of another type. Handlers get the value that it checked: nothing decodes a body
twice, and large ones are decoded in a thread only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec
from litestar import Litestar, Request
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition

from scale0.config import json_format
from scale0.http.auth.authorization import caller_of
from scale0.http.problem import ApiProblem
from scale0.kernel import time_text
from scale0.kernel.errors import ConfigError

JSON: Final = "application/json"
LARGE_BYTES: Final = 64 * 1024
"""A larger body of a user is checked in a thread."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DURATION: Final = re.compile(r"[1-9][0-9]{0,5}[smhdw]", re.ASCII)
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9:.]{5,15}(?:Z|[+-][0-9]{2}:[0-9]{2})?)?", re.ASCII)

Query = dict[str, bool]
"""The query parameters of a route, and whether each is an integer."""


def known_queries(app: Litestar) -> dict[int, Query]:
    found: dict[int, Query] = {}
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler, model in route.route_handler_map.values():
                fields = handler.parsed_fn_signature.parameters
                found[id(handler)] = {
                    one.field_alias: is_integer(fields.get(one.field_name)) for one in model.expected_query_params
                }
    return found


def is_integer(field: FieldDefinition | None) -> bool:
    return field is not None and (field.annotation is int or any(one.annotation is int for one in field.inner_types))


class CheckedRequest(Request[Any, Any, Any]):
    """A request whose body was checked before its handler."""

    checked: Any = None
    """The body as the type of the handler's `data`."""

    async def json(self) -> Any:
        """What Litestar makes the handler's `data` of. Without this it would decode the body itself, on the loop."""
        return self.checked


async def check(request: Request[Any, Any, Any]) -> None:
    """Check the query and the body of a request. Raises `ApiProblem`."""
    handler: Any = request.route_handler
    check_query(request.query_params.multi_items(), request.app.state.queries.get(id(handler), {}))
    field = handler.parsed_data_field
    if field is None:
        return
    headers = request.headers
    if field.is_optional and headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise ApiProblem(415, f"the body must be {JSON}, but its Content-Type is {kind[:60] or 'missing'}")
    body = await request.body()
    caller = caller_of(request)
    if caller is None or len(body) <= LARGE_BYTES:
        checked = body_of(body, field.annotation)
    else:
        checked = await request.app.state.documents.run(caller.name, lambda: body_of(body, field.annotation))
    cast(CheckedRequest, request).checked = checked


def check_query(given: Iterable[tuple[str, Any]], known: Query) -> None:
    seen: set[str] = set()
    for key, value in given:
        if key not in known:
            next_ = f"the parameters are {', '.join(sorted(known))}" if known else "this route has no parameters"
            raise ApiProblem(400, f"unknown parameter {key[:60]!r}", next_)
        if key in seen:
            raise ApiProblem(400, f"the parameter {key} is given more than once")
        if known[key] and not _INTEGER.fullmatch(value):
            raise ApiProblem(400, f"the parameter {key} must be an integer")
        seen.add(key)


def body_of(data: bytes, kind: Any) -> Any:
    """A body as its type. Raises `ApiProblem`, which names the invalid part."""
    try:
        text = data.decode("utf-8")
        value, twice = json_format.load(text, is_validated=False)
        if "\\u" in text:
            msgspec.json.encode(value)  # fails for half of a surrogate pair, which no answer could repeat
        if twice:
            [(path, _), *_] = json_format.line_numbers(text, 1)[1]
            raise ApiProblem(400, f"{'.'.join(map(str, path))[:100]} is given more than once")
        return msgspec.convert(value, kind, strict=True)
    except UnicodeDecodeError:
        raise ApiProblem(400, "the body is not UTF-8") from None
    except UnicodeEncodeError:
        raise ApiProblem(400, "the body has half of a surrogate pair") from None
    except (ConfigError, msgspec.ValidationError, RecursionError) as error:
        raise ApiProblem(400, f"invalid body: {error}"[:500]) from None


def duration_us(text: str) -> int:
    """Microseconds of 12h, 30d or 4w. Raises `ApiProblem`."""
    seconds = time_text.duration_seconds(text) if _DURATION.fullmatch(text) else None
    if seconds is None:
        raise ApiProblem(400, f"{text[:60]!r} is not a duration", "for example 90s, 30m, 12h, 7d or 4w")
    return seconds * time_text.MICROSECONDS


def time_us(text: str, now_us: int) -> int:
    """Microseconds since the epoch of 2026-11-01, 2026-11-01T12:30 (UTC unless it names a zone), or of a duration ago
    such as 2h. Raises `ApiProblem`."""
    is_valid = _DURATION.fullmatch(text) or _TIME.fullmatch(text)
    found = time_text.time_us(text, now_us) if is_valid else None
    if found is None:
        raise ApiProblem(400, f"{text[:60]!r} is not a time", "for example 2026-11-01, 2026-11-01T12:30 (UTC), or 2h")
    return found
