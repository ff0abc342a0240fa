"""Permissions of keys: which services a key may call, offer, submit to, take tasks of, and discover (PROTOCOL 15).

A rule is `ACTION:GLOB`, such as `call:orders.*`. Invariants: a rule to deny wins over every rule to allow; a key with
rules to allow for an action may do nothing else by this action, and a key without any may do everything; only a rule
that names `helen.` opens the services and tasks of Helens, because they read files of agents and notify people, and
because a backend that offers them gets what Helens are told; only a rule that names the ending opens the services by
which Helens transfer agents.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from scale0.transport.core.sockets import BACKEND, FRONTEND

CALL: Final = "call"
OFFER: Final = "offer"
SUBMIT: Final = "submit"
TAKE: Final = "take"
DISCOVER: Final = "discover"
ACTIONS_OF: Final[Mapping[str, tuple[str, ...]]] = {FRONTEND: (CALL, SUBMIT, DISCOVER), BACKEND: (OFFER, TAKE)}
"""The actions that a rule of a key may name, by the role of the key."""
HELEN_PREFIX: Final = "helen."
CLOSED_ACTIONS: Final = frozenset({CALL, SUBMIT, OFFER, TAKE})
"""The actions for which the services of Helens are closed, unless a rule names them."""
TRANSFERS: Final = (".release", ".has")
"""The endings of the services that Helens alone call: `helen.*` does not open them for CALL and SUBMIT, because they
move agents; `helen.*.release` does."""
DEFAULT_ALLOW: Final = ("*",)
MAX_RULES: Final = 64
"""Rules of one key to allow, and as many to deny."""
MAX_RULES_CHARS: Final = 4_096
"""The length of all rules of a key to allow, and of all to deny: they are one line of its file."""
MAX_DECISIONS: Final = 10_000
"""Decisions that are remembered."""
MAX_REMEMBERED_CHARS: Final = 255
"""A longer name is decided each time: names come from clients, and no service has one."""
MAX_SHOWN_CHARS: Final = 255

_RULE: Final = re.compile(r"([a-z]+):([!#-~]{1,255})", re.ASCII)


class KeyRules(NamedTuple):
    """The rules of one key, as its file has them."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


NO_RULES: Final = KeyRules()
OFFER_RULES: Final = (f"{OFFER}:{HELEN_PREFIX}*", f"{TAKE}:{HELEN_PREFIX}*")
TRUSTED_RULES: Final = KeyRules(
    (
        f"{CALL}:{HELEN_PREFIX}*",
        *(f"{CALL}:{HELEN_PREFIX}*{ending}" for ending in TRANSFERS),
        f"{SUBMIT}:{HELEN_PREFIX}*",
        *OFFER_RULES,
    )
)
"""What Helens may do besides, and programs on the broker's own machine, which can read its management token, too."""


def rules_error(role: str, rules: KeyRules) -> str:
    """Why these are no rules of a key with this role; blank if they are."""
    for some in rules:
        if len(some) > MAX_RULES or sum(map(len, some)) + len(some) > MAX_RULES_CHARS:
            return f"a key has at most {MAX_RULES} rules to allow and to deny each, of {MAX_RULES_CHARS} characters"
        for rule in some:
            found = _RULE.fullmatch(rule)
            if found is None or found[1] not in ACTIONS_OF.get(role, ()):
                actions = ", ".join(ACTIONS_OF.get(role, ())) or "none"
                return f"{rule[:MAX_SHOWN_CHARS]!r} is no rule ACTION:GLOB for a {role} (actions: {actions})"
    return ""


def read_rules(role: str, allow: str, deny: str) -> KeyRules:
    """The rules of a key's file; ValueError if they are not valid: a rule that cannot be read must not permit."""
    rules = KeyRules(tuple(allow.split()), tuple(deny.split()))
    error = rules_error(role, rules)
    if error:
        raise ValueError(error)
    return rules


def added(rules: KeyRules, more: Iterable[str]) -> KeyRules:
    """The rules with more to allow. An action without rules gets its default as well, so that a grant takes nothing
    away."""
    allow = list(rules.allow)
    for rule in more:
        action = rule.partition(":")[0]
        if not any(one.startswith(f"{action}:") for one in allow):
            allow += [f"{action}:{glob}" for glob in DEFAULT_ALLOW]
        if rule not in allow:
            allow.append(rule)
    return KeyRules(tuple(allow), rules.deny)


