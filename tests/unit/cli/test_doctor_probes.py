"""Every probe of `scale0 doctor` can find something: good readings are ok, bad ones are not, and say what to type."""

# Promise: CLI-5
from __future__ import annotations

from pathlib import Path

import pytest

from scale0.broker.core.keys import Key
from scale0.cli.network import doctor as probes
from scale0.cli.network.doctor import FAIL, GIB, MIB, OK, WARN, DoctorFinding, lines_of, verdict
from scale0.cli.network.host_readings import (
    ClockReading,
    DiskReading,
    JavaReading,
    PortReading,
    file_system_of,
)

JAVA_8 = JavaReading("/usr/bin/java", 'java version "1.8.0_392"\n')
JAVA_17 = JavaReading("/usr/bin/java", 'openjdk version "17.0.15" 2025-04-15\n')
JAVA_21 = JavaReading("/opt/java", 'openjdk version "21" 2023-09-19\n')
DISK = DiskReading(".scale0", 20 * GIB, "ext4", "", 0.004)
FREE, USED = PortReading("frontend", 5700, True, "", None), PortReading("backend", 5701, False, "nginx: master", 17)
UP = PortReading("peer", 5702, False, "/x/.venv/bin/scale0 up", 18)
NAMED = frozenset({"frontend", "backend", "peer"})
DAY = 86_400.0
EVEN = (ClockReading(1_000.0, 50.0), ClockReading(1_001.0, 51.0))
JUMPED = (ClockReading(1_000.0, 50.0), ClockReading(1_005.0, 51.0))

CASES = [
    (probes.python_finding((3, 12, 1), "CPython"), OK, "CPython 3.12.1"),
    (probes.python_finding((3, 10, 1), "CPython"), FAIL, "3.11 or later"),
    (probes.python_finding((3, 11, 0), "PyPy"), WARN, "PyPy"),
    (probes.extras_finding({"pipeline": True, "otlp": False}), OK, "pipeline"),
    (probes.extras_finding({"pipeline": False, "otlp": True}), WARN, "otlp; tables and reports"),
    (probes.certificate_finding("agent", 100 * DAY, 10 * DAY), OK, "is valid for 90 days"),
    (probes.certificate_finding("agent", 100 * DAY, 90 * DAY), WARN, "expires in 10 days"),
    (probes.certificate_finding("helen", 100 * DAY, 103 * DAY), FAIL, "expired 3 days ago"),
    (probes.java_finding(JAVA_17, True), OK, "is Java 17"),
    (probes.java_finding(JAVA_21, True), OK, "is Java 21"),
    (probes.java_finding(JAVA_8, True), FAIL, "is Java 8; Spark needs 17"),
    (probes.java_finding(JAVA_8, False), WARN, "is Java 8"),
    (probes.java_finding(None, True), WARN, "none"),
    (probes.java_finding(JavaReading("/bin/false", ""), True), FAIL, "does not print"),
    (probes.files_finding(None, 100_000), OK, "unlimited"),
    (probes.files_finding(1_048_576, 100_000), OK, "1,048,576"),
    (probes.files_finding(20_000, 100_000), WARN, "19,900 clients, not 100,000"),
    (probes.files_finding(512, 100_000), FAIL, "412 clients"),
    (probes.memory_finding(8 * GIB, 16 * GIB, True), OK, "8.0 of 16.0"),
    (probes.memory_finding(2 * GIB, 16 * GIB, True), WARN, "Spark uses 3"),
    (probes.memory_finding(2 * GIB, 16 * GIB, False), OK, "2.0 of"),
    (probes.memory_finding(200 * MIB, 16 * GIB, False), WARN, "0.2 of"),
    (probes.memory_finding(10 * MIB, GIB, False), FAIL, "too little"),
    (probes.broker_finding("h:1", "east", True, ("1", "1"), ""), OK, "east answers at h:1, version 1"),
    (probes.broker_finding("h:1", "east", True, None, ""), OK, "needs its token"),
    (probes.broker_finding("h:1", "east", True, ("2", "1"), ""), WARN, "has version 2, this is 1"),
    (probes.broker_finding("h:1", "", True, None, "refused"), FAIL, "none answers at h:1: refused"),
    (probes.broker_finding("h:1", "", False, None, "refused"), WARN, "none answers at h:1"),
    (probes.console_finding(True), OK, "installed"),
    (probes.console_finding(False), WARN, "not built"),
]

