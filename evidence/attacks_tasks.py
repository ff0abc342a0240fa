"""Attacks on tasks and on management without keys: other clients' tasks, leases that are not held, roles and tokens."""

from __future__ import annotations

import json
import time
from typing import Any

from evidence.raw import Connection, Raw
from evidence.site import ADMIN, PASSWORD, Site, attack, given, must


def client(site: Site) -> tuple[Raw, str]:
    """A task client with an id of its own."""
    made = site.raw()
    answer = made.call("client_connect", site.unique("client"))
    assert answer is not None, "client_connect was not answered"
    return made, answer["result"]


def node(site: Site, method: str) -> tuple[Raw, str]:
    made = site.raw("backend")
    answer = made.call("node_connect", site.unique("node"), [method])
    assert answer is not None, "node_connect was not answered"
    return made, answer["result"]


def submit(made: Connection, owner: str, method: str, params: Any = (), **options: Any) -> str:
    answer = made.call("client_new_task", owner, method, list(params), None, options)
    given(answer is not None and "result" in answer, f"a task was not accepted: {answer}")
    assert answer is not None
    return str(answer["result"])


def code(answer: dict[str, Any] | None) -> int | None:
    return None if answer is None else answer.get("error", {}).get("code")


def refused(answer: dict[str, Any] | None, *codes: int) -> str:
    must(code(answer) in codes, f"answered with {str(answer)[:120]}, not with {codes}")
    assert answer is not None
    return f"{code(answer)} {answer['error'].get('message', '')[:70]}"


@attack("TASK-12")
def task_of_another_client(site: Site) -> str:
    """Its status, its result, a wait for it and its cancellation: it is unknown."""
    method = site.unique("private")
    (own, owner), (thief, stranger) = client(site), client(site)
    task = submit(own, owner, method, ["secret"])
    refused(thief.call("client_task_status", stranger, task), -32020)
    refused(thief.call("client_task_wait", stranger, [task], 0), -32020)
    refused(thief.call("client_task_cancel", stranger, task), -32020)
    refused(thief.call("client_new_task", stranger, method, [], None, {"after": [task]}), -32020)
    worker, name = node(site, method)
    worker.call("node_task_request", name, task)
    worker.call("node_task_finished", name, task, "secret result")
    text = refused(thief.call("client_task_result", stranger, task), -32020)
    answer = own.call("client_task_result", owner, task)
    must(answer is not None and answer.get("result") == "secret result", f"its own client reads {answer}")
    return text


@attack("TASK-4")
def task_id_that_is_taken(site: Site) -> str:
    (own, owner), (thief, stranger) = client(site), client(site)
    method, name = site.unique("m"), site.unique("task")
    own.call("client_new_task", owner, method, ["mine"], name)
    return refused(thief.call("client_new_task", stranger, method, ["theirs"], name), -32020)


@attack("TASK-4")
def key_with_other_params(site: Site) -> str:
    """The same key is one task; with other params or another method it is refused."""
    own, owner = client(site)
    method = site.unique("m")
    first = submit(own, owner, method, [1], key="k")
    must(submit(own, owner, method, [1], key="k") == first, "one key made two tasks")
    refused(own.call("client_new_task", owner, method + "x", [1], None, {"key": "k"}), -32022)
    return refused(own.call("client_new_task", owner, method, [2], None, {"key": "k"}), -32022)


@attack("TASK-4")
def key_of_a_finished_task(site: Site) -> str:
    own, owner = client(site)
    method = site.unique("m")
    task = submit(own, owner, method, [1], key="k")
    worker, name = node(site, method)
    worker.call("node_task_request", name, task)
    worker.call("node_task_finished", name, task, 1)
    must(submit(own, owner, method, [1], key="k") == task, "the key of a finished task made another one")
    return "the same task"


