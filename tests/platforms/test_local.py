"""Promise: the local platform leaves nothing running, takes a killed run up again, and mixes no results."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import clone, read, run, stage

STEPS = "max_steps: 40"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone ready to train `pretrain`, for forty steps."""
    folder = clone(tmp_path_factory.mktemp("local") / "project")
    path = folder / "protocols/embedded.yaml"
    path.write_text(path.read_text().replace("max_steps: 80", STEPS).replace("save_steps: 40", "save_steps: 10"))
    for name, *task in (["check"], ["sources"], ["prepare", "pretrain"]):
        assert stage(name, *task, cwd=folder).returncode == 0
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def start(project: Path, state: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "stages.train", "pretrain"]
    environment = os.environ | {"PARITY_STATE": str(state)}
    return subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def workers(state: Path) -> list[int]:
    """Processes that work on a job below `state`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(state) in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def gone(state: Path) -> bool:
    until = time.monotonic() + 10
    while workers(state) and time.monotonic() < until:
        time.sleep(0.1)
    return not workers(state)


def until_line(child: "subprocess.Popen[str]", words: str) -> Iterator[str]:
    assert child.stdout is not None
    for line in child.stdout:
        yield line
        if words in line:
            return


def weights(project: Path) -> str:
    return str(read(project / "metrics/pretrain/evidence/train.json")["model_weights_sha256"])


def test_after_sigkill_no_worker_is_left_and_the_same_command_resumes_to_the_same_weights(
    project: Path, state: Path, tmp_path: Path
) -> None:
    child = start(project, state)
    assert list(until_line(child, "step 20/"))[-1].startswith("step 20/40")
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert gone(state)
    done = stage("train", "pretrain", cwd=project, env={"PARITY_STATE": str(state)})
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stdout
    attempts = read(project / "metrics/pretrain/evidence/train.json")["receipt"]["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["killed", "succeeded"]
    assert not list((state / "local").iterdir())
    resumed = weights(project)
    assert stage("train", "pretrain", cwd=project, env={"PARITY_STATE": str(tmp_path / "other")}).returncode == 0
    assert weights(project) == resumed


def test_sigterm_ends_the_worker_too_and_is_one_line(project: Path, state: Path) -> None:
    child = start(project, state)
    list(until_line(child, "step 10/"))
    child.terminate()
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 130
    assert gone(state)
    assert errors.strip().splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in errors


def test_two_processes_that_want_the_same_job_take_turns(project: Path, state: Path) -> None:
    first = start(project, state)
    list(until_line(first, "step 10/"))
    second = start(project, state)
    assert "waiting: another process runs job" in list(until_line(second, "waiting"))[-1]
    first.communicate(timeout=600)
    assert first.returncode == 0
    after = weights(project)
    second.communicate(timeout=600)
    assert second.returncode == 0
    assert weights(project) == after
    assert not list((state / "local").iterdir())


def test_an_output_that_was_altered_is_refused_and_made_anew(project: Path, state: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from stages import platforms\n"
        "from stages.platforms import local\n"
        "def fetch(self, handle, folder, out):\n"
        "    (out / 'log_history.csv').write_text('step\\n')\n"
        "local.Platform.fetch = fetch\n"
        "from stages import command, train\n"
        "import sys\n"
        "sys.argv = ['train', 'pretrain']\n"
        "command.run(train.main)\n"
    )
    done = run(sys.executable, "-c", code, cwd=project, check=False, env={"PARITY_STATE": str(state)})
    assert done.returncode == 1
    assert "log_history.csv: 5 bytes, the manifest says" in done.stderr
    again = stage("train", "pretrain", cwd=project, env={"PARITY_STATE": str(state)})
    assert again.returncode == 0, again.stderr
    assert (project / "metrics/pretrain/loss.csv").read_text().startswith("step,epoch,loss")