SEVERAL = [
    (probes.port_findings([FREE, UP], NAMED, frozenset()), [(OK, "5700 free; 5702 in use by Scale0")]),
    (probes.port_findings([USED], NAMED, frozenset({5701})), [(OK, "5701 in use by Scale0")]),
    (
        probes.port_findings([FREE, USED], NAMED, frozenset()),
        [(FAIL, "5701 (backend) is in use by nginx"), (OK, "5700 free")],
    ),
    (probes.port_findings([USED], frozenset(), frozenset()), [(WARN, "process 17")]),
    (probes.port_findings([USED._replace(pid=None, owner="")], NAMED, frozenset()), [(FAIL, "another program")]),
    (probes.key_findings([], True, True), [(OK, "only the owner")]),
    (probes.key_findings([], False, False), [(OK, "needs none")]),
    (probes.key_findings([], False, True), [(FAIL, "there is no server key")]),
    (probes.expiry_findings([Key("k", "frontend", "web", 10 * DAY)], DAY), [(WARN, "frontend/web expires in 9 days")]),
    (probes.expiry_findings([Key("k", "frontend", "web", DAY)], 2 * DAY), [(WARN, "has expired")]),
    (probes.expiry_findings([Key("k", "frontend", "web", 99 * DAY), Key("k", "peer", "b")], DAY), []),
    (
        probes.key_findings(["a/b: others have access to it (mode 644): chmod 600 a/b"], True, True),
        [(FAIL, "(mode 644)")],
    ),
    (probes.clock_findings(*EVEN, True, None), [(OK, "synchronised")]),
    (probes.clock_findings(*EVEN, None, 0.01), [(OK, "+0.010 s from the broker's")]),
    (probes.clock_findings(*EVEN, True, -40.0), [(FAIL, "-40.0 s from the broker's")]),
    (probes.clock_findings(*EVEN, True, 3.0), [(WARN, "+3.0 s")]),
    (probes.clock_findings(*EVEN, False, 0.0), [(WARN, "not synchronised")]),
    (probes.clock_findings(*JUMPED, True, 0.0), [(WARN, "jumped by +4.0 s")]),
    (probes.clock_findings(*EVEN, True, 0.0, suspect=True), [(WARN, "clients disagree"), (OK, "synchronised")]),
    (probes.disk_findings(DISK, 64 * MIB), [(OK, "20.0 GiB free on ext4, a synced write takes 4.0 ms")]),
    (probes.disk_findings(DISK._replace(free_bytes=0), 64 * MIB), [(FAIL, "refuses all writes"), (OK, "")]),
    (probes.disk_findings(DISK._replace(free_bytes=500 * MIB), 64 * MIB), [(WARN, "only 0.5 GiB"), (OK, "")]),
    (probes.disk_findings(DISK._replace(trouble="Permission denied"), 0), [(FAIL, "Permission denied")]),
    (probes.disk_findings(DISK._replace(file_system="nfs4"), 0), [(WARN, "is on nfs4"), (OK, "")]),
    (probes.disk_findings(DISK._replace(sync_seconds=0.2), 0), [(WARN, "200 ms")]),
    (probes.disk_findings(DISK._replace(sync_seconds=2.0), 0), [(FAIL, "2000 ms")]),
]
CASES += [
    (one, *wanted) for found, expected in SEVERAL for one, wanted in zip(list(found), expected, strict=True)
]  # strict: not one finding more


@pytest.mark.parametrize(("found", "state", "words"), CASES)
def test_a_reading_is_judged_in_words_that_fit_and_with_what_to_type(found, state, words):
    assert found.state == state
    assert words in found.words
    assert bool(found.next) == (state != OK)
    lines = lines_of(found)
    assert lines[0].startswith(f"{state} ")
    assert all(len(line) <= 80 for line in lines)
    assert any("next: " in line for line in lines) == (state != OK)


def test_every_probe_can_fail_or_warn():
    assert {one.probe for one, state, _ in CASES if state == OK} == {one.probe for one, _, _ in CASES}
    can_fail = {one.probe for one, state, _ in CASES if state == FAIL}
    assert {one.probe for one, _, _ in CASES} - can_fail == {"extras", "console"}, "without these a network works"


def test_consecutive_ports_are_shown_as_a_range():
    assert probes.ranged([5780, 5700, 5701, 5702, 4166]) == "4166, 5700-5702, 5780"


def test_a_file_system_is_that_of_the_nearest_mount():
    mounts = "/dev/a / ext4 rw 0 0\nhost:/x /srv nfs4 rw 0 0\n/dev/b /srv/fast\\040disk xfs rw 0 0\n"
    assert file_system_of(Path("/srv/data"), mounts) == "nfs4"
    assert file_system_of(Path("/srv/fast disk/data"), mounts) == "xfs"
    assert file_system_of(Path("/home"), mounts) == "ext4"
    assert file_system_of(Path("/home"), "") == ""


def test_the_verdict_says_what_to_do_first():
    bad, odd, good = DoctorFinding("a", FAIL, "x", "y"), DoctorFinding("b", WARN, "x", "y"), DoctorFinding("c", OK, "x")
    assert verdict([bad, odd, good]) == "1 failed, 1 warning: repair what failed first."
    assert verdict([odd, good]) == "Nothing failed; 1 warning."
    assert verdict([good]) == "No problems."
