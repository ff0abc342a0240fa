"""Attacks on a broker that requires keys: no key, foreign keys, revoked keys, other identities, permissions, tokens."""

from __future__ import annotations

import base64
import time

import zmq
from zmq.utils import z85

from evidence import raw
from evidence.attacks_tasks import refused as refused_call
from evidence.attacks_tasks import submit
from evidence.attacks_wire import refused
from evidence.processes import command
from evidence.raw import Answer, Keyed, Pair, new_pair
from evidence.site import KEY_SECONDS, KEYS, Site, attack, given, must

ROUTERS = ("frontend", "backend", "peer")
PUBLISHERS = ("config_pub", "task_pub")
QUIET_SECONDS = 1.0
REVOKED_SECONDS = 6.0


def unanswered(connection: Keyed, what: str) -> None:
    answer = connection.manage("whoami", seconds=QUIET_SECONDS)
    must(answer.command == "silence", f"{what} was answered with {answer.text}")


@attack("CURVE-1", KEYS)
def connection_without_a_key(site: Site) -> str:
    """NULL at a socket that requires CURVE, on every port."""
    for name, endpoint in site.keyed.endpoints.items():
        made = raw.dial(endpoint)
        try:
            made.sendall(raw.greeting() + raw.ready() + raw.message([raw.MAGIC, b"REQUEST", PING]))
            made.settimeout(QUIET_SECONDS)
            heard = b""
            try:
                while more := made.recv(65_536):
                    heard += more
            except OSError:
                pass
        finally:
            made.close()
        must(b"REPLY" not in heard, f"a connection without a key was answered at {name}")
    return "not answered on any port"


PING = b'{"service":"scale0.ping","id":"no-key"}'


@attack("CURVE-1", KEYS)
def unknown_key(site: Site) -> str:
    for socket in ROUTERS:
        unanswered(site.with_key("", socket, new_pair()), f"an unknown key at {socket}")
    must(published(site, new_pair()) == 0, "an unknown key received what is published")
    return "not answered on any port"


def published(site: Site, pair: Pair) -> int:
    """How many messages a subscriber with this key receives; a beacon comes every second."""
    count = 0
    for socket in PUBLISHERS:
        subscriber: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        subscriber.set(zmq.LINGER, 0)
        subscriber.set(zmq.SUBSCRIBE, b"")
        subscriber.set(zmq.CURVE_SECRETKEY, pair.secret)
        subscriber.set(zmq.CURVE_PUBLICKEY, pair.public)
        subscriber.set(zmq.CURVE_SERVERKEY, site.server_key)
        subscriber.connect(site.keyed.endpoints[socket])
        count += bool(subscriber.poll(1_500))
        subscriber.close(linger=0)
    return count


@attack("CURVE-1", KEYS)
def key_of_another_role(site: Site) -> str:
    unanswered(site.with_key("alice", "backend"), "a frontend's key at the backend socket")
    unanswered(site.with_key("work", "frontend"), "a backend's key at the frontend socket")
    unanswered(site.with_key("alice", "peer"), "a frontend's key at the peer socket")
    return "not answered"


@attack("CURVE-2", KEYS)
def revoked_key(site: Site) -> str:
    """Within seconds it is useless, also on a connection that exists."""
    site.add_key("frontend", "leaver")
    made = site.with_key("leaver")
    given(made.ping(), "a stored key is not served")
    (site.keyed.data_dir / "keys" / "frontends" / "leaver.key").unlink()
    end = time.monotonic() + REVOKED_SECONDS
    while time.monotonic() < end and made.ping(0.5):
        time.sleep(0.1)
    must(not made.ping(0.5), f"a revoked key is served {REVOKED_SECONDS:.0f} s later")
    unanswered(site.with_key("leaver"), "a new connection with a revoked key")
    must(site.with_key("alice").ping(), "another key is not served")
    return "useless on old and new connections"


@attack("CURVE-5", KEYS)
def identity_of_another_key(site: Site) -> str:
    text = refused(site.with_key("work", "backend").register("other.1", "public.x"), 403)
    refused(site.with_key("work", "backend").register("nobody", "public.x"), 403)
    answer = site.with_key("work", "backend").call("node_connect", "other.2")
    refused_call(answer, -32030)
    return text


@attack("CURVE-6", KEYS)
def task_client_of_another_key(site: Site) -> str:
    alice, bob = site.with_key("alice"), site.with_key("bob")
    owner = site.unique("alice-client")
    alice.call("client_connect", owner)
    task = submit(alice, owner, "public.mail", ["secret"])
    refused_call(bob.call("client_connect", owner), -32010)
    refused_call(bob.call("client_task_status", owner, task), -32010)
    return refused_call(bob.call("client_task_cancel", owner, task), -32010)


@attack("CURVE-7", KEYS)
def ban_escaped_by_a_new_connection(site: Site) -> str:
    """An error client is a key."""
    site.add_key("frontend", "noisy")
    made = site.with_key("noisy")
    for _ in range(30):
        made.say("NONSENSE")
    made.ping(1.0)
    again = site.with_key("noisy")
    must(not again.ping(1.5), "a banned key is served on a new connection")
    must(site.with_key("alice").ping(), "another key is banned, too")
    return "ignored on a new connection"


