"""A Job's life: queued, attempted, attempted again after an interruption, collected, torn down, billed."""

import hashlib
import re
import sys
import tarfile
import threading
import time
import traceback
from datetime import datetime
from decimal import Decimal
from typing import Any

import zstandard

from emulators.nodus.attempt import TICK, Attempt, Outcome
from emulators.nodus.billing import Meter, cost
from emulators.nodus.house import House
from emulators.nodus.store import Object, now

TERMINAL = ("Succeeded", "Failed", "Cancelled")
UNITS = {"h": 3600, "m": 60, "s": 1}
MAX_ATTEMPTS = 5
TEARDOWN_SECONDS = 0.1


def seconds(duration: str) -> int:
    """A Go duration, such as 1h30m."""
    parts = re.findall(r"([0-9]+)([hms])", duration)
    if not parts or "".join(map("".join, parts)) != duration:
        raise ValueError(f"{duration!r} is no duration")
    return sum(int(number) * UNITS[unit] for number, unit in parts)


class Life(threading.Thread):
    """The thread that takes one Job to its end; after a restart, from where its object and folder stand."""

    def __init__(self, house: House, job: Object):
        super().__init__(daemon=True)
        self.house, self.project, self.name = house, job["metadata"]["namespace"], job["metadata"]["name"]
        self.meters = house.meters(self.name)
        house.job(self.name).mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        try:
            if self.job["status"]["phase"] not in TERMINAL:
                self.end(self.live())
            self.settle()
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            self.set(phase="Failed", reason="InternalError", message=str(error))

    @property
    def job(self) -> Object:
        return self.house.store.get("Job", self.project, self.name)

    def set(self, **status: Any) -> Object:
        return self.house.store.update("Job", self.project, self.name, lambda o: o["status"].update(status))

    def set_attempt(self, epoch: int, timing: str, **status: Any) -> None:
        def change(value: Object) -> None:
            value["status"].update(status)
            value["status"]["timings"][timing] = now()

        self.house.store.update("Attempt", self.project, f"{self.name}-{epoch}", change)

    def cost(self, **how: bool) -> dict[str, Any]:
        return cost(self.meters, self.job["spec"].get("maxCostUSD"), **how)

    @property
    def cancelled(self) -> bool:
        return bool(self.job["spec"].get("state") == "Cancelled")

    def live(self) -> Outcome:
        """Attempts until one is not followed by another."""
        for found in self.house.attempts(self.job):
            if found["status"]["phase"] not in TERMINAL:  # it ran when the emulator was ended
                self.close(found["spec"]["epoch"], Outcome("Failed", "NodeLost", trigger="HeartbeatLoss"))
        until = time.monotonic() + (self.house.faults.take("queue") or {}).get("seconds", 0)
        while time.monotonic() < until and not self.cancelled:
            time.sleep(TICK)
        outcome = Outcome("Suspended") if self.job["status"]["phase"] == "Suspended" else None
        while outcome is None or (outcome.trigger and self.job["status"]["attempts"]["total"] < MAX_ATTEMPTS):
            if self.cancelled:
                return Outcome("Cancelled", "Stopped")
            outcome = self.attempt(len(self.house.attempts(self.job)) + 1)
        if outcome.phase == "Suspended":  # and it stays so until it is cancelled
            self.set(phase="Suspended", reason="MaxCostReached", active=0, cost=self.cost(held=True))
            while not self.cancelled:
                time.sleep(TICK)
            return Outcome("Cancelled", "Stopped")
        return outcome

    def attempt(self, epoch: int) -> Outcome:
        job, clock = self.begin(epoch), time.monotonic()
        deadline = datetime.fromisoformat(job["status"]["timeoutStartTime"]).timestamp()
        attempt = Attempt(self.house, job, epoch, deadline + seconds(job["spec"].get("timeout") or "24h"))
        meter = Meter()
        self.meters.append(meter)
        attempt.start()
        meter.add("boot" if epoch == 1 else "restore", time.monotonic() - clock)
        clock = time.monotonic()
        self.set_attempt(epoch, "commandStartedTime", phase="Running")
        self.set(phase="Running", cost=self.cost(held=True), **self.once("startTime"))
        outcome = attempt.follow()
        meter.add("running", time.monotonic() - clock)
        if attempt.snapshots:
            before = (self.job["status"].get("checkpoint") or {"seq": 0})["seq"]
            self.set(checkpoint={"seq": before + attempt.snapshots, "time": now()})
        self.close(epoch, outcome)
        return outcome

    def once(self, key: str) -> dict[str, str]:
        return {} if key in self.job["status"] else {key: now()}

    def begin(self, epoch: int) -> Object:
        spec: Object = {"slot": "0", "epoch": epoch}
        if epoch > 1 and (checkpoint := self.job["status"].get("checkpoint")):
            spec["restoreFrom"] = {"seq": checkpoint["seq"]}
        meta = {"name": f"{self.name}-{epoch}", "namespace": self.project, "labels": {"nodus.dev/job": self.name}}
        status = {"phase": "Provisioning", "timings": {"queuedTime": now()}}
        value = {"apiVersion": "nodus.dev/v1", "kind": "Attempt", "metadata": meta, "spec": spec, "status": status}
        self.house.store.put(value)
        counts = {"current": epoch, "total": epoch, "max": MAX_ATTEMPTS}
        return self.set(phase="Provisioning", attempts=counts, active=1, **self.once("timeoutStartTime"))

    def close(self, epoch: int, outcome: Outcome) -> None:
        status: Object = {"phase": "Cancelled" if outcome.phase == "Suspended" else outcome.phase}
        status |= {"reason": outcome.reason} if outcome.reason else {}
        status |= {"exitCode": outcome.exit_code} if outcome.exit_code is not None else {}
        if outcome.trigger:
            status["interruption"] = {"trigger": outcome.trigger, "time": now()}
        self.set_attempt(epoch, "finishedTime", **status, **self.charge())

    def charge(self) -> Object:
        """The last attempt's part of the bill; the meters are saved with it."""
        self.house.save_meters(self.name, self.meters)
        own = cost(self.meters[-1:])
        return {"actual": {"costUSD": own["totalUSD"], "segments": own["bySegment"]}}

    def end(self, outcome: Outcome) -> None:
        changes: Object = {"phase": outcome.phase, "completionTime": now(), "active": 0}
        changes |= {"reason": outcome.reason} if outcome.reason else {}
        clock = time.monotonic()
        if outcome.phase == "Succeeded":
            changes["outputs"] = [self.collect()]
            self.meters[-1].add("teardown", time.monotonic() - clock)
        elif outcome.reason == "CustomerExit":
            lines = self.house.log(self.name).read_text(errors="replace").splitlines()
            changes["message"] = "\n".join(lines[-3:])
        self.set(**changes, cost=self.cost(held=True))

    def collect(self) -> Object:
        """Archive all below the output folder, as Nodus does without being asked."""
        folder = self.house.job(self.name) / str(self.job["status"]["attempts"]["current"]) / "outputs"
        path = self.house.archive(self.name)
        packed = zstandard.ZstdCompressor(level=1).stream_writer(path.open("wb"))
        with packed, tarfile.open(fileobj=packed, mode="w|", bufsize=1 << 17) as tar:
            tar.add(folder, arcname=".")
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = path.stat().st_size
        return {"name": "outputs", "path": "/nodus/outputs", "sha256": digest, "size": size, "index": 0}

    def settle(self) -> None:
        """The teardown, and after it the final charge."""
        if self.job["status"]["cost"]["final"]:
            return
        clock = time.monotonic()
        time.sleep((self.house.faults.take("late-bill") or {}).get("seconds", TEARDOWN_SECONDS))
        if self.meters:
            self.meters[-1].add("teardown", time.monotonic() - clock)
            bill = self.house.faults.take("bill") or {}
            self.meters[-1].seconds |= {name: Decimal(value) for name, value in bill.items() if name != "times"}
            self.set_attempt(len(self.meters), "deletionProvenTime", **self.charge())
        self.set(cost=self.cost(final=True))