def why_not(user: str, rules: KeyRules, is_trusted: bool, action: str, service: str) -> str:
    """Why the key of this user may not do this to the service; blank if it may."""
    role, _, name = user.partition("/")
    if action not in ACTIONS_OF.get(role, ()):
        return _refusal(role, name, action, service, f"a {role} cannot")
    for glob in _globs(rules.deny, action):
        if _matches(glob, service):
            return _refusal(role, name, action, service, f"its rule to deny is {action}:{glob}")
    allow = _globs(rules.allow, action) or DEFAULT_ALLOW
    if is_trusted:
        allow = (*allow, *_globs(TRUSTED_RULES.allow, action))
    is_closed = action in CLOSED_ACTIONS and service.startswith(HELEN_PREFIX)
    if any(_matches(glob, service) for glob in allow if not is_closed or _opens(glob, action, service)):
        return ""
    # A Helen that joined with the token of a worker offers a dozen services: one command grants all.
    grants = OFFER_RULES if is_closed and role == BACKEND else (f"{action}:{service[:MAX_SHOWN_CHARS]}",)
    command = " ".join((f"scale0 keys permissions {role} {name}", *(f"--add {shlex.quote(rule)}" for rule in grants)))
    return _refusal(role, name, action, service, f"to grant it, run at the broker that stores the key: {command}")


def _opens(glob: str, action: str, service: str) -> bool:
    """Whether a rule with this glob opens a service of Helens."""
    endings = TRANSFERS if action in (CALL, SUBMIT) else ()
    named = all(glob.endswith(ending) for ending in endings if service.endswith(ending))
    return named and glob.startswith(HELEN_PREFIX)


def _refusal(role: str, name: str, action: str, service: str, reason: str) -> str:
    return f"the {role} key {name} may not {action} {service[:MAX_SHOWN_CHARS]}; {reason}"


def _globs(rules: Iterable[str], action: str) -> tuple[str, ...]:
    prefix = f"{action}:"
    return tuple(rule.removeprefix(prefix) for rule in rules if rule.startswith(prefix))


def _matches(glob: str, service: str) -> bool:
    """`*` stands for any characters, `?` for one; nothing else is special."""
    return re.fullmatch(fnmatch.translate(glob.replace("[", "[[]")), service) is not None


Granted = tuple[KeyRules, bool]
"""The rules of a key, and whether it is of a Helen, or of a program on the broker's own machine."""


class Permissions:
    """The decisions for the current keys, each made once."""

    def __init__(self) -> None:
        self._of_user: Mapping[str, Granted] = {}
        self._decisions: dict[tuple[str, str, str], str] = {}
        self._unruled: dict[tuple[str, str], bool] = {}
        """By user and action: whether no rule is about it, so that only services of Helens are closed."""

    def know(self, of_user: Mapping[str, Granted]) -> None:
        """Set the rules of the keys that have any, by user."""
        if of_user != self._of_user:
            self._of_user = of_user
            self._decisions, self._unruled = {}, {}

    def restriction(self, user: str, action: str) -> Granted | None:
        """What decides about this action for a user that has rules about it; the same for users with the same rules."""
        granted = self._of_user.get(user, (NO_RULES, False))
        rules, _ = granted
        return granted if _globs(rules.allow, action) or _globs(rules.deny, action) else None

    def why_not(self, user: str, action: str, service: str) -> str:
        """The reason of a refusal; blank: the action is permitted."""
        unruled = self._unruled.get((user, action))
        if unruled is None:
            unruled = self._is_unruled(user, action)
        if unruled and not service.startswith(HELEN_PREFIX):
            return ""
        asked = (user, action, service)
        found = self._decisions.get(asked)
        if found is None:
            found = why_not(user, *self._of_user.get(user, (NO_RULES, False)), action, service)
            if len(service) > MAX_REMEMBERED_CHARS:
                return found
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions = {}
            self._decisions[asked] = found
        return found

    def _is_unruled(self, user: str, action: str) -> bool:
        """Most keys have no rules, and a backend may offer 1,000 other services with each READY."""
        is_known = action in ACTIONS_OF.get(user.partition("/")[0], ())
        if len(self._unruled) >= MAX_DECISIONS:
            self._unruled = {}
        self._unruled[user, action] = unruled = is_known and self.restriction(user, action) is None
        return unruled