@attack("TASK-5")
def result_for_a_lease_of_another(site: Site) -> str:
    """A node that does not hold a task cannot end it, nor can a native backend."""
    method = site.unique("m")
    own, owner = client(site)
    task = submit(own, owner, method)
    (holder, held), (thief, other) = node(site, method), node(site, method)
    got = holder.call("node_task_request", held, task)
    given(bool(got and got.get("result")), f"the task was not handed out: {got}")
    text = refused(thief.call("node_task_finished", other, task, "stolen"), -32020, -32021)
    refused(thief.call("node_task_failed", other, task, {"code": 1, "message": "stolen"}), -32020, -32021)
    native = site.raw("backend")
    native.register(site.unique("native"), site.unique("x"))
    native.say("TASKSDONE", {}, json.dumps([{"id": task, "attempt": 1, "result": "stolen"}]).encode())
    said = native.hear_one_of("TASKSOK", "DISCONNECTERROR", seconds=5.0)
    codes = [row[2] for row in json.loads(said.bodies[0])] if said and said.bodies else []
    must(200 not in codes, f"a native backend ended a task of another: {codes}")
    must(code(own.call("client_task_result", owner, task)) == -32050, "the task has ended")
    answer = holder.call("node_task_finished", held, task, "true")
    must(answer is not None and answer.get("result") is True, f"the holder's result was refused: {answer}")
    return f"{text}; TASKSOK {codes}"


@attack("TASK-5")
def second_result(site: Site) -> str:
    """A stored end never changes."""
    method = site.unique("m")
    own, owner = client(site)
    task = submit(own, owner, method)
    worker, name = node(site, method)
    worker.call("node_task_request", name, task)
    worker.call("node_task_finished", name, task, "first", 1)
    text = refused(worker.call("node_task_finished", name, task, "second", 1), -32020, -32021)
    own.call("client_task_cancel", owner, task)
    answer = own.call("client_task_result", owner, task)
    must(answer is not None and answer.get("result") == "first", f"the result is now {answer}")
    return text


@attack("TASK-5")
def result_of_an_old_attempt(site: Site) -> str:
    """A node that lost its task and is late."""
    method = site.unique("m")
    own, owner = client(site)
    task = submit(own, owner, method)
    first, name = node(site, method)
    first.call("node_task_request", name, task)
    first.call("node_disconnect", name)
    again = first.call("node_connect", name, [method])
    assert again is not None
    got = first.call("node_task_request", name, task)
    attempt = (got or {}).get("result", {}).get("attempt")
    must(attempt == 2, f"the second hand-out has the attempt {attempt}")
    text = refused(first.call("node_task_finished", name, task, "late", 1), -32020, -32021)
    must(code(own.call("client_task_result", owner, task)) == -32050, "an old attempt ended the task")
    return text


@attack("TASK-7")
def more_attempts_than_allowed(site: Site) -> str:
    """A poison task ends `failed` after max_attempts."""
    method = site.unique("poison")
    own, owner = client(site)
    task = submit(own, owner, method, max_attempts=2)
    worker, name = node(site, method)
    for _ in range(2):
        end = time.monotonic() + 5
        while time.monotonic() < end:
            got = worker.call("node_task_request", name, task)
            if got and got.get("result"):
                break
            time.sleep(0.05)
        worker.call("node_task_failed", name, task, {"code": 7, "message": "poison", "retry": True})
    status = own.call("client_task_status", owner, task)
    must(status is not None and status["result"]["status"] == "failed", f"after two attempts: {status}")
    return "failed"


@attack("TASK-3")
def task_before_its_time(site: Site) -> str:
    """A delayed task, and one that waits for another, are handed out to nobody."""
    method = site.unique("m")
    own, owner = client(site)
    late = submit(own, owner, method, delay=600)
    first = submit(own, owner, site.unique("never"))
    after = submit(own, owner, method, after=[first])
    worker, name = node(site, method)
    for task in (late, after):
        got = worker.call("node_task_request", name, task)
        must(got is not None and got.get("result") == {}, f"a task that waits was handed out: {got}")
    got = worker.call("node_tasks_request", name, 10)
    must(got is not None and got.get("result") == [], f"tasks that wait were handed out: {got}")
    return "{}"


@attack("TASK-10")
def one_task_for_two_nodes(site: Site) -> str:
    method = site.unique("m")
    own, owner = client(site)
    task = submit(own, owner, method)
    (one, first), (two, second) = node(site, method), node(site, method)
    got = [made.call("node_task_request", name, task) for made, name in ((one, first), (two, second))]
    held = [bool(answer and answer.get("result")) for answer in got]
    must(held == [True, False], f"two nodes asked for one task: {held}")
    return "the second gets {}"


