"""A folder of keys that cannot be read is not an empty one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from scale0.broker.core.enrolment import LearnPeerKey, StoreKey, peer_key_news
from scale0.broker.core.keys import Key
from scale0.broker.core.permissions import KeyRules
from scale0.broker.edge.accepted_keys import MASS_KEYS
from scale0.broker.edge.curve_setup import open_curve
from scale0.broker.edge.key_folder import KeyFolder, revoked_file
from scale0.broker.main.preflight import check_runnable, with_keys_decided
from scale0.cli.main import cli
from scale0.config import BrokerConfig
from scale0.config.broker_file import AdminConfig
from scale0.kernel.edge.secret_files import TOKEN_FILE
from scale0.kernel.errors import ConfigError
from scale0.transport.edge.curve_certificates import CurveCertificate, new_certificate

NAMES = tuple(f"web-{number}" for number in range(6))


def certificate() -> CurveCertificate:
    pair = new_certificate()
    return CurveCertificate(public=pair.public, metadata={})


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    made = KeyFolder(tmp_path)
    made.init()
    for name in NAMES:
        made.store("backend", name, certificate())
    assert names(made) == list(NAMES)
    return made


def names(folder: KeyFolder) -> list[str]:
    return sorted(key.name for key in folder.table(0.0).keys)


# Promise: CURVE-19
def test_a_folder_that_is_away_is_an_error_and_no_revocation(folder: KeyFolder) -> None:
    away = folder.path.with_name("away")
    folder.path.rename(away)
    with pytest.raises(OSError, match=r"backends|frontends"):
        folder.table(0.0)
    away.rename(folder.path)
    assert names(folder) == list(NAMES)


# Promise: CURVE-19
def test_a_changed_file_that_cannot_be_opened_is_an_error_and_no_revocation(folder) -> None:
    path = folder.file_of("backend", NAMES[0])
    os.utime(path, (1, 1))
    path.unlink()
    path.symlink_to(path)  # ELOOP: it is there, and cannot be opened
    with pytest.raises(OSError, match=NAMES[0]):
        folder.table(0.0)


# Promise: CURVE-19
def test_most_files_removed_at_once_are_kept_until_an_operator_confirms(folder: KeyFolder) -> None:
    for name in NAMES[:MASS_KEYS]:
        folder.file_of("backend", name).unlink()
    for _ in range(2):
        assert names(folder) == list(NAMES)
        assert "scale0 keys forget-missing" in folder.faults[folder.path]
    folder.confirm_missing()
    assert names(folder) == list(NAMES[MASS_KEYS:])
    assert names(folder) == list(NAMES[MASS_KEYS:])
    assert not folder.faults


# Promise: CURVE-25
def test_while_keys_are_missing_others_are_revoked_and_stored_and_some_files_may_return(folder: KeyFolder) -> None:
    saved = {name: folder.file_of("backend", name).read_text() for name in NAMES}
    for name in NAMES[:5]:
        folder.file_of("backend", name).unlink()
    assert names(folder) == list(NAMES)
    assert folder.revoke("backend", NAMES[5])
    folder.store("frontend", "new", certificate())
    assert names(folder) == ["new", *NAMES[:5]]
    for name in NAMES[:3]:
        folder.file_of("backend", name).write_text(saved[name])
    assert names(folder) == ["new", *NAMES[:5]], "the rest is not revoked because it is fewer now"


# Promise: CURVE-25
@pytest.mark.parametrize("content", [b"", b"\0" * 300, b"metadata\n", b"\xff\xfe"])
def test_a_damaged_file_keeps_the_key_that_it_had_and_the_reason_is_given(folder: KeyFolder, content: bytes) -> None:
    before = sorted(folder.table(0.0).keys)
    for name in NAMES:
        folder.file_of("backend", name).write_bytes(content)
    assert sorted(folder.table(0.0).keys) == before
    assert len(folder.faults) == len(NAMES)
    assert "keys revoke backend web-0" in folder.faults[folder.file_of("backend", NAMES[0])]
    assert sorted(folder.table(0.0).keys) == before
    assert folder.revoke("backend", NAMES[0])
    assert names(folder) == list(NAMES[1:])


# Promise: CURVE-25
def test_keys_that_become_invalid_together_are_kept(folder: KeyFolder) -> None:
    for name in NAMES:
        path = folder.file_of("backend", name)
        path.write_text(path.read_text().replace("metadata\n", 'metadata\n    deny = "of-a-later-version:x"\n'))
    assert names(folder) == list(NAMES)


# Promise: CURVE-25
def test_all_keys_of_a_role_gone_at_once_are_kept_however_few_they_are(folder: KeyFolder) -> None:
    for name in ("east", "west"):
        folder.store("peer", name, certificate())
    assert len(names(folder)) == len(NAMES) + 2
    for name in ("east", "west"):
        folder.file_of("peer", name).unlink()
    assert len(names(folder)) == len(NAMES) + 2


def started(folder: KeyFolder) -> KeyFolder:
    """The folder of the next process."""
    again = KeyFolder(folder.path.parent)
    again.recall()
    again.init()
    return again


# Promise: CURVE-25
def test_the_same_holds_across_a_restart(folder: KeyFolder) -> None:
    folder.set_rules("backend", NAMES[0], KeyRules(("offer:orders.*",)))
    folder.set_expiry("backend", NAMES[1], 500.0)
    before = sorted(folder.table(0.0).keys)
    folder.write_accepted()
    shutil.rmtree(folder.path / "backends")
    for _ in range(2):
        later = started(folder)
        assert sorted(later.table(0.0).keys) == before
        later.write_accepted()
    folder.file_of("backend", NAMES[0]).write_bytes(b"")
    assert sorted(started(later).table(0.0).keys) == before
    later.confirm_missing()
    folder.file_of("backend", NAMES[0]).unlink()
    assert names(started(later)) == []


# Promise: CURVE-25
def test_a_directory_that_is_gone_at_the_start_revokes_not_even_one_key(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    folder.init()
    folder.store("peer", "east", certificate())
    assert names(folder) == ["east"]
    folder.write_accepted()
    (folder.path / "peers").rename(folder.path / "away")
    again = started(folder)
    assert names(again) == ["east"]
    again.write_accepted()
    assert again.revoke("peer", "east"), "also without its file"
    assert names(again) == []


# Promise: CURVE-25
def test_a_broker_that_had_keys_makes_no_new_ones_and_does_not_start_without_them(folder: KeyFolder) -> None:
    folder.write_accepted()
    folder.path.rename(folder.path.with_name("away"))
    (folder.path.parent / TOKEN_FILE).write_text("s0_x")
    config = with_keys_decided(BrokerConfig(identity="east-1", data_dir=str(folder.path.parent)))
    assert config.curve
    with pytest.raises(ConfigError, match=r"restore .*keys"):
        open_curve(config)
    assert not folder.path.exists()


# Promise: CURVE-25
@pytest.mark.parametrize("left", ["backends", "local", "tokens", "nothing"])
def test_a_broker_without_its_key_and_without_the_list_of_accepted_keys_does_not_start(
    tmp_path: Path, left: str
) -> None:
    folder = KeyFolder(tmp_path)
    folder.init()
    shutil.rmtree(folder.path / "server")
    if left != "nothing":
        (folder.path / left / "some.key").write_text("")
    (tmp_path / TOKEN_FILE).write_text("s0_x")
    config = with_keys_decided(BrokerConfig(identity="east-1", data_dir=str(tmp_path)))
    assert bool(config.curve) == (left != "nothing")
    for curve in {config.curve, True}:
        with pytest.raises(ConfigError, match=r"restore .*keys, or make a new key with `scale0 keys init"):
            open_curve(msgspec.structs.replace(config, curve=curve), had_keys=left == "nothing")
    assert not folder.server_file.exists()


# Promise: CURVE-21
def test_a_broker_without_keys_that_never_had_any_starts_and_warns(tmp_path: Path, caplog) -> None:
    (tmp_path / TOKEN_FILE).write_text("s0_x")
    config = with_keys_decided(BrokerConfig(identity="east-1", data_dir=str(tmp_path), bind="127.0.0.1"))
    check_runnable(config)
    assert open_curve(config) is None
    assert "was used without keys before" in caplog.text
    assert open_curve(msgspec.structs.replace(config, insecure=True, curve=False), had_keys=True) is None
    with pytest.raises(ConfigError, match="not loopback"):
        check_runnable(msgspec.structs.replace(config, bind="0.0.0.0"))


# Promise: CURVE-25
def test_files_removed_by_hand_while_the_broker_was_stopped_are_revoked(folder: KeyFolder) -> None:
    folder.write_accepted()
    folder.file_of("backend", NAMES[0]).unlink()
    assert names(started(folder)) == list(NAMES[1:])


# Promise: CURVE-25
@pytest.mark.parametrize("way", ["empty", "not there"])
def test_replicated_keys_that_cannot_be_read_are_an_error_at_the_start(folder: KeyFolder, way: str) -> None:
    path = folder.path / "told" / "west-1.json"
    if way == "empty":
        path.write_bytes(b"")
    else:
        path.symlink_to(path)
    with pytest.raises(ConfigError, match=r"west-1\.json.*Restore"):
        open_curve(BrokerConfig(identity="east-1", data_dir=str(folder.path.parent), curve=True))


# Promise: CURVE-19
def test_keys_that_the_command_revokes_need_no_confirmation(folder: KeyFolder) -> None:
    for name in NAMES:
        assert folder.revoke("backend", name)
    assert names(folder) == []
    assert not folder.revoke("backend", NAMES[0])
    folder.store("backend", NAMES[0], certificate())
    assert names(folder) == [NAMES[0]]


def test_few_files_may_be_removed_by_hand(folder: KeyFolder) -> None:
    for name in NAMES[: MASS_KEYS - 1]:
        folder.file_of("backend", name).unlink()
    assert names(folder) == list(NAMES[MASS_KEYS - 1 :])


# Promise: PERM-3
def test_permissions_are_lines_of_the_keys_file_and_change_without_a_new_key(folder: KeyFolder) -> None:
    before = folder.table(0.0).keys
    rules = KeyRules(("offer:orders.*",), ("take:orders.*",))
    assert folder.set_rules("backend", NAMES[0], rules) == KeyRules()
    found = {key.name: key for key in folder.table(0.0).keys}
    assert found[NAMES[0]].rules == rules
    assert found[NAMES[0]].public == next(key.public for key in before if key.name == NAMES[0])
    assert folder.set_rules("backend", NAMES[0], KeyRules()) == rules
    assert sorted(folder.table(0.0).keys) == sorted(before)
    assert folder.set_rules("backend", "unknown", rules) is None
    with pytest.raises(ValueError, match="call:x"):
        folder.set_rules("backend", NAMES[0], KeyRules(("call:x",)))


# Promise: PERM-3
def test_a_key_whose_rules_cannot_be_read_is_not_accepted_and_the_reason_is_given(folder: KeyFolder) -> None:
    path = folder.file_of("backend", NAMES[0])
    path.write_text(path.read_text().replace("metadata\n", 'metadata\n    deny = "offer"\n'))
    assert NAMES[0] not in names(folder)
    assert "offer" in folder.faults[path]
    assert str(path) in folder.faults[path]


# Promise: PERM-3
def test_a_token_passes_its_permissions_on_to_the_key_that_it_admits(folder: KeyFolder) -> None:
    rules = KeyRules(("call:orders.*",), ("call:orders.delete",))
    token = folder.new_token("frontend", "web", 1e10, rules)
    [unused] = [key for key in folder.table(0.0).keys if key.is_token]
    assert unused.rules == rules
    ask = StoreKey(unused.name, "frontend", "web", certificate().public, None)
    assert folder.enrol(ask, 0.0) is None
    [web] = [key for key in folder.table(0.0).keys if key.role == "frontend"]
    assert (web.name, web.rules) == ("web", rules)
    assert web.public != token.public


# Promise: PERM-6
def test_the_token_of_a_helen_stores_one_pair_in_both_roles_and_no_other_token_does(folder: KeyFolder) -> None:
    folder.new_token("helen", "helen-9", 1e10, key_seconds=90.0)
    [unused] = [key for key in folder.table(0.0).keys if key.is_token]
    assert (unused.role, unused.is_helens) == ("backend", True)
    pair = certificate().public
    asked = StoreKey(unused.name, "backend", "helen-9", pair, None, is_helens=True)
    assert folder.enrol(msgspec.structs.replace(asked, is_helens=False), 0.0) is not None
    folder.store("frontend", "helen-9", certificate())
    refusal = folder.enrol(asked, 0.0)
    assert refusal is not None, "a name in one role belongs to another key"
    assert refusal.code == 409
    folder.revoke("frontend", "helen-9")
    assert folder.enrol(asked, 0.0) is None
    stored = [key for key in folder.table(0.0).keys if key.name == "helen-9"]
    assert sorted((key.role, key.public, key.expires) for key in stored) == [
        ("backend", pair, 90.0),
        ("frontend", pair, 90.0),
    ]
    folder.new_token("backend", "worker", 1e10)
    [unused] = [key for key in folder.table(0.0).keys if key.is_token]
    ask = StoreKey(unused.name, "backend", "worker", certificate().public, None, is_helens=True)
    assert folder.enrol(ask, 0.0) is not None, "the folder decides, not who asks"


# Promise: KEY-3
def test_an_expiry_is_a_line_of_the_keys_file_beside_its_permissions(folder: KeyFolder) -> None:
    rules = KeyRules(("offer:orders.*",))
    folder.set_rules("backend", NAMES[0], rules)
    assert folder.set_expiry("backend", NAMES[0], 500.0)
    [found] = [key for key in folder.table(1_000.0).keys if key.name == NAMES[0]]
    assert (found.expires, found.rules, found.is_token) == (500.0, rules, False)
    assert (found.is_expired(499.0), found.is_expired(500.0)) == (False, True)
    assert folder.set_expiry("backend", NAMES[0], 0.0)
    [found] = [key for key in folder.table(1_000.0).keys if key.name == NAMES[0]]
    assert (found.expires, found.rules) == (0.0, rules)
    assert not folder.set_expiry("backend", "unknown", 500.0)


# Promise: KEY-3
@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-1"])
def test_a_key_whose_expiry_cannot_be_read_is_not_accepted(folder: KeyFolder, text: str) -> None:
    path = folder.file_of("backend", NAMES[0])
    path.write_text(path.read_text().replace("metadata\n", f'metadata\n    expires = "{text}"\n'))
    assert NAMES[0] not in names(folder)
    assert str(path) in folder.faults[path]


# Promise: KEY-3
def test_the_key_of_a_token_expires_its_lifetime_after_the_enrolment(folder: KeyFolder) -> None:
    folder.new_token("frontend", "web", 1e9, key_seconds=90.0)
    [unused] = [key for key in folder.table(0.0).keys if key.is_token]
    assert folder.enrol(StoreKey(unused.name, "frontend", "web", certificate().public, None), 1_000.0) is None
    [web] = [key for key in folder.table(0.0).keys if key.role == "frontend"]
    assert (web.expires, web.is_token) == (1_090.0, False)


# Promise: PERM-1
def test_the_key_of_programs_on_this_machine_is_known_as_such(folder: KeyFolder) -> None:
    folder.local("frontend", "frontend", "local", [], folder.server())
    programs = [key.name for key in folder.table(0.0).keys if key.is_program]
    assert programs == ["local"]


# Promise: KEY-2
def test_a_new_key_of_a_peer_is_stored_beside_the_previous_one_until_it_is_retired(folder: KeyFolder) -> None:
    old, new, other = (certificate().public for _ in range(3))
    folder.store("peer", "east", CurveCertificate(public=old, metadata={"endpoint": "tcp://10.0.0.1:5702"}))

    def stored() -> Key:
        [found] = [key for key in folder.table(0.0).keys if key.role == "peer"]
        return found

    def hears(server_key: str, previous_key: str) -> bool:
        news = peer_key_news(stored(), server_key, previous_key)
        return news is not None and folder.learn_key(news)

    assert not hears(old, "")
    assert not hears("", "")
    assert not hears("no key", old)
    assert hears(new, old)
    assert (stored().public, stored().previous, stored().endpoint) == (new, old, "tcp://10.0.0.1:5702")
    assert not hears(new, old)
    assert not hears(other, new), "not before the first change is finished"
    assert not hears(old, ""), "nor back"
    assert hears(new, "")
    assert (stored().public, stored().previous) == (new, "")
    assert not folder.learn_key(LearnPeerKey("unknown", old, new, old))


ROOT = AdminConfig(auth_id="root", password_hash="$argon2id$x", role="admin")


# Promise: AUDIT-3
def test_a_key_with_the_name_of_an_administrator_is_neither_made_nor_accepted(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path)
    folder.init()
    folder.store("frontend", "root", certificate())
    folder.store("frontend", "root.ci", certificate())
    config = BrokerConfig(identity="east-1", data_dir=str(tmp_path), curve=True, admins=(ROOT,))
    curve = open_curve(config)
    assert curve is not None
    try:
        curve.read_now_blocking()
        assert sorted(key.name for key in curve.table.keys) == ["root.ci"]
        assert "keys revoke frontend root" in curve.folder.faults[folder.file_of("frontend", "root")]
        curve.reserved = frozenset
        curve.read_now_blocking()
        assert sorted(key.name for key in curve.table.keys) == ["root", "root.ci"]
    finally:
        curve.close()


# Promise: AUDIT-3
@pytest.mark.parametrize("words", [("keys", "new", "frontend", "root"), ("token", "frontend", "--name", "root")])
def test_the_command_line_knows_the_names_of_administrators(folder: KeyFolder, words: tuple[str, ...]) -> None:
    folder.reserved = frozenset({"root"})
    folder.write_reserved()
    where = ("--data-dir", str(folder.path.parent))
    refused = CliRunner().invoke(cli, [*words, *where])
    assert refused.exit_code
    assert "root is the name of an administrator" in refused.stderr
    assert not folder.file_of("frontend", "root").exists()


# Promise: TIME-1
def test_a_token_is_refused_by_the_wall_clock_and_deleted_by_the_time_that_passed(tmp_path):
    folder = KeyFolder(tmp_path)
    folder.init()
    folder.new_token("frontend", "web", 2_000.0)
    assert [key.is_token for key in folder.table(3_000.0).keys] == []
    folder.sweep(1_900.0)
    assert [key.is_token for key in folder.table(1_950.0).keys] == [True], "the clock was set right again"
    folder.sweep(2_000.0)
    assert list(folder.table(1_950.0).keys) == []


# Promise: CURVE-8, CURVE-25
@pytest.mark.parametrize("how", ["vanished", "damaged"])
@pytest.mark.parametrize("restarts", [False, True])
def test_no_token_takes_the_name_of_a_key_that_is_accepted_without_its_file(
    folder: KeyFolder, how: str, restarts: bool
) -> None:
    folder.new_token("backend", "", 1e10)
    folder.new_token("helen", "", 1e10)
    accepted = {key.name: key.public for key in folder.table(0.0).keys if not key.is_token}
    folder.write_accepted()
    for name in NAMES:
        path = folder.file_of("backend", name)
        path.unlink() if how == "vanished" else path.write_bytes(b"")
    if restarts:
        folder = started(folder)
    tokens = [key for key in folder.table(0.0).keys if key.is_token]
    for token in tokens:
        ask = StoreKey(token.name, "backend", NAMES[0], certificate().public, None, is_helens=token.is_helens)
        refusal = folder.enrol(ask, 0.0)
        assert refusal is not None
        assert refusal.code == 409
    assert {key.name: key.public for key in folder.table(0.0).keys if not key.is_token} == accepted
    folder.write_accepted()
    assert folder.revoke("backend", NAMES[0])
    unused = next(token for token in tokens if not token.is_helens)
    ask = StoreKey(unused.name, "backend", NAMES[0], certificate().public, None)
    assert folder.enrol(ask, 0.0) is None, "the token was not consumed, and the name of a revoked key is free"


# Promise: CURVE-25
@pytest.mark.parametrize("restarts", [False, True])
def test_a_key_that_was_revoked_and_stored_again_by_hand_is_protected_like_any_other(
    folder: KeyFolder, restarts: bool
) -> None:
    path = folder.file_of("backend", NAMES[0])
    content, times = path.read_bytes(), (path.stat().st_atime, path.stat().st_mtime)
    assert folder.revoke("backend", NAMES[0])
    assert names(folder) == list(NAMES[1:])
    path.write_bytes(content)
    os.utime(path, times)  # as `cp -p` from a backup
    assert names(folder) == list(NAMES)
    folder.write_accepted()
    for name in NAMES:
        folder.file_of("backend", name).unlink()
    assert names(started(folder) if restarts else folder) == list(NAMES)


# Promise: CURVE-25
def test_a_key_that_is_revoked_while_the_folder_is_read_stays_revoked(
    folder: KeyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.revoke("backend", NAMES[0])
    folder.store("backend", "other", certificate())
    revoked_file(folder.file_of("backend", NAMES[0])).rename(revoked_file(folder.file_of("backend", NAMES[1])))
    before = Path.rename

    def revoked_meanwhile(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", before)
        folder.revoke("backend", NAMES[1])
        return before(path, target)

    monkeypatch.setattr(Path, "rename", revoked_meanwhile)
    folder.table(0.0)
    for name in NAMES[2:]:
        folder.file_of("backend", name).unlink()
    assert NAMES[1] not in names(folder)
