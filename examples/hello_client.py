"""Call a service. First: scale0 up, and scale0 worker hello_worker.py:worker. An argument is the broker's endpoint."""

import sys

import scale0

with scale0.Client(*sys.argv[1:]) as net:
    print(net.call("hello", "Ada"))
    print(net.call("hello", name="Grace"))

    # Many at once: at most 100 are in flight, and the results come in order.
    for greeting in net.map("hello", ["Edsger", "Barbara", "Donald"]):
        print(greeting)

    # An error is an exception with a code, one class for each.
    try:
        net.call("hello", name=42)
    except scale0.CallError as error:
        print(f"{type(error).__name__}: {error}")
