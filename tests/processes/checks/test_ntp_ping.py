"""The checks `ntp` and `ping`, on loopback."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from scale0.monitoring.checks import ntp, ping
from scale0.monitoring.checks.check_run import BlockingCalls, CheckFailed, CheckRun, Deadline, RunState
from scale0.monitoring.checks.sockets import ResolvedAddress
from scale0.monitoring.protocol.results import UNKNOWN
from tests.processes.checks.servers import metrics, run, udp_server

pytestmark = pytest.mark.processes


def stamp(seconds):
    whole = int(seconds // 1)
    return (whole + ntp.EPOCH_SECONDS) % 2**32, int((seconds - whole) * 2**32)


def clock(ahead, flags=0x24, stratum=2, name=0):
    """A time server whose clock is so far ahead."""

    def answers(asked):
        received = stamp(time.time() + ahead)
        mark = struct.unpack("!2I", asked[40:48])
        sent = stamp(time.time() + ahead)
        return [ntp.PACKET.pack(flags, stratum, 0, 0, 0, 0, name, 0, 0, *mark, *received, *sent)]

    return answers


def checked(answers, timeout=5.0, **args):
    with udp_server(answers) as port:
        return run("ntp", timeout, server="127.0.0.1", port=port, **args)


@pytest.mark.parametrize(
    ("ahead", "state"), [(0, "ok"), (1.2, "warning"), (-1.2, "warning"), (60, "critical"), (-60, "critical")]
)
def test_the_offset_is_found_in_both_directions(ahead, state):
    found = checked(clock(ahead), samples=3)
    assert found.state == state, found
    values = metrics(found)
    assert values["offset_seconds"].value == pytest.approx(ahead, abs=0.2)
    assert 0 <= values["delay_seconds"].value < 1
    assert values["stratum"].value == 2
    if ahead:
        assert ("behind" if ahead > 0 else "ahead") in found.message


def test_a_server_that_does_not_know_the_time_is_not_believed():
    assert checked(clock(0, flags=0xE4)).state == "unknown"
    assert checked(clock(0, stratum=16)).state == "unknown"
    kiss = checked(clock(0, stratum=0, name=int.from_bytes(b"RATE", "big")))
    assert (kiss.state, "RATE" in kiss.message) == ("unknown", True)


def test_answers_to_others_are_passed_over():
    right = clock(0)

    def answers(asked):
        wrong = bytearray(right(asked)[0])
        wrong[24] ^= 1
        return [b"short", bytes(wrong), b"\x23" + right(asked)[0][1:], *right(asked)]

    assert checked(answers).state == "ok"


def test_a_silent_time_server_ends_with_the_timeout():
    found = checked(lambda asked: [], timeout=0.4)
    assert found.state == "critical"
    assert found.seconds is not None
    assert found.seconds < 0.4 + 1


def test_times_after_2036_are_read():
    later = 2_200_000_000.5
    for moment in (later, 1.7e9):
        seconds, fraction = stamp(moment)
        assert ntp.seconds_of(seconds, fraction, moment + 5) == moment


def is_allowed(family):
    """True if this system lets us send echoes."""
    try:
        ping.echo_socket(family).close()
    except CheckFailed:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_answers_echoes(host):
    found = run("ping", host=host, count=3, interval=0.05, family="ipv4")
    if not is_allowed(socket.AF_INET):
        assert found.state == "unknown"
        return
    assert found.state == "ok", found
    values = metrics(found)
    assert values["loss_percent"].value == 0
    assert 0 < values["rtt_min_seconds"].value <= values["rtt_seconds"].value <= values["rtt_max_seconds"].value < 1


def test_loopback_answers_echoes_of_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:  # a machine without it
        expected = {"critical", "unknown"}
    else:
        expected = {"ok"} if is_allowed(socket.AF_INET6) else {"unknown"}
    assert run("ping", host="::1", count=1).state in expected


def echoed(answers, **args):
    """The round trips over a socket whose other end answers as it likes."""
    wanted = ping.Args(host="127.0.0.1", interval=0.05, wait=0.3, **args)
    with udp_server(answers) as port, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        target = ResolvedAddress(socket.AF_INET, ("127.0.0.1", port))
        sock.connect(target.address)
        around = CheckRun("ping", Deadline(5.0), RunState(), BlockingCalls(), None)
        return ping.Echoes(sock, target, wanted, around).exchange()


def back(asked):
    return b"\0" + asked[1:]


def test_echoes_that_do_not_come_back_are_lost():
    questions = []

    def every_other(asked):
        questions.append(asked)
        return [back(asked)] if len(questions) % 2 else []

    assert len(echoed(every_other, count=4)) == 2
    assert echoed(lambda asked: [], count=2) == []


def test_an_echo_counts_once_and_only_with_our_mark():
    def strange(asked):
        wrong = bytearray(back(asked))
        wrong[10] ^= 1
        return [b"", b"\0", asked, bytes(wrong), back(asked), back(asked)]

    assert len(echoed(strange, count=3)) == 3


def test_a_host_that_cannot_be_reached_is_critical():
    expected = "critical" if is_allowed(socket.AF_INET) else "unknown"
    assert run("ping", host="255.255.255.255", count=1).state == expected


def test_where_the_system_allows_no_socket_it_says_so(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(CheckFailed, match=r"ping_group_range.*CAP_NET_RAW") as caught:
        ping.echo_socket(socket.AF_INET)
    assert caught.value.state == UNKNOWN


def test_the_checksum_of_a_message_with_its_checksum_is_nothing():
    for data in (b"", b"a", bytes(range(256)), b"\xff" * 99):
        even = data + bytes(len(data) % 2)
        assert ping.checksum(even + struct.pack("!H", ping.checksum(even))) == 0