@attack("TASK-22")
def cancelled_task_taken(site: Site) -> str:
    method = site.unique("m")
    own, owner = client(site)
    task = submit(own, owner, method)
    own.call("client_task_cancel", owner, task)
    worker, name = node(site, method)
    got = worker.call("node_task_request", name, task)
    must(not (got and got.get("result")), f"a cancelled task was handed out: {got}")
    given(worker.call("node_tasks_request", name, 10) is not None, "no answer")
    return f"{code(got)}"


@attack("CURVE-14")
def methods_of_the_other_socket(site: Site) -> str:
    made, owner = client(site)
    refused(made.call("node_connect", "evil"), -32601)
    worker, _ = node(site, site.unique("m"))
    return refused(worker.call("client_new_task", owner, "m", []), -32601)


@attack("TASK-2")
def jsonrpc_that_is_none(site: Site) -> str:
    """One error for one invalid message."""
    made = site.raw()
    codes = []
    for data in (b"{", b"[]", b'{"jsonrpc":"1.0"}', b'{"jsonrpc":"2.0","method":"os.system","params":["id"],"id":1}'):
        made.send([data])
        frames = made.receive(5.0)
        must(frames is not None, f"{data!r} was not answered")
        assert frames is not None
        codes.append(json.loads(frames[0])["error"]["code"])
    must(codes == [-32700, -32600, -32600, -32601], f"answered with {codes}")
    return str(codes)


@attack("WIRE-5")
def deep_params(site: Site) -> str:
    made, owner = client(site)
    depth = 100_000
    head = f'{{"jsonrpc":"2.0","id":1,"method":"zerotask.broker.client_new_task","params":["{owner}","m",'.encode()
    made.send([head + b"[" * depth + b"]" * depth + b"]}"])
    frames = made.receive(5.0)
    must(frames is not None and b'"error"' in frames[0], f"answered with {frames and frames[0][:80]!r}")
    assert frames is not None
    return frames[0][:80].decode(errors="replace")


@attack("TASK-2")
def nan_as_params(site: Site) -> str:
    made, owner = client(site)
    head = f'{{"jsonrpc":"2.0","id":1,"method":"zerotask.broker.client_new_task","params":["{owner}","m",[NaN]]}}'
    made.send([head.encode()])
    frames = made.receive(5.0)
    must(frames is not None and b'"error"' in frames[0], f"answered with {frames and frames[0][:80]!r}")
    assert frames is not None
    return frames[0][:80].decode(errors="replace")


@attack("WIRE-5")
def params_over_the_limit(site: Site) -> str:
    made, owner = client(site)
    return refused(made.call("client_new_task", owner, "m", ["x" * (8 * 1024 * 1024 - 2_000)]), -32071)


@attack("WIRE-5")
def batch_of_too_many_calls(site: Site) -> str:
    made = site.raw()
    one = b'{"jsonrpc":"2.0","id":1,"method":"zerotask.broker.client_connect","params":[]}'
    made.send([b"[" + b",".join([one] * 10_001) + b"]"])
    frames = made.receive(10.0)
    must(frames is not None and frames[0][:1] == b"{" and b'"error"' in frames[0], "10,001 calls were accepted")
    assert frames is not None
    return frames[0][:80].decode(errors="replace")


@attack("WIRE-5")
def endless_waits(site: Site) -> str:
    """A connection has at most 1,000 open waits."""
    made, owner = client(site)
    task = submit(made, owner, site.unique("never"))
    for _ in range(1_000):
        request = {
            "jsonrpc": "2.0",
            "id": "w",
            "method": "zerotask.broker.client_task_wait",
            "params": [owner, [task], 30],
        }
        made.send([json.dumps(request).encode()])
    return refused(made.call("client_task_wait", owner, [task], 30), -32070)


@attack("WIRE-5")
def status_that_is_too_long(site: Site) -> str:
    worker, name = node(site, site.unique("m"))
    return refused(worker.call("node_status", name, "x" * 20_000), -32602)


@attack("MGMT-1")
def management_without_credentials(site: Site) -> str:
    made = site.raw()
    answers = [made.manage(word) for word in ("status", "list_tasks", "disable", "issue_token", "list_tokens")]
    must(all(answer.code == 401 for answer in answers), f"answered with {[one.code for one in answers]}")
    return answers[0].text


