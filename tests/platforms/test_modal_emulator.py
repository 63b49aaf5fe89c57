"""Rehearsal on the Modal emulator, and the emulator itself."""

import os
import signal
import socket
from pathlib import Path

import pytest

from emulators.modal.volumes import Copy
from stages.platforms.common.rehearsal import rehearsal
from tests.platforms.modal_kit import Emulator, delivered, emulator, job_id, make_job, start, submit, until


def test_a_rehearsal_never_reaches_a_configured_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as account:
        account.setblocking(False)
        url = f"http://127.0.0.1:{account.getsockname()[1]}"
        toml = f'[mine]\nserver_url = "{url}"\ntoken_id = "ak-mine"\ntoken_secret = "as-mine"\nactive = true\n'
        (tmp_path / ".modal.toml").write_text(toml)
        for name, value in {
            "HOME": str(tmp_path),
            "MODAL_SERVER_URL": url,
            "MODAL_TOKEN_ID": "ak-mine",
            "MODAL_TOKEN_SECRET": "as-mine",
            "MODAL_PROFILE": "mine",
            "https_proxy": url,
            "HTTP_PROXY": url,
        }.items():
            monkeypatch.setenv(name, value)
        with rehearsal("modal", tmp_path / "emulator", None):
            inside = Emulator(tmp_path / "emulator", dict(os.environ))
            status, output = submit(inside, tmp_path / "state", make_job(tmp_path / "job", steps=1))
            assert status == 0, output
            assert "mine" not in str([value for name, value in os.environ.items() if name.startswith("MODAL_")])
            assert inside.runs(job_id(tmp_path / "job")) == 1
        assert os.environ["MODAL_TOKEN_ID"] == "ak-mine"
        with pytest.raises(BlockingIOError):
            account.accept()


def test_without_namespaces_a_job_runs_as_well_and_state_outlives_the_emulator(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=1)
    with emulator(tmp_path / "emulator", PARITY_NO_NAMESPACES="1") as first:
        status, output = submit(first, tmp_path / "state", job)
        assert status == 0, output
    with emulator(tmp_path / "emulator") as second:
        status, output = submit(second, tmp_path / "elsewhere", job)
        assert status == 0, output
        assert second.runs(job_id(job)) == 1


@pytest.mark.slow
def test_a_killed_emulator_leaves_no_container_and_a_later_one_goes_on(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=4, pause=0.9)
    with emulator(tmp_path / "emulator") as first:
        child = start(first, tmp_path / "state", job, "--kill", "running")
        child.communicate(timeout=60)
        assert first.processes()
        (pid,) = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _is_emulator(path, first)]
        os.kill(pid, signal.SIGKILL)
        until(lambda: not first.processes())
    with emulator(tmp_path / "emulator") as second:
        status, output = submit(second, tmp_path / "state", job)
        assert status == 0, output
        assert delivered(output)["result"]["resumed"][0] >= 1
        assert second.runs(job_id(job)) == 1


def _is_emulator(path: Path, found: Emulator) -> bool:
    try:
        return path.read_bytes().split(b"\0")[1:5] == [
            b"-m",
            b"emulators.modal",
            b"--folder",
            str(found.folder).encode(),
        ]
    except OSError:
        return False


def test_an_unknown_call_fails_loudly(emulated: Emulator) -> None:
    import modal as sdk

    with pytest.raises(sdk.exception.UnimplementedError, match="the Modal emulator does not know DictGetOrCreate"):
        sdk.Dict.from_name("some", create_if_missing=True).hydrate()


def test_what_a_container_did_not_commit_is_not_seen_outside(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "old").write_text("old")
    inside = Copy(volume, tmp_path / "copy")
    (inside.place / "new").write_text("new")
    (inside.place / "old").unlink()
    assert [path.name for path in volume.iterdir()] == ["old"]
    inside.commit()
    assert [path.name for path in volume.iterdir()] == ["new"]
