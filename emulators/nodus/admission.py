"""Admission: what the API checks before it takes a Job, an Image or a Volume, and what it does with one."""

import hashlib
import json
import os
import re
import secrets
import shutil
import threading
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from emulators.nodus import billing
from emulators.nodus.house import House
from emulators.nodus.life import Life, seconds
from emulators.nodus.refusal import Refusal, invalid
from emulators.nodus.store import Object, now
from emulators.nodus.strict import cause, problems

LABEL = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
NO_OFFERING = ("NoFeasibleOffering", "no offering has what the Job asks for")
LEFT = {"neededUSD": "1.00", "remainingUSD": "0.12", "budget": "campaign"}
REFUSALS: dict[str, tuple[int, str, str, dict[str, str]]] = {  # by fault
    "budget": (402, "BudgetExceeded", "the budget has less left than the Job's cap", LEFT),
    "credits": (402, "InsufficientCredits", "the credits do not cover the hold", {"neededUSD": "0.05"}),
    "capacity": (503, "CapacityUnavailable", "no L4 is free now", {}),
    "no-offering": (422, *NO_OFFERING, {}),
}


class Admission:
    def __init__(self, house: House):
        self.house = house
        self.makers = {"Job": self.job, "Image": self.image, "Volume": self.volume}

    def resume(self) -> None:
        """Take up the Jobs of an earlier start."""
        for (kind, _, _), value in sorted(self.house.store.objects.items()):
            if kind == "Job" and not value["status"]["cost"]["final"]:
                Life(self.house, value).start()

    def create(self, kind: str, project: str, body: Any, dry_run: bool) -> Object:
        """An existing name with an equal spec is the object that stands, as often as it is asked for."""
        value = checked(kind, project, body)
        if dry_run:
            return value | {"status": {"phase": "Queued", "estimate": self.estimate()}}
        if standing := self.house.store.find(kind, project, value["metadata"]["name"]):
            if standing["status"]["phase"] == "Failed" and kind != "Job":
                return self.makers[kind](value)  # an image or an import that failed is tried again
            if standing["spec"] | {"state": None} == value["spec"] | {"state": None}:
                return standing
            raise Refusal(409, "AlreadyExists", f"{kind} {value['metadata']['name']!r} exists with another spec")
        return self.makers[kind](value)

    def image(self, value: Object) -> Object:
        """Recorded, not built: what runs is this interpreter."""
        digest = hashlib.sha256(json.dumps(value["spec"], sort_keys=True).encode()).hexdigest()
        value["status"] = {"phase": "Ready", "digest": f"sha256:{digest}"}
        if self.house.faults.take("build-fails"):
            value["status"] = {"phase": "Failed", "reason": "StepFailed", "message": "step 1: pip exited with 1"}
        return self.house.store.put(value)

    def volume(self, value: Object) -> Object:
        """A real folder. What would come from the hub comes out of the mirror, since a rehearsal is offline."""
        imported = "huggingface" in (value["spec"].get("source") or {})
        value["status"] = {"phase": "Pending"} if imported else {"phase": "Ready", "revision": 0}
        if imported:
            threading.Timer(0.2, self.import_model, (value["metadata"], value["spec"]["source"])).start()
        return self.house.store.put(value)

    def import_model(self, meta: Object, source: Object) -> None:
        repo = source["huggingface"]["repo"]
        mirrored = Path(os.environ.get("PARITY_MIRROR") or "nowhere") / repo
        status: Object = {"phase": "Ready", "revision": 1, "lastCommitTime": now()}
        if mirrored.is_dir():
            shutil.copytree(mirrored, self.house.volume(meta["name"]), dirs_exist_ok=True)
        else:
            message = f"the emulator is offline and PARITY_MIRROR holds no {repo}"
            status = {"phase": "Failed", "reason": "ImportFailed", "message": message}
        self.house.store.update("Volume", meta["namespace"], meta["name"], lambda o: o.update(status=status))

    def estimate(self) -> Object:
        """A dry run's; that no offering fits is told in it or, with `status`, as a refusal."""
        fault = self.house.faults.take("no-dry-run")
        if fault and fault.get("status"):
            raise Refusal(422, *NO_OFFERING)
        told = dict(zip(("code", "message"), NO_OFFERING, strict=True)) | (fault or {})
        blocking = [{name: told[name] for name in ("code", "message")}]
        return billing.estimate() | ({"blockingReasons": blocking} if fault else {})

    def job(self, value: Object) -> Object:
        self.refuse_by_fault()
        self.refuse_unready(value["spec"], value["metadata"]["namespace"])
        limit = value["spec"].get("maxCostUSD")
        if limit and Decimal(limit) < billing.HOLD:
            needed = {"neededUSD": billing.usd(billing.HOLD), "remainingUSD": limit}
            raise Refusal(402, "BudgetExceeded", "maxCostUSD has less room than the hold", **needed)
        value["status"] = {
            "phase": "Queued",
            "estimate": billing.estimate(),
            "cost": billing.cost([], limit, held=True),
            "attempts": {"current": 0, "total": 0},
        }
        self.house.store.put(value)
        Life(self.house, value).start()
        return value

    def refuse_by_fault(self) -> None:
        for fault, (code, reason, message, details) in REFUSALS.items():
            if self.house.faults.take(fault):
                raise Refusal(code, reason, message, **details)

    def refuse_unready(self, spec: Object, project: str) -> None:
        """An image, a volume or a source that is not there yet, or never will be."""
        parts = [("Image", spec["imageRef"])] if "imageRef" in spec else []
        parts += [("Volume", mount["volume"]) for mount in spec.get("volumes") or []]
        for kind, name in parts:
            phase = self.house.store.get(kind, project, name)["status"]["phase"]
            if phase != "Ready":
                raise Refusal(409, "ImageNotReady" if kind == "Image" else "Conflict", f"{kind} {name} is {phase}")
        blob = (spec.get("source") or {}).get("blob")
        if blob and not self.house.blob(blob).is_file():
            raise invalid([cause("spec.source.blob", "not uploaded")])


