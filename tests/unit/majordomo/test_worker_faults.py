"""What workers must not say, where and in which form: counted, and answered by DISCONNECT."""

from __future__ import annotations

import pytest

from tests.wire.majordomo.town import DISCONNECT_02, EMPTY, READY, REQUEST, W02, Town
from tests.wire.majordomo.worker import DIALECT, NEW, OLD, address, ask, every_version


@every_version
@pytest.mark.parametrize("service", [b"mmi.service", b"mmi.anything", b"scale0.ping", b"scale0."])
def test_reserved_names_cannot_be_registered(version, service):
    town = Town()
    version.ready(town, "w1", service)
    version.ready(town, "w1", service)
    assert town.hears("w1") == 2 * [version.frames(version.bye)]
    assert town.member("w1") is None


def test_a_service_that_this_broker_does_not_serve_is_disconnect():
    town = Town(services=("echo",))
    NEW.ready(town, "w1", b"other")
    assert town.hears("w1") == [[W02, DISCONNECT_02]]
    NEW.ready(town, "w2", b"echo")
    assert town.hears("w2") == []


MALFORMED: dict[str, list[bytes | str]] = {
    "no command": [],
    "no service": [READY],
    "empty service": [READY, b""],
    "service not printable": [READY, b"a\nb"],
    "service not text": [READY, b"\xff\xfe"],
    "service too long": [READY, 256 * b"x"],
    "two services": [READY, b"a", b"b"],
    "unknown command": [b"\x07"],
    "long command": [b"\x01\x01", b"echo"],
    "a broker's command": [REQUEST, b"client", EMPTY, b"x"],
    "heartbeat with more": ["heartbeat", b"x"],
    "disconnect with more": ["disconnect", b"x"],
    "reply without address": ["reply"],
    "reply without delimiter": ["reply", b"client", b"x", b"y"],
    "reply cut short": ["reply", b"client"],
}


@every_version
@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_words_are_counted_and_answered_by_disconnect(version, case):
    names = {"heartbeat": version.beat, "disconnect": version.bye, "reply": version.last}
    said = [names[part] if isinstance(part, str) else part for part in MALFORMED[case]]
    town = Town()
    town.says("w1", *version.frames(*said))
    assert town.hears("w1") == [version.frames(version.bye)]
    assert town.connection("w1").account.bad.used == 1
    assert town.member("w1") is None


def test_a_reply_has_a_body_by_the_letter_and_may_lack_it_in_the_dialect():
    for version in (OLD, NEW, DIALECT):
        town = Town()
        version.ready(town, "w1")
        ask(town)
        client = address(town, version, "w1")
        town.says("w1", *version.frames(version.last, client, EMPTY))
        said = [frames[1] for frames in town.hears("client")]
        assert said == ([b"REPLY"] if version is DIALECT else [b"ERROR"])


def test_what_is_malformed_from_a_worker_on_the_list_ends_its_registration():
    town = Town()
    NEW.ready(town, "w1")
    town.says("w1", W02, b"\x99")
    assert town.hears("w1") == [[W02, DISCONNECT_02]]
    assert town.member("w1") is None


def test_ten_faults_are_borne_and_more_make_an_error_client():
    town = Town()
    for _ in range(11):
        town.says("w1", W02, b"\x99")
    assert town.connection("w1").account.banned_until is not None
    NEW.ready(town, "w1")
    assert town.member("w1") is None
    assert "client.refused" in town.kinds()


@every_version
@pytest.mark.parametrize("door", ["frontend", "peer"])
def test_workers_are_refused_on_the_other_doors(version, door):
    town = Town()
    town.says("w1", *version.frames(READY, b"echo"), door=door)
    assert town.hears("w1") == [version.frames(version.bye)]
    assert not town.broker.scheduler.offered("echo")
    found = town.broker.connections.find(door, b"w1")
    assert found is not None
    assert found.account.bad.used == 1
