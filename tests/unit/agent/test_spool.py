"""The spool loses nothing but the oldest of too many results, never repeats one, and sends live results first."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.monitoring.agent.edge.log_segment import Instant
from scale0.monitoring.agent.edge.spool import DISK_RETRY_SECONDS, MAX_DAMAGED, MAX_SEGMENTS, Spool, SpooledRecord
from tests.fakes.examples import examples

NOON = Instant(1_000.0, 1_700_000_000.0)


def later(seconds: float) -> Instant:
    return Instant(NOON.boot + seconds, NOON.wall + seconds)


def result(number: int, size: int = 0) -> bytes:
    return json.dumps({"state": "ok", "message": f"{number}" + "x" * size}).encode()


def number_of(offer: SpooledRecord) -> int:
    return int(json.loads(offer.body)["message"].rstrip("x"))


def spool_in(folder: Path, name: str = "s1", boot: str = "boot-1", **more: Any) -> Spool:
    return Spool(folder, name, boot, **more)


def offers(spool: Spool, now: Instant = NOON, most: int = 1_000_000) -> list[SpooledRecord]:
    out: list[SpooledRecord] = []
    while len(out) < most and (offer := spool.next(now)) is not None:
        out.append(offer)
    return out


def numbers(found: list[SpooledRecord]) -> list[int]:
    return [number_of(offer) for offer in found]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


# Promise: AGENT-7
def test_what_helen_never_got_is_offered_by_the_next_run_under_its_old_name(tmp_path):
    first = spool_in(tmp_path, "s1")
    for number in range(5):
        first.append("load", result(number), NOON)
    first.connected()
    for offer in offers(first)[:2]:
        first.delivered(offer.position)
    first.close()

    second = spool_in(tmp_path, "s2")
    second.append("load", result(99), NOON)
    found = [json.loads(offer.body) for offer in offers(second)]
    assert [(one["spool"], one["n"]) for one in found[-1:]] == [("s2", 1)]
    # The beginning of a file may come again: Helen knows it by (spool, n).
    assert [(one["spool"], one["n"]) for one in found[:-1]] == [("s1", n) for n in range(1, 6)]
    second.close()


def test_a_spool_that_helen_has_whole_leaves_nothing_on_disk(tmp_path):
    spool = spool_in(tmp_path)
    spool.append("load", result(0), NOON)
    spool.connected()
    for number in range(1, 50):
        spool.append("load", result(number), NOON)
    for offer in offers(spool):
        spool.delivered(offer.position)
    assert spool.size_bytes == 0
    assert not spool.has_more
    spool.close()
    assert files(tmp_path) == []


# Promise: AGENT-7
def test_live_results_go_before_the_backlog_and_the_backlog_from_its_oldest(tmp_path):
    spool = spool_in(tmp_path, max_bytes=20_000)
    for number in range(20):
        spool.append("load", result(number, 200), NOON)
    spool.connected()
    assert numbers(offers(spool, most=3)) == [0, 1, 2]
    spool.append("load", result(100), NOON)
    spool.append("load", result(101), NOON)
    assert numbers(offers(spool)) == [100, 101, *range(3, 20)]
    spool.close()


def test_a_lost_connection_makes_all_that_was_not_acknowledged_come_again_in_order(tmp_path):
    spool = spool_in(tmp_path)
    for number in range(4):
        spool.append("load", result(number), NOON)
    spool.connected()
    spool.append("load", result(4), NOON)
    found = offers(spool)
    assert numbers(found) == [4, 0, 1, 2, 3]
    for offer in found[:3]:
        spool.delivered(offer.position)
    spool.lost()
    spool.append("load", result(5), NOON)
    spool.connected()
    spool.append("load", result(6), NOON)
    assert numbers(offers(spool)) == [6, 2, 3, 5]
    spool.close()


# Promise: AGENT-9
def test_age_uses_a_clock_that_does_not_jump_and_is_unknown_after_a_reboot(tmp_path):
    spool = spool_in(tmp_path)
    spool.append("load", result(1), NOON)
    spool.append("load", result(2), Instant(NOON.boot + 1, NOON.wall - 86_400))  # the wall clock jumps back a day
    first, second = (json.loads(offer.body) for offer in offers(spool, Instant(NOON.boot + 10, NOON.wall + 3_600)))
    assert (first["age"], second["age"]) == (10.0, 9.0)
    assert first["sent"] == NOON.wall + 3_600
    spool.close()
    after = spool_in(tmp_path, "s2", boot="boot-2")
    assert ["age" in json.loads(offer.body) for offer in offers(after, Instant(5.0, NOON.wall + 60))] == [False, False]
    after.close()


# Promise: AGENT-8
def test_too_many_bytes_throw_away_the_oldest_and_count_them(tmp_path):
    spool = spool_in(tmp_path, max_bytes=8_000)
    for number in range(200):
        spool.append("load", result(number, 100), NOON)
        assert spool.size_bytes <= 8_000 + 1_500
    left = numbers(offers(spool))
    assert left == list(range(200 - len(left), 200))
    assert spool.dropped == 200 - len(left)
    assert len(left) > 20
    spool.close()


def test_what_was_thrown_away_on_its_way_and_arrived_after_all_is_not_counted(tmp_path):
    spool = spool_in(tmp_path, max_bytes=4_000)
    spool.append("load", result(0, 600), NOON)
    spool.connected()
    (offer,) = offers(spool)
    for number in range(1, 10):
        spool.append("load", result(number, 600), NOON)
    gone = spool.dropped
    assert gone > 0
    spool.delivered(offer.position)
    assert spool.dropped == gone - 1
    spool.close()


# Promise: AGENT-8
def test_too_old_ones_are_thrown_away_and_counted_whatever_the_wall_clock_says(tmp_path):
    spool = spool_in(tmp_path, max_seconds=80.0)
    for second in range(0, 100, 5):
        spool.append("load", result(second), Instant(NOON.boot + second, NOON.wall - 10_000_000 * second))
    spool.expire(Instant(NOON.boot + 100, NOON.wall + 10_000_000))
    left = numbers(offers(spool))
    assert left == list(range(left[0], 100, 5))
    assert 20 <= left[0] <= 35
    assert spool.dropped == left[0] // 5
    spool.close()


def test_results_of_an_earlier_boot_are_judged_by_the_wall_clock(tmp_path):
    spool = spool_in(tmp_path, max_seconds=80.0)
    spool.append("load", result(1), NOON)
    spool.close()
    for boot, seconds, left in (("boot-2", 60, 1), ("boot-3", 90, 0)):
        spool = spool_in(tmp_path, "s2", boot=boot, max_seconds=80.0)
        spool.expire(Instant(3.0, NOON.wall + seconds))
        assert len(offers(spool)) == left
        spool.close()


def test_a_connection_that_comes_and_goes_makes_no_endless_number_of_files(tmp_path):
    spool = spool_in(tmp_path)
    for number in range(MAX_SEGMENTS + 50):
        spool.connected()
        spool.append("load", result(number), NOON)
        spool.lost()
    assert len(files(tmp_path)) <= MAX_SEGMENTS
    spool.connected()
    assert sorted(numbers(offers(spool))) == list(range(MAX_SEGMENTS + 50))
    spool.close()


def test_a_result_that_is_too_long_says_so_and_the_report_fits(tmp_path):
    spool = spool_in(tmp_path)
    spool.append("load", result(1, 2_000_000), NOON)
    (offer,) = offers(spool)
    assert json.loads(offer.body)["state"] == "unknown"
    spool.close()


def test_only_what_helen_does_not_have_is_synced(tmp_path):
    spool = spool_in(tmp_path)
    assert spool.begin_sync() is None
    spool.append("load", result(1), NOON)
    work = spool.begin_sync()
    assert work is not None
    work()
    assert spool.begin_sync() is None
    spool.connected()
    spool.append("load", result(2), NOON)
    for offer in offers(spool):
        spool.delivered(offer.position)
    assert spool.begin_sync() is None
    spool.close()


# Promise: AGENT-8
@examples(60)
@given(cut=st.integers(0, 2_000), garbage=st.binary(max_size=40), count=st.integers(1, 8))
def test_a_crash_at_any_byte_leaves_the_whole_records_before_it(cut, garbage, count):
    with folder() as place:
        spool = spool_in(place)
        ends = []
        for number in range(count):
            spool.append("load", result(number, number), NOON)
            ends.append(spool.size_bytes)
        spool.close()
        (name,) = files(place)
        data = (place / name).read_bytes()
        cut = min(cut, len(data))
        (place / name).write_bytes(data[:cut] + garbage)
        again = spool_in(place, "s2")
        found = numbers(offers(again))
        whole = sum(end <= cut for end in ends)
        assert found[:whole] == list(range(whole))
        assert len(found) == len(set(found))
        if cut + len(garbage) < len(data) or not data.startswith(data[:cut] + garbage):
            assert len(found) == whole
        again.append("load", result(77), NOON)
        assert 77 in numbers(offers(again))
        again.close()


# Promise: AGENT-8
@examples(60)
@given(at=st.integers(0, 100_000), bit=st.integers(0, 7))
def test_one_flipped_bit_costs_at_most_one_result_and_is_reported(at, bit):
    with folder() as place:
        spool = spool_in(place)
        for number in range(6):
            spool.append("load", result(number), NOON)
        spool.close()
        (name,) = files(place)
        data = bytearray((place / name).read_bytes())
        data[at % len(data)] ^= 1 << bit
        (place / name).write_bytes(data)
        again = spool_in(place, "s2")
        found = offers(again)
        assert numbers(found) == sorted(set(numbers(found)))
        assert 5 <= len(found) <= 6
        for offer in found:
            again.delivered(offer.position)
        assert files(place) == [name.replace(".spool", ".damaged")]
        again.close()


# Promise: AGENT-8
@examples(60)
@given(at=st.integers(0, 100_000), damage=st.binary(min_size=1, max_size=60), size=st.sampled_from([0, 300, 70_000]))
def test_damaged_bytes_cost_only_the_results_that_contain_them(at, damage, size):
    with folder() as place:
        spool = spool_in(place)
        ends = []
        for number in range(8):
            spool.append("load", result(number, size), NOON)
            ends.append(spool.size_bytes)
        spool.close()
        (name,) = files(place)
        data = bytearray((place / name).read_bytes())
        begin = 150 + at % (len(data) - 150 - len(damage))  # behind both headers
        data[begin : begin + len(damage)] = damage
        (place / name).write_bytes(data)
        again = spool_in(place, "s2")
        found = numbers(offers(again))
        hit = {n for n, end in enumerate(ends) if begin < end and begin + len(damage) > (ends[n - 1] if n else 0)}
        assert found == sorted(set(found))
        assert set(range(8)) - hit <= set(found)
        again.close()


# Promise: AGENT-8
def test_a_segment_with_one_header_is_read(tmp_path):
    spool = spool_in(tmp_path)
    spool.append("load", result(1), NOON)
    spool.append("load", result(2), NOON)
    spool.close()
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    once = 8 + int.from_bytes(data[:4], "little")
    assert data[:once] == data[once : 2 * once]
    path.write_bytes(data[once:])  # earlier versions write it once
    spool = spool_in(tmp_path, "s2")
    found = offers(spool)
    assert [(body["spool"], body["n"]) for body in (json.loads(offer.body) for offer in found)] == [
        ("s1", 1),
        ("s1", 2),
    ]
    for offer in found:
        spool.delivered(offer.position)
    assert files(tmp_path) == []
    spool.close()


# Promise: AGENT-8
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_what_is_not_a_file_is_skipped_and_logged(tmp_path, caplog, make):
    spool = spool_in(tmp_path)
    spool.append("load", result(1), NOON)
    spool.close()
    strange = tmp_path / "000000000002.spool"
    make(strange)
    make(tmp_path / "0.damaged")
    for number in range(MAX_DAMAGED + 1):
        (tmp_path / f"{number + 10:012d}.damaged").touch()
    (tmp_path / "000000000003.spool").write_bytes(b"this is no spool")
    spool = spool_in(tmp_path, "s2")
    assert f"{strange} is not a regular file; it is skipped, remove it" in caplog.text
    spool.append("load", result(2), NOON)
    assert numbers(offers(spool)) == [1, 2]
    spool.close()
    assert [name[11] for name in files(tmp_path) if name.endswith(".spool")] == ["1", "2", "4"]


def test_only_so_many_damaged_files_are_kept(tmp_path):
    for number in range(MAX_DAMAGED + 5):
        (tmp_path / f"{number + 1:012d}.spool").write_bytes(b"this is no spool")
    spool = spool_in(tmp_path)
    assert len(files(tmp_path)) == MAX_DAMAGED
    assert not spool.has_more
    spool.close()


def test_files_that_are_not_ours_are_left_alone(tmp_path):
    (tmp_path / "readme").write_text("hands off")
    (tmp_path / "1.spool").write_text("hands off")
    spool = spool_in(tmp_path)
    spool.append("load", result(1), NOON)
    spool.close()
    assert files(tmp_path) == ["000000000001.spool", "1.spool", "readme"]


# Promise: AGENT-8
def test_a_full_disk_keeps_results_in_memory_and_uses_the_disk_again_when_there_is_room(tmp_path, monkeypatch):
    spool = spool_in(tmp_path)
    spool.connected()
    real = os.pwrite
    full = True

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        if full and "memfd" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    for number in range(3):
        spool.append("load", result(number), later(number))
    assert files(tmp_path) == []
    assert numbers(offers(spool)) == [0, 1, 2]
    full = False
    spool.append("load", result(3), later(DISK_RETRY_SECONDS + 1))
    assert len(files(tmp_path)) == 2
    assert numbers(offers(spool)) == [3]
    spool.close()
    assert numbers(offers(spool_in(tmp_path, "s2"))) == [0, 1, 2, 3]


# Promise: AGENT-8
def test_what_a_full_disk_left_in_memory_is_on_disk_at_the_end_or_logged(tmp_path, monkeypatch, caplog):
    real = os.pwrite

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        if "memfd" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    spool = spool_in(tmp_path)
    for number in range(3):
        spool.append("load", result(number), later(number))
    spool.to_disk()
    spool.close()
    spool = spool_in(tmp_path, "s2")
    assert numbers(offers(spool)) == [0, 1, 2]
    spool.append("load", result(3), later(4))
    spool.close()
    assert spool.dropped == 1
    assert "1 results are lost" in caplog.text


def test_a_record_that_can_never_be_sent_vouches_for_none_before_it(tmp_path):
    spool = spool_in(tmp_path)
    for number in range(4):
        spool.append("load", result(number), NOON)
    spool.connected()
    found = offers(spool)
    spool.delivered(found[0].position)
    spool.drop(found[3].position)
    spool.lost()
    assert numbers(offers(spool)) == [1, 2, 3]
    spool.close()


def test_a_place_that_the_disk_lost_stops_none_of_the_others(tmp_path, monkeypatch):
    for number in range(3):
        spool = spool_in(tmp_path, f"s{number}")
        spool.append("load", result(number), NOON)
        spool.close()
    bad = files(tmp_path)[1]
    spool = spool_in(tmp_path, "s4")
    real = os.pread

    def pread(descriptor: int, length: int, at: int) -> bytes:
        if bad in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, length, at)

    monkeypatch.setattr(os, "pread", pread)
    assert numbers(offers(spool)) == [0, 2]
    assert bad.replace(".spool", ".damaged") in files(tmp_path)
    spool.close()
    spool_in(tmp_path, "s5").close()


def test_many_small_parts_are_not_as_many_open_files(tmp_path):
    for number in range(60):
        spool = spool_in(tmp_path, f"s{number}")
        spool.append("load", result(number), NOON)
        spool.close()
    spool = spool_in(tmp_path, "last")
    before = len(os.listdir("/proc/self/fd"))
    assert len(offers(spool)) == 60
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    spool.close()


def test_a_clock_that_was_never_set_makes_nothing_old(tmp_path):
    spool = spool_in(tmp_path)
    spool.append("load", result(1), Instant(10.0, 10.0))
    spool.close()
    spool = spool_in(tmp_path, "s2", boot="boot-2")
    spool.expire(NOON)
    assert numbers(offers(spool)) == [1]
    spool.close()


# Promise: AGENT-8
def test_a_write_that_came_half_way_leaves_no_trace(tmp_path, monkeypatch):
    spool = spool_in(tmp_path)
    spool.append("load", result(0), NOON)
    real = os.pwrite

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        if "memfd" in os.readlink(f"/proc/self/fd/{descriptor}"):
            return real(descriptor, data, at)
        return real(descriptor, data[:7], at)

    size = spool.size_bytes
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        spool.append("load", result(1), NOON)
    (name,) = files(tmp_path)
    assert (tmp_path / name).stat().st_size == size
    assert numbers(offers(spool)) == [0, 1]
    spool.close()


# Promise: AGENT-7
@examples(80)
@given(st.lists(st.sampled_from(["append", "offer", "ack", "lose", "connect", "crash", "stop"]), max_size=60))
def test_every_result_is_delivered_in_the_end_and_none_is_lost_whatever_happens(steps):
    with folder() as place:
        spool, count, runs = spool_in(place), 0, 1
        flying: list[SpooledRecord] = []
        delivered: set[tuple[str, int]] = set()
        seen: dict[tuple[str, int], int] = {}
        wanted: set[int] = set()

        def take(offer: SpooledRecord) -> None:
            body = json.loads(offer.body)
            key = (body["spool"], body["n"])
            assert seen.setdefault(key, number_of(offer)) == number_of(offer), "one name for two results"
            delivered.add(key)
            spool.delivered(offer.position)

        connected = False
        for step in [*steps, "lose", "connect", "offer", "ack"]:
            if step == "append":
                spool.append("load", result(count, count % 50), NOON)
                wanted.add(count)
                count += 1
            elif step == "offer" and connected:
                most = 3 if steps else 1_000
                flying += offers(spool, most=most)
            elif step == "ack" and flying:
                half = (len(flying) + 1) // 2
                for offer in flying[:half]:
                    take(offer)
                flying = flying[half:]
            elif step in ("lose", "crash", "stop"):
                connected, flying = False, []
                if step == "lose":
                    spool.lost()
                elif step == "stop":
                    spool.close()
                else:
                    copy = place / "copy"
                    shutil.copytree(place, copy)
                    spool.close()
                    for path in place.glob("*.spool"):
                        path.unlink()
                    for path in copy.iterdir():
                        path.rename(place / path.name)
                    copy.rmdir()
                if step != "lose":
                    runs += 1
                    spool = spool_in(place, f"s{runs}")
            elif step == "connect" and not connected:
                connected = True
                spool.connected()
        for offer in [*flying, *offers(spool)]:
            take(offer)
        assert {seen[key] for key in delivered} == wanted
        assert spool.dropped == 0
        assert spool.size_bytes == 0
        spool.close()
        assert files(place) == []
