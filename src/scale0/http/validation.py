"""Bodies and queries, read strictly: what a route does not know is refused, and nothing is guessed.

Lives here: one check for all routes, before any handler. Never here: what a value means. Litestar converts what it
reads as kindly as it can (a text may be a number, a key may be there twice): this looks first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from litestar import Litestar, Request
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition

from scale0.config import json_format
from scale0.http.problem import ApiProblem
from scale0.kernel.errors import ConfigError

JSON: Final = "application/json"

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)

Query = dict[str, bool]
"""What a route takes in its query, and whether that is a whole number."""


def known_queries(app: Litestar) -> dict[int, Query]:
    """What each handler takes in its query."""
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
    """True for a parameter that is a whole number, or nothing."""
    return field is not None and (field.annotation is int or any(one.annotation is int for one in field.inner_types))


async def check(request: Request[Any, Any, Any]) -> None:
    """The query's keys and the body of a request. Raises `ApiProblem`."""
    handler: Any = request.route_handler
    check_query(request.query_params.multi_items(), request.app.state.queries.get(id(handler), {}))
    field = handler.parsed_data_field
    if field is None:
        return
    if field.is_optional and request.headers.get("content-length", "0") == "0" and not is_chunked(request):
        return
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise ApiProblem(415, f"the body is {kind[:60] or 'of no kind'}, not {JSON}")
    body_of(await request.body(), field.annotation)


def is_chunked(request: Request[Any, Any, Any]) -> bool:
    """True if a body may come whose length nobody said."""
    return "transfer-encoding" in request.headers


def check_query(given: Iterable[tuple[str, Any]], known: Query) -> None:
    """Every key is known, and there once, and a number is one."""
    seen: set[str] = set()
    for key, value in given:
        if key not in known:
            words = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            raise ApiProblem(400, f"unknown parameter {key[:60]!r}", words)
        if key in seen:
            raise ApiProblem(400, f"the parameter {key} is given twice")
        if known[key] and not _INTEGER.fullmatch(value):
            raise ApiProblem(400, f"the parameter {key} is a whole number")
        seen.add(key)


def body_of(data: bytes, kind: Any) -> Any:
    """A body as its type. Raises `ApiProblem`, which says where it is wrong."""
    try:
        text = data.decode("utf-8")
        value, twice = json_format.load(text)
        if twice:
            [(path, _), *_] = json_format.places(text)[1]
            raise ApiProblem(400, f"{'.'.join(map(str, path))[:100]} is there twice")
        return msgspec.convert(value, kind, strict=True)
    except UnicodeDecodeError:
        raise ApiProblem(400, "the body is not UTF-8") from None
    except ConfigError as error:
        raise ApiProblem(400, f"the body is not as it should be: {error}"[:500]) from None
    except (msgspec.ValidationError, RecursionError) as error:
        raise ApiProblem(400, f"the body is not as it should be: {error}"[:500]) from None