def checked(kind: str, project: str, body: Any) -> Object:
    """A sent object that the SDK's models know every field of, with a name; raises Invalid with every cause."""
    if kind == "Attempt" or not isinstance(body, dict) or body.get("kind") != kind:
        raise Refusal(400, "BadRequest", f"not an object of kind {kind} that a client may make")
    if wrong := problems(kind, body):
        raise invalid(wrong)
    value = {key: body[key] for key in ("apiVersion", "kind", "metadata", "spec")}
    meta = value["metadata"]
    meta["namespace"] = project
    if "name" not in meta:
        meta["name"] = meta.pop("generateName", "job-") + secrets.token_hex(4)
    if causes := [*wrong_names(meta), *(wrong_values(value["spec"]) if kind == "Job" else [])]:
        raise invalid(causes)
    return value


def wrong_names(meta: Object) -> list[dict[str, str]]:
    wrong = [key for key, value in (meta.get("labels") or {}).items() if not re.fullmatch(LABEL, value)]
    named = re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", meta["name"])
    found = [cause(f"metadata.labels.{key}", "no label") for key in wrong]
    return found if named else [*found, cause("metadata.name", "no name")]


def wrong_values(spec: Object) -> list[dict[str, str]]:
    """What the models let pass: reserved names, forms of durations and money, no image at all."""
    names = [item["name"] for item in spec.get("env") or []]
    found = [cause("spec.env", f"{name} is reserved") for name in names if name.startswith("NODUS_")]
    if spec.get("outputs"):
        found.append(cause("spec.outputs", "declared outputs are not emulated"))
    if not (spec.get("image") or spec.get("imageRef")):
        found.append(cause("spec.image", "one of image and imageRef is needed"))
    try:
        seconds(spec.get("timeout") or "1s"), Decimal(spec.get("maxCostUSD") or "1")
    except (ValueError, InvalidOperation):
        found.append(cause("spec", "timeout is no duration, or maxCostUSD no amount"))
    return found