@attack("MGMT-1")
def forged_management_token(site: Site) -> str:
    made = site.raw()
    forged = [site.open.token[:-1] + ("a" if site.open.token[-1] != "a" else "b"), "s0_" + "A" * 43, "", "\0"]
    answers = [made.manage("status", auth_token=token) for token in forged]
    must(all(answer.code in (400, 401) for answer in answers), f"answered with {[one.code for one in answers]}")
    return answers[0].text


def issued(site: Site, role: str, ttl: float = 600) -> dict[str, Any]:
    answer = site.raw().manage("issue_token", auth_token=site.open.token, name=site.unique("t"), role=role, ttl=ttl)
    assert answer.code == 200, answer
    found: dict[str, Any] = json.loads(answer.bodies[0])
    return found


@attack("MGMT-1")
def role_that_is_too_low(site: Site) -> str:
    """A viewer changes nothing; an operator neither replaces documents nor redirects clients nor makes tokens."""
    viewer, operator = issued(site, "viewer")["token"], issued(site, "operator")["token"]
    made = site.raw()
    codes = [made.manage(word, auth_token=viewer, client="x", task_id="x").code for word in LOW]
    must(set(codes) == {403}, f"a viewer was answered with {dict(zip(LOW, codes, strict=True))}")
    patched = made.manage("patch_config", auth_token=operator, set={"network": "evil"}).code
    must(patched == 403, f"an operator that renames the network was answered with {patched}")
    codes = [made.manage(word, auth_token=operator, version=1, name="x", role="admin").code for word in HIGH]
    must(set(codes) == {403}, f"an operator was answered with {dict(zip(HIGH, codes, strict=True))}")
    return "403"


LOW = ("disable", "drain", "forgive", "retry_task", "cancel_task", "patch_config", "issue_token", "list_tokens")
HIGH = ("rollback_config", "issue_token", "list_tokens", "revoke_token")


@attack("MGMT-3")
def expired_and_revoked_token(site: Site) -> str:
    made = site.raw()
    short, revoked = issued(site, "viewer", ttl=1)["token"], issued(site, "viewer")
    given(made.manage("status", auth_token=revoked["token"]).code == 200, "a new token is not accepted")
    made.manage("revoke_token", auth_token=site.open.token, token_id=revoked["id"])
    time.sleep(1.5)
    codes = [made.manage("status", auth_token=token).code for token in (short, revoked["token"])]
    must(codes == [401, 401], f"an expired and a revoked token were answered with {codes}")
    return "401"


@attack("AUDIT-3")
def token_with_the_name_of_an_administrator(site: Site) -> str:
    made = site.raw()
    codes = [made.manage("issue_token", auth_token=site.open.token, name=name).code for name in (ADMIN, "local")]
    must(codes == [409, 409], f"answered with {codes}")
    return "409"


@attack("CONF-1")
def stale_base(site: Site) -> str:
    made = site.raw()
    change = {"network": site.unique("network")}
    newest = made.manage("patch_config", auth_token=site.open.token, set=change)
    given(newest.code == 200, f"a patch was answered with {newest.text}")
    answer = made.manage("patch_config", auth_token=site.open.token, set=change, base=0)
    must(answer.code == 409, f"a stale base was answered with {answer.text}")
    return answer.text


@attack("CONF-5")
def invalid_document(site: Site) -> str:
    made = site.raw()
    answer = made.manage("patch_config", auth_token=site.open.token, set={"default_heartbeat_interval": -1})
    must(answer.code == 400, f"answered with {answer.text}")
    return answer.text


@attack("MGMT-2")
def guessed_passwords(site: Site) -> str:
    """A wrong password is slow, and the right one is accepted beside it."""
    began = time.monotonic()
    answer = site.raw().manage("whoami", auth_id=ADMIN, auth_password="wrong")
    took = time.monotonic() - began
    must(answer.code == 401, f"a wrong password was answered with {answer.text}")
    must(took >= 0.2, f"a wrong password was answered after {took:.3f} s")
    right = site.raw().manage("whoami", auth_id=ADMIN, auth_password=PASSWORD)
    must(right.code == 200, f"the right password was answered with {right.text}")
    return f"401 after {took:.2f} s"
