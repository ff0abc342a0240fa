"""Durable tasks written from the message spec alone: pyzmq and JSON-RPC 2.0, no scale0. Two programs in one file:

    python raw_zerotask.py node [BACKEND TASK_PUB]       takes tasks of `words.count`, and finishes them
    python raw_zerotask.py client [FRONTEND [TEXT...]]   submits a task for each text, and prints what becomes of it

Every message to the broker is one frame of JSON. What a client was given an id for is on disk: kill the broker or the
node with -9, start it again, and the results still come.
"""

import json
import signal
import sys
import time

import zmq

METHOD = "words.count"
NOT_COMPLETE = -32050
PATIENCE = 30.0  # seconds that the client waits for a result
stopping = []


class Broker:
    """One connection to a broker, with one call at a time."""

    def __init__(self, endpoint):
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.connect(endpoint)
        self.count = 0

    def ask(self, method, *params):
        """The answer to `zerotask.broker.<method>(params)`: a dict with `result` or `error`; None if there is none."""
        self.count += 1
        request = {"jsonrpc": "2.0", "method": f"zerotask.broker.{method}", "params": params, "id": self.count}
        self.socket.send(json.dumps(request).encode())
        while self.socket.poll(2_000):
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.count:  # an older one came too late, and nobody waits for it any more
                return answer
        return None


# --- the node: it learns of tasks on a SUB socket, requests them, and reports their results


def work(params):
    """The work itself."""
    if not params[0]:
        raise ValueError("there is nothing to count")
    return len(params[0].split())


def take(broker, task_id):
    """A task was announced. Other nodes received it too: the first that requests it gets it, all others get `{}`."""
    task = (broker.ask("node_task_request", task_id) or {}).get("result")
    if not task:
        return
    try:
        broker.ask("node_task_finished", task_id, work(task["params"]))
    except ValueError as error:
        broker.ask("node_task_failed", task_id, {"code": 1, "message": str(error)})
    print("done", task_id, flush=True)


def node(backend, task_pub):
    """Serve until SIGTERM."""
    news = zmq.Context.instance().socket(zmq.SUB)
    news.setsockopt(zmq.SUBSCRIBE, f"task.{METHOD}".encode())  # new tasks, and again those that nobody took yet
    news.setsockopt(zmq.SUBSCRIBE, b"node")  # now and then: who is there?
    news.connect(task_pub)
    broker, node_id, interval, said = Broker(backend), None, 1.0, 0.0
    while not stopping:
        if time.monotonic() >= said + interval / 2:
            said = time.monotonic()
            if node_id is None or "result" not in (broker.ask("node_heartbeat", node_id) or {}):
                # The broker does not know this node: it is the first call, or the broker was restarted.
                answer = broker.ask("node_connect") or {}
                node_id = answer.get("result")
                print("ready", node_id, flush=True)
        if not news.poll(100):
            continue
        _topic, text = news.recv_multipart()
        notification = json.loads(text)
        params = notification["params"]
        if notification["method"] == "zerotask.node.broker_new_task" and params["method"] == METHOD:
            take(broker, params["task_id"])
        elif notification["method"] == "zerotask.node.broker_node_status":
            interval = params["heartbeat_interval"]
            broker.ask("node_status", node_id)
    broker.ask("node_disconnect", node_id)  # what it still had would be queued again at once


# --- the client: it submits, keeps the ids, and polls for results


def result(broker, client_id, task_id):
    """The result of a task, or its error, as text."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        answer = broker.ask("client_task_result", client_id, task_id) or {"error": {"code": NOT_COMPLETE}}
        if "result" in answer:
            return str(answer["result"])
        if answer["error"]["code"] != NOT_COMPLETE:
            return f"failed: {answer['error']['message']}"
        time.sleep(0.05)
    return "not complete yet"


def client(frontend, texts):
    """Submit all, then collect all."""
    broker = Broker(frontend)
    connected = broker.ask("client_connect")
    if connected is None:
        sys.exit(f"no broker answers at {frontend}")
    client_id = connected["result"]
    tasks = [broker.ask("client_new_task", client_id, METHOD, [text])["result"] for text in texts]
    for text, task_id in zip(texts, tasks, strict=True):
        print(f"{text!r}: {result(broker, client_id, task_id)}")
    broker.ask("client_disconnect", client_id)


def stop(*_):
    """SIGTERM: leave in order."""
    stopping.append(True)


signal.signal(signal.SIGTERM, stop)
match sys.argv[1:]:
    case ["node"]:
        node("tcp://127.0.0.1:5701", "tcp://127.0.0.1:5704")
    case ["node", backend_endpoint, task_pub_endpoint]:
        node(backend_endpoint, task_pub_endpoint)
    case ["client"]:
        client("tcp://127.0.0.1:5700", ["to be or not to be", ""])
    case ["client", frontend_endpoint, *words]:
        client(frontend_endpoint, words)
    case _:
        sys.exit(__doc__)