@attack("PERM-1", KEYS)
def helen_without_permission(site: Site) -> str:
    """Services that read files of agents and notify people are closed."""
    made = site.with_key("alice")
    text = refused(made.ask("REQUEST", {"service": "helen.check", "id": 1, "timeout": 2}, b"{}"), 403)
    owner = site.unique("alice-helen")
    made.call("client_connect", owner)
    refused_call(made.call("client_new_task", owner, "helen.notify", []), -32040)
    return text


@attack("PERM-1", KEYS)
def call_that_no_rule_allows(site: Site) -> str:
    made = site.with_key("mallory")
    text = refused(made.ask("REQUEST", {"service": "private.pay", "id": 1, "timeout": 1}, b""), 403)
    owner = site.unique("mallory-client")
    made.call("client_connect", owner)
    refused_call(made.call("client_new_task", owner, "private.pay", []), -32040)
    allowed = made.ask("REQUEST", {"service": "public.x", "id": 2, "timeout": 0.3}, b"")
    must(allowed.code == 404, f"what a rule allows was answered with {allowed.text}")
    return text


@attack("PERM-1", KEYS)
def offer_that_no_rule_allows(site: Site) -> str:
    hired = site.with_key("hired", "backend")
    text = refused(hired.register("hired", "private.pay"), 403)
    node = site.with_key("hired", "backend")
    refused_call(node.call("node_connect", "hired.1", ["private.pay"]), -32040)
    return text


@attack("PERM-1", KEYS)
def task_that_no_rule_allows_to_take(site: Site) -> str:
    """A node asks for a task by its id, whose method it may not take."""
    alice, owner = site.with_key("alice"), site.unique("alice-client")
    alice.call("client_connect", owner)
    task = submit(alice, owner, "private.pay", ["secret"])
    node = site.with_key("hired", "backend")
    node.call("node_connect", "hired.2", ["public.mail"])
    return refused_call(node.call("node_task_request", "hired.2", task), -32040, -32020)


@attack("MGMT-1", KEYS)
def management_with_a_key_alone(site: Site) -> str:
    answer = site.with_key("alice").manage("status")
    must(answer.code == 401, f"answered with {answer.text}")
    return answer.text


@attack("CURVE-8", KEYS)
def enrol_without_a_token(site: Site) -> str:
    made = site.with_key("alice")
    options = {"name": "eve", "public_key": new_pair().public.decode()}
    text = refused(made.ask("ENROL", options), 403)
    must(not (site.keyed.data_dir / "keys" / "frontends" / "eve.key").exists(), "a key was stored without a token")
    return text


def join_token(site: Site, name: str) -> Pair:
    """The one-time key pair of a new join token for a frontend of this name."""
    folder = site.keyed.log.parent
    words = ("token", "frontend", "--name", name, "--data-dir", str(site.keyed.data_dir))
    done = command(site.source, folder, *words)
    text = next((line for line in done.stdout.splitlines() if line.startswith("s0join.")), "")
    given(bool(text), f"no token was issued: {done.stdout}{done.stderr}")
    packed = base64.urlsafe_b64decode(text.removeprefix("s0join.") + "==")
    secret = z85.encode(packed[33:65])
    return Pair(zmq.curve_public(secret), secret)


def accepted(site: Site, once: Pair) -> Keyed:
    """A connection with the key of a token, once the broker has read its folder; it must not be served."""
    end = time.monotonic() + KEY_SECONDS
    while True:
        made = site.with_key("", "frontend", once)
        answer = made.ask("REQUEST", {"service": "scale0.ping", "id": 1}, seconds=1.0)
        must(answer.command != "REPLY", "a token was served as a key")
        if answer.command != "silence":
            return made
        given(time.monotonic() < end, "a new token is not accepted")


@attack("CURVE-8", KEYS)
def token_used_twice(site: Site) -> str:
    """A token is exchanged once, for its name, and permits nothing else."""
    name = site.unique("joiner")
    once = join_token(site, name)
    made = accepted(site, once)
    own = new_pair()
    refused(made.ask("ENROL", {"name": f"{name}-other", "public_key": own.public.decode()}), 403)
    first = made.ask("ENROL", {"name": name, "public_key": own.public.decode()})
    given(first.command == "ENROLLED", f"a token was answered with {first.text}")
    again = site.with_key("", "frontend", once)
    options = {"name": name, "public_key": new_pair().public.decode()}
    second = again.ask("ENROL", options, seconds=2.0)
    must(second.command != "ENROLLED", "a token was accepted twice")
    other = made.ask("ENROL", {"name": f"{name}.x", "public_key": new_pair().public.decode()}, seconds=2.0)
    must(other.command != "ENROLLED", "a token made a second key on its connection")
    return f"ENROLLED once; then {second.text or Answer('silence', {}, []).text}"
