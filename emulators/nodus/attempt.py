"""One attempt at a Job: its folders, its process, its log, its snapshots, and what ends it."""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from emulators.nodus.house import House
from emulators.nodus.runtime import Runtime
from emulators.nodus.store import Object

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # so that a rehearsal computes as the platform `local` does
TICK, GRACE, SNAPSHOT_EVERY = 0.02, 5.0, 1.0  # seconds
STRIKES = {"preempt": "Preempted", "lose": "NodeLost", "oom": "OOMKilled", "cap": "MaxCostReached"}
KILLED = 128 + signal.SIGKILL


class Outcome(NamedTuple):
    phase: str  # Succeeded, Failed, Cancelled or, for a Job at its cap, Suspended
    reason: str | None = None
    exit_code: int | None = None
    trigger: str | None = None  # of an interruption, after which another attempt may follow


class Attempt:
    def __init__(self, house: House, job: Object, epoch: int, deadline: float):
        self.house, self.spec, self.epoch, self.deadline = house, job["spec"], epoch, deadline
        self.name, self.project = job["metadata"]["name"], job["metadata"]["namespace"]
        self.home = house.job(self.name) / str(epoch)
        self.snapshot = house.job(self.name) / "snapshot"
        self.snapshots, self.newest, self.due = 0, 0.0, 0.0
        self.seen: set[str] = set()  # faults whose line has appeared in the log

    def start(self) -> None:
        restored = self.prepare()
        self.runtime = Runtime(self.house, self.project, self.home / "mounts")
        command = [self.path(text) for text in (self.spec.get("command") or []) + (self.spec.get("args") or [])]
        # The supervisor is this project's; the command sees the uploaded code alone.
        command = [sys.executable, "-I", str(Path(__file__).with_name("node.py")), *command]
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        where: Any = {"cwd": self.home / "code", "env": self.environment(restored)}
        self.process = subprocess.Popen(command, start_new_session=True, **pipes, **where)
        self.pump = threading.Thread(target=self.copy_log, daemon=True)
        self.pump.start()

    def prepare(self) -> bool:
        """Lay out code, volumes and state; whether a snapshot was restored."""
        shutil.rmtree(self.home, ignore_errors=True)
        for name in ("code", "outputs", "mounts"):
            (self.home / name).mkdir(parents=True)
        if blob := (self.spec.get("source") or {}).get("blob"):
            with tarfile.open(fileobj=io.BytesIO(self.house.blob(blob).read_bytes()), mode="r:gz") as archive:
                archive.extractall(self.home / "code", filter="data")
        for mount in self.spec.get("volumes") or []:
            self.mount(mount["volume"])
        if restored := self.snapshot.is_dir():
            shutil.copytree(self.snapshot, self.home / "state")
        (self.home / "state").mkdir(exist_ok=True)
        return restored

    def mount(self, volume: str) -> None:
        """What an attempt writes to a volume is its own until it commits; a read-only one is linked, not copied."""
        spec = self.house.store.get("Volume", self.project, volume)["spec"]
        target, source = self.home / "mounts" / volume, self.house.volume(volume)
        source.mkdir(parents=True, exist_ok=True)
        if spec.get("accessMode") == "ReadOnlyMany":
            target.symlink_to(source)
        else:
            shutil.copytree(source, target)

    def path(self, text: str) -> str:
        """`text` with the container's paths replaced by those that stand for them here."""
        places = {mount["mountPath"]: f"mounts/{mount['volume']}" for mount in self.spec.get("volumes") or []}
        for place, name in places.items():
            text = text.replace(place, str(self.home / name))
        return text

    def environment(self, restored: bool) -> dict[str, str]:
        given = {name: os.environ[name] for name in THREADS if name in os.environ}
        given |= {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "NODUS_ATTEMPT": f"{self.name}-{self.epoch}",
            "NODUS_ATTEMPT_EPOCH": str(self.epoch),
            "NODUS_PROJECT": self.project,
            "NODUS_OUTPUT_DIR": str(self.home / "outputs"),
            "NODUS_STATE_DIR": str(self.home / "state"),
            "NODUS_RUNTIME_SOCKET": str(self.runtime.path),
        }
        given |= {item["name"]: self.path(item["value"]) for item in self.spec.get("env") or []}
        return given | ({"NODUS_RESTORED": "1"} if restored else {})

    def copy_log(self) -> None:
        assert self.process.stdout is not None
        with self.house.log(self.name).open("ab", buffering=0) as log:
            for line in self.process.stdout:
                log.write(line if line.endswith(b"\n") else line + b"\n")
                text = line.decode(errors="replace")
                faults = self.house.faults.read().items()
                self.seen |= {name for name, fault in faults if "at" in fault and re.search(fault["at"], text)}

    def follow(self) -> Outcome:
        """Wait for what ends the attempt, and see to it that nothing of it runs on."""
        try:
            while self.process.poll() is None:
                if outcome := self.struck() or self.stopped():
                    return outcome
                self.save_if_due()
                time.sleep(TICK)
            code = self.process.returncode
            if code in (KILLED, -signal.SIGKILL):
                return Outcome("Failed", "OOMKilled", KILLED)
            return Outcome("Failed", "CustomerExit", code) if code else Outcome("Succeeded", exit_code=0)
        finally:
            self.kill(signal.SIGKILL)
            self.process.wait()
            self.pump.join(timeout=GRACE)
            self.runtime.stop()

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end_gently(self, outcome: Outcome) -> Outcome:
        self.kill(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=GRACE)
        return outcome

    def struck(self) -> Outcome | None:
        """A fault that is due: its line has been seen, and as many snapshots taken as it asks for."""
        for name, reason in STRIKES.items():
            fault = self.house.faults.peek(name)
            if fault is None or ("at" in fault and name not in self.seen):
                continue
            if self.snapshots >= fault.get("snapshots", 0):
                self.house.faults.take(name)
                return self.strike(reason, fault.get("notice", True))
        return None

    def strike(self, reason: str, notice: bool) -> Outcome:
        if reason == "OOMKilled":
            return Outcome("Failed", reason, KILLED)
        if reason == "NodeLost" or not notice:
            return Outcome("Failed", reason, trigger="HeartbeatLoss")
        self.save()
        if reason == "MaxCostReached":
            return self.end_gently(Outcome("Suspended", reason))
        return self.end_gently(Outcome("Failed", reason, trigger="PreemptionNotice"))

    def stopped(self) -> Outcome | None:
        if self.house.store.get("Job", self.project, self.name)["spec"].get("state") == "Cancelled":
            return self.end_gently(Outcome("Cancelled", "Stopped", 128 + signal.SIGTERM))
        if time.time() > self.deadline:
            return self.end_gently(Outcome("Failed", "DeadlineExceeded", 128 + signal.SIGTERM))
        return None

    def save_if_due(self) -> None:
        if time.monotonic() < self.due:
            return
        every = (self.house.faults.peek("snapshot") or {}).get("every", SNAPSHOT_EVERY)
        self.due = time.monotonic() + every
        with contextlib.suppress(FileNotFoundError):
            newest = max((path.stat().st_mtime for path in (self.home / "state").rglob("*")), default=0.0)
            if newest > self.newest:
                self.save()
                self.newest = newest

    def save(self) -> None:
        """Copy the state as it stands, half-written files included, as a node would."""
        fresh = self.snapshot.with_name("snapshot.new")
        shutil.rmtree(fresh, ignore_errors=True)
        with contextlib.suppress(shutil.Error):  # a file went while it was copied
            shutil.copytree(self.home / "state", fresh)
        shutil.rmtree(self.snapshot, ignore_errors=True)
        fresh.rename(self.snapshot)
        self.snapshots += 1
