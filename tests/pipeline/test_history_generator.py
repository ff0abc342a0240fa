"""The form of a synthetic history: what `python -m simulator.history` writes are segments like any other."""

from __future__ import annotations

import datetime
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from scale0.history.events.histogram import bucket_of
from scale0.history.events.kinds import KINDS
from scale0.history.segments import arrow, names
from simulator.history import Counts, NotEmpty, TooSmall, Truths, generate, read
from simulator.history import truths as words
from simulator.history.plan import make_plan
from simulator.history.script_builder import plant
from tests.unit.events.samples import SAMPLES

pytestmark = pytest.mark.slow

DAY_US = 86_400_000_000


class Made(NamedTuple):
    folder: Path
    truths: Truths
    table: pa.Table


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("written=*/*.parquet"))


def whole(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(path).read() for path in segments(folder)])


@pytest.fixture(scope="module", params=[(30_000, 2, 5), (120_000, 3, 7)], ids=["small", "larger"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    events, days, seed = request.param
    folder = tmp_path_factory.mktemp("synth")
    truths = generate(events=events, days=days, seed=seed, out=folder)
    return Made(folder, truths, whole(folder))


def test_the_same_arguments_make_the_same_history_and_another_seed_another(tmp_path: Path):
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        generate(events=20_000, days=2, seed=seed, out=tmp_path / name)
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    assert [path.name for path in segments(one)] == [path.name for path in segments(two)]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(segments(one), segments(two), strict=True))
    assert (one / words.FILE).read_bytes() == (two / words.FILE).read_bytes()
    assert not whole(one).equals(whole(other))


def test_every_segment_has_the_one_schema_and_checksums(made: Made):
    for path in segments(made.folder):
        file = arrow.open_segment(path)
        assert pq.read_schema(path).equals(arrow.SCHEMA, check_metadata=True)
        for table in file.batches(arrow.ROW_GROUP_EVENTS):
            table.validate(full=True)
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_segment_is_named_for_what_it_holds(made: Made):
    for path in segments(made.folder):
        segment = names.parse(path.name)
        assert segment is not None
        table = pq.ParquetFile(path).read(["source", "boot", "seq", "time"])
        assert set(table["source"].to_pylist()) == {segment.source}
        assert set(table["boot"].to_pylist()) == {segment.boot}
        assert table["seq"].to_pylist() == list(range(segment.first_seq, segment.last_seq + 1))
        assert names.day_of(path.parent.name) == table["time"][-1].as_py().date()
        assert segment.events <= 250_000


def test_seq_goes_on_without_gaps_but_where_it_was_planted(made: Made):
    found = sorted(
        (segment.source, segment.boot, segment.first_seq, segment.last_seq)
        for path in segments(made.folder)
        if (segment := names.parse(path.name)) is not None
    )
    jumps = []
    for before, after in itertools.pairwise(found):
        if before[0] != after[0]:
            assert after[2] == 1
        elif after[2] != before[3] + 1:
            jumps.append((after[0], before[3] + 1, after[2]))
    planted = []
    for truth in made.truths.truths:
        if truth.kind == words.LOST_SEGMENT:
            planted.append((truth.subject, truth.facts["first_seq"], truth.facts["last_seq"] + 1))
        if truth.kind == words.REWIND:
            planted.append((truth.subject, truth.facts["last_seq"] + 1, truth.facts["first_seq"]))
    assert len(planted) == 2
    assert sorted(jumps) == sorted(planted)


def test_time_never_goes_back_in_a_boot_and_nothing_happens_after_it_was_recorded(made: Made):
    for path in segments(made.folder):
        table = pq.ParquetFile(path).read(["boot", "time", "at"])
        times = table["time"].cast(pa.int64()).to_numpy()
        assert (times[1:] >= times[:-1]).all()
        assert (table["at"].cast(pa.int64()).to_numpy() <= times).all()
        assert times[0] >= table["boot"][0].as_py()
    by_boot: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for path in segments(made.folder):
        segment = names.parse(path.name)
        assert segment is not None
        times = pq.ParquetFile(path).read(["time"])["time"].cast(pa.int64()).to_numpy()
        by_boot.setdefault(segment[:2], []).append((int(times[0]), int(times[-1])))
    for spans in by_boot.values():
        spans.sort()
        assert all(ends <= begins for (_, ends), (begins, _) in itertools.pairwise(spans))


def test_all_of_it_lies_within_its_days(made: Made):
    times = made.table["time"].cast(pa.int64())
    assert made.truths.to_us - made.truths.from_us == made.truths.days * DAY_US
    assert pc.min(times).as_py() >= made.truths.from_us
    assert pc.max(times).as_py() < made.truths.to_us


def test_the_file_of_truths_tells_what_is_there(made: Made):
    reported = read(made.folder)
    assert reported == made.truths
    assert reported.events == made.table.num_rows
    assert reported.segments == len(segments(made.folder))
    assert reported.kinds == {row["values"]: row["counts"] for row in pc.value_counts(made.table["kind"]).to_pylist()}
    assert not (made.folder / f"{words.FILE}.new").exists()


def test_as_many_truths_are_planted_as_were_asked_for(made: Made):
    counts: dict[str, int] = {}
    for truth in made.truths.truths:
        counts[truth.kind] = counts.get(truth.kind, 0) + 1
        assert made.truths.from_us <= truth.from_us <= truth.to_us <= made.truths.to_us
    every = {value for name, value in vars(words).items() if name.isupper() and isinstance(value, str)} - {words.FILE}
    assert set(counts) == every
    assert sum(counts.values()) == sum(getattr(Counts(), name) for name in Counts.__struct_fields__)


def test_about_as_many_events_are_written_as_were_asked_for(made: Made):
    assert abs(made.truths.events - made.truths.asked) < 0.05 * made.truths.asked


@pytest.mark.slow
def test_a_large_history_has_the_mix_of_a_large_network(tmp_path: Path):
    found = generate(events=1_000_000, days=2, seed=1, out=tmp_path)
    assert abs(found.events - 1_000_000) < 20_000

    def share(*kinds: str) -> float:
        return sum(found.kinds[kind] for kind in kinds) / found.events

    assert abs(share("task.submitted", "task.attempt_ended", "task.completed") - 0.57) < 0.03
    assert abs(share("check.answered") - 0.25) < 0.02
    assert abs(share("request.summed") - 0.07) < 0.01
    assert abs(share("client.seen") - 0.07) < 0.01
    assert 0.005 < found.kinds["task.attempt_ended"] / found.events < 0.02
    assert len(found.sources) == 5


def test_tasks_of_thirty_methods_end_once_and_after_their_beginning(made: Made):
    table = made.table
    submitted = table.filter(pc.equal(table["kind"], "task.submitted"))
    completed = table.filter(pc.equal(table["kind"], "task.completed"))
    assert pc.count_distinct(submitted["service"]).as_py() == 30
    assert pc.count_distinct(submitted["ref"]).as_py() == submitted.num_rows
    assert pc.count_distinct(completed["ref"]).as_py() == completed.num_rows
    assert pc.all(pc.match_substring_regex(submitted["ref"], "^[0-9a-f]{20}[.][0-9a-f]{12}$")).as_py()
    begins = dict(zip(submitted["ref"].to_pylist(), submitted["at"].cast(pa.int64()).to_pylist(), strict=True))
    ends = zip(completed["ref"].to_pylist(), completed["at"].cast(pa.int64()).to_pylist(), strict=True)
    known = [(begins[ref], end) for ref, end in ends if ref in begins]
    assert len(known) > 0.98 * completed.num_rows  # the others began in the lost segment
    assert all(begin <= end for begin, end in known)
    states = {row["values"]: row["counts"] for row in pc.value_counts(completed["state"]).to_pylist()}
    assert set(states) == {"finished", "failed", "cancelled"}
    assert states["finished"] > 0.9 * completed.num_rows


def test_the_counts_of_a_histogram_add_up_and_the_longest_is_in_its_last_bucket(made: Made):
    rows = made.table.filter(pc.equal(made.table["kind"], "request.summed")).to_pylist()
    assert len(rows) > 100
    for row in rows:
        buckets = [each["bucket"] for each in row["histogram"]]
        assert sum(each["count"] for each in row["histogram"]) == row["code"]
        assert all(each["count"] > 0 for each in row["histogram"])
        assert buckets == sorted(set(buckets))
        assert bucket_of(row["seconds"]) == buckets[-1]
        assert len(buckets) <= 15


def test_results_are_numbered_by_their_agents_spool(made: Made):
    answered = made.table.filter(pc.equal(made.table["kind"], "check.answered"))
    scheduled = answered.filter(pc.match_substring(answered["data"], '"scheduled":true'))
    assert pc.all(pc.match_substring_regex(scheduled["ref"], "^[0-9a-f]{16}:[1-9][0-9]*$")).as_py()
    refs = list(zip(scheduled["identity"].to_pylist(), scheduled["ref"].to_pylist(), strict=True))
    twice = sum(truth.facts.get("recorded_twice", 0) for truth in made.truths.truths)
    assert len(refs) - len(set(refs)) == twice > 0


def filled(row: dict[str, Any]) -> set[str]:
    return {name for name, value in row.items() if value is not None}


OPTIONAL = {
    "request.failed": {"identity"},  # nobody had it
    "request.summed": {"data"},  # nothing failed
    "task.completed": {"code", "identity"},  # it went well; it never ran
    "check.answered": {"metrics"},
}


def test_events_fill_the_columns_that_their_classes_fill(made: Made):
    kinds = {row["values"] for row in pc.value_counts(made.table["kind"]).to_pylist()}
    assert kinds - set(KINDS) == {"turbine.spun"}
    rows = {event.kind: event.row() for event, _ in SAMPLES}
    for kind in kinds & set(KINDS):
        row = rows[kind]
        own = {name for name in row.__struct_fields__ if getattr(row, name) is not None}
        always = {"source", "boot", "seq", "time", "at", "kind"} | own
        keys = set(row.data or ())
        for event in made.table.filter(pc.equal(made.table["kind"], kind)).slice(0, 300).to_pylist():
            assert filled(event) <= always, kind
            assert always - filled(event) <= OPTIONAL.get(kind, set()), kind
            data = json.loads(event["data"]) if event["data"] else {}
            unscheduled = kind == "check.answered" and not data["scheduled"]
            assert set(data) == keys or unscheduled or (kind == "request.summed" and not data), kind
            if data:
                text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                assert event["data"] == text, kind


def test_every_source_says_once_a_minute_that_it_is_alive(made: Made):
    table = made.table.filter(pc.equal(made.table["kind"], "source.alive"))
    for source in made.truths.sources:
        for boot in source.boots:
            mask = pc.and_(pc.equal(table["source"], source.source), pc.equal(table["boot"], boot.boot))
            times = sorted(table.filter(mask)["time"].cast(pa.int64()).to_pylist())
            steps = {round((after - before) / 1e6) for before, after in itertools.pairwise(times)}
            # While a clock stands, time does: beats come late by that, never more than a silence.
            assert all(step < 150 for step in steps)
            assert len(times) >= (boot.last_us - boot.first_us) // 60_000_000 - 1


@pytest.mark.parametrize(("events", "days"), [(20_000, 2), (200_000, 10), (2_000_000, 3)])
def test_a_planted_break_never_touches_another_whatever_the_seed(events: int, days: int):
    for seed in range(30):
        script = plant(make_plan(events, days, seed, 0, Counts()))
        spans = sorted(
            (boot.lost_from_us or boot.end_us, after.start_us)
            for boots in script.boots
            for boot, after in itertools.pairwise(boots)
        )
        assert len(spans) == 5
        assert all(ends < begins for (_, ends), (begins, _) in itertools.pairwise(spans))


def test_more_or_fewer_truths_can_be_asked_for(tmp_path: Path):
    counts = Counts(broker_kills=3, flapping_checks=0, slow_releases=2, agents_cut_off=2)
    found = generate(events=60_000, days=4, seed=2, out=tmp_path, counts=counts)
    kinds = [truth.kind for truth in found.truths]
    assert kinds.count(words.BROKER_KILLED) == 3
    assert kinds.count(words.FLAPPING_CHECK) == 0
    assert kinds.count(words.SLOW_RELEASE) == 2
    assert kinds.count(words.AGENT_CUT_OFF) == 2


def test_it_begins_on_the_day_that_was_asked_for_and_tells_how_far_it_is(tmp_path: Path):
    start = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    reported: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        reported.append((done, total))

    found = generate(events=20_000, days=2, seed=1, out=tmp_path, start=start, progress=progress)
    assert found.from_us == int(start.timestamp()) * 1_000_000
    assert {path.parent.name for path in segments(tmp_path)} == {"written=2026-03-01", "written=2026-03-02"}
    assert reported[-1][0] == found.events
    assert all(before <= after for (before, _), (after, _) in itertools.pairwise(reported))


def test_what_cannot_be_made_is_refused_before_anything_is_written(tmp_path: Path):
    folder = tmp_path / "new"
    with pytest.raises(TooSmall, match="at least 89,000 events"):
        generate(events=20_000, days=10, seed=1, out=folder)
    with pytest.raises(ValueError, match="days"):
        generate(events=20_000, days=0, seed=1, out=folder)
    noon = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
    with pytest.raises(ValueError, match="midnight"):
        generate(events=20_000, days=2, seed=1, out=folder, start=noon)
    assert not folder.exists()
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(NotEmpty):
        generate(events=20_000, days=2, seed=1, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_slices_of_hours_make_as_sound_a_history_as_whole_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("simulator.history.plan.SLICE_EVENTS", 1_500)
    found = generate(events=20_000, days=2, seed=1, out=tmp_path)
    table = whole(tmp_path)
    assert abs(found.events - 20_000) < 1_000
    assert found.segments > 60
    completed = table.filter(pc.equal(table["kind"], "task.completed"))
    assert pc.count_distinct(completed["ref"]).as_py() == completed.num_rows > 1_000
    answered = table.filter(pc.equal(table["kind"], "check.answered"))
    assert answered.num_rows - pc.count_distinct(answered["ref"]).as_py() == 5
