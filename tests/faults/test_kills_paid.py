"""Promise: a submit side killed at any moment, or one whose disk is full or not ours while it fetches, leads to no
second payment, no lost hold, and nothing that runs on."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.evidence import ledger
from tests.conftest import ROOT
from tests.faults.disk import Disk
from tests.faults.kit import HOOK, Place, Point, interrupted, points
from tests.faults.sides import FETCHED, ModalSide, NodusSide, in_the_fetch
from tests.platforms import modal_kit
from tests.platforms.nodus_setup import Emulator, wait_until


def fetching(touched: list[str]) -> list[int]:
    """Which touches, counted from one, open a file of the output that is being fetched."""
    return [n for n, what in enumerate(touched, 1) if what.startswith("open ") and FETCHED.search(what)]


def moment(point: Point, touched: list[str]) -> int:
    """The touch of a point: among all, or among those of the fetch."""
    if not point.name.endswith("fetch"):
        return point.among(len(touched))
    found = fetching(touched)
    return found[int(point.fraction * len(found))]


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(HOOK)
    return folder


@pytest.fixture(scope="module")
def nodus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    pytest.importorskip("nodus", reason="the SDK is the extra `nodus`")
    folder = tmp_path_factory.mktemp("nodus")
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "tmp"))
        running = Emulator(folder / "emulator")
    yield running
    assert running.stop() == 0
    assert list((folder / "tmp").iterdir()) == []


@pytest.fixture(scope="module")
def touched(nodus: Emulator, hook: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a submit side that nobody disturbs does to which files."""
    side = NodusSide(nodus, Place(tmp_path_factory.mktemp("undisturbed"), ROOT), hook)
    done = side.run()
    assert done.returncode == 0, done.stderr
    assert side.phases() == ["Succeeded"]
    return side.place.touched("tests.faults.paid")


def answer(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """What a submit side that has ended well says last."""
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("point", [*points("nodus", 14, sample=(6, 11)), *points("nodus fetch", 2)])
def test_a_submit_side_on_nodus(point: Point, nodus: Emulator, touched: list[str], hook: Path, tmp_path: Path) -> None:
    side = NodusSide(nodus, Place(tmp_path, ROOT), hook)
    killed = side.run(moment(point, touched), point.signal)
    interrupted(killed, point.signal)
    assert side.place.quiet()
    if point.name == "nodus fetch":
        assert side.phases() == ["Succeeded"]
        assert point.signal == signal.SIGTERM or in_the_fetch(side.place.state, "nodus")
    said = answer(side.run())
    assert set(said["files"]) == {"manifest.json", "result.json", "model/config.json", "model/model.safetensors"}
    # A notice cancels what had not ended; a kill without one is taken up. Nothing is ever done twice.
    assert len(side.jobs) <= (2 if point.signal == signal.SIGTERM else 1)
    side.ended_well(said)


def test_a_second_submit_side_of_a_job_waits_and_pays_nothing(nodus: Emulator, hook: Path, tmp_path: Path) -> None:
    side = NodusSide(nodus, Place(tmp_path, ROOT), hook)
    first = side.place.start(side.environment(), *side.command)
    wait_until(lambda: any(side.place.state.glob("nodus/*/job")), 60)
    first.send_signal(signal.SIGSTOP)  # held still, it surely has the job when the second comes
    second = side.place.start(side.environment(), *side.command)
    assert second.stdout is not None
    waiting = second.stdout.readline()
    first.send_signal(signal.SIGCONT)
    said = [child.communicate() for child in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert waiting.startswith("waiting: another process runs job")
    assert "waiting" not in said[0][0]
    results = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert results[0]["files"] == results[1]["files"]
    assert side.phases() == ["Succeeded"]
    (entry,) = ledger.entries("default", side.place.state)
    assert entry.charge_usd == results[0]["receipt"]["charge_usd"]
    side.ended_well(results[0])


# A disk that is full, or can be written no more, when the output of a paid job comes back.

STRIKES: dict[str, tuple[Callable[[Disk], None], str]] = {
    "full": (lambda disk: disk.fill(1 << 20), "No space left on device; free some space and run it again"),
    "no inodes": (lambda disk: disk.take_inodes(3), "No space left on device; free some space and run it again"),
    "read-only": (Disk.lock, "Read-only file system; choose a folder that can be written"),
}


def fetched_later(fault: str, disk: Disk, side: NodusSide | ModalSide, at: int) -> dict[str, Any]:
    """The job is over and its fetch has begun when the disk goes bad under it; then it is in order again."""
    side.place.state = disk.view(disk.folder / "state")

    def submit(at: int) -> Any:
        return disk.run([sys.executable, *side.command], ROOT, env=side.environment(at))

    interrupted(submit(at), signal.SIGKILL)
    strike, words = STRIKES[fault]
    strike(disk)
    failed = submit(0)
    assert failed.returncode == 1, (failed.stdout, failed.stderr)
    (line,) = failed.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line
    (entry,) = ledger.entries("default", side.place.state)
    assert entry.final or entry.held_usd == "1.00"
    disk.free()
    return answer(submit(0))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


@pytest.mark.faults
@pytest.mark.parametrize("fault", STRIKES)
def test_the_output_of_a_job_on_nodus_is_fetched_later_and_not_paid_again(
    fault: str, disk: Disk, nodus: Emulator, touched: list[str], hook: Path, tmp_path: Path
) -> None:
    side = NodusSide(nodus, Place(tmp_path, ROOT), hook, disk.folder / "state")
    said = fetched_later(fault, disk, side, fetching(touched)[0])
    assert len(side.jobs) == 1
    side.ended_well(said)


@pytest.fixture(scope="module")
def modal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[modal_kit.Emulator]:
    with modal_kit.emulator(tmp_path_factory.mktemp("modal")) as found:
        yield found


@pytest.fixture(scope="module")
def modal_touched(modal: modal_kit.Emulator, hook: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    side = ModalSide(modal, Place(tmp_path_factory.mktemp("undisturbed"), ROOT), hook)
    answer(side.run())
    return side.place.touched("tests.platforms.modal_submit")


@pytest.mark.parametrize("point", [*points("modal", 10, sample=(5,)), *points("modal fetch", 2)])
def test_a_submit_side_on_modal(
    point: Point, modal: modal_kit.Emulator, modal_touched: list[str], hook: Path, tmp_path: Path
) -> None:
    side = ModalSide(modal, Place(tmp_path, ROOT), hook)
    killed = side.run(moment(point, modal_touched), point.signal)
    interrupted(killed, point.signal)
    assert side.place.quiet()
    if point.name == "modal fetch":
        assert side.tries() == ["succeeded"]
        assert in_the_fetch(side.place.state, "modal")
    said = answer(side.run())
    assert side.runs() <= (2 if point.signal == signal.SIGTERM else 1)
    side.ended_well(said)


@pytest.mark.faults
@pytest.mark.parametrize("fault", STRIKES)
def test_the_output_of_a_job_on_modal_is_fetched_later_and_not_paid_again(
    fault: str, disk: Disk, modal: modal_kit.Emulator, modal_touched: list[str], hook: Path, tmp_path: Path
) -> None:
    side = ModalSide(modal, Place(tmp_path, ROOT), hook, disk.folder / "state")
    said = fetched_later(fault, disk, side, fetching(modal_touched)[0])
    assert side.runs() == 1
    side.ended_well(said)
