"""What a Job costs: exact seconds by segment at one rate, shown as whole seconds and six decimals of a USD."""

from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

# An L4's, as far as the two published bills tell: each of their charges for boot and running is this rate times some
# time that rounds to the seconds shown.
RATE = Decimal("0.000192")
HOLD = Decimal("0.05")
SEGMENTS = ("boot", "running", "restore", "teardown")


def usd(value: Decimal) -> str:
    return str(value.quantize(Decimal("0.000001"), ROUND_HALF_EVEN))


class Meter:
    """Seconds by segment. `increment` is billed with the teardown and not shown in its seconds."""

    def __init__(self, seconds: dict[str, str] | None = None):
        self.seconds = {name: Decimal(0) for name in (*SEGMENTS, "increment")}
        self.seconds |= {name: Decimal(value) for name, value in (seconds or {}).items()}

    def add(self, segment: str, seconds: float) -> None:
        self.seconds[segment] += Decimal(str(round(seconds, 6)))

    def dump(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.seconds.items()}

    def by_segment(self) -> dict[str, Any]:
        """The API's form: a segment without time is left out."""
        found: dict[str, Any] = {}
        for name in SEGMENTS:
            billed = self.seconds[name] + (self.seconds["increment"] if name == "teardown" else 0)
            if billed:
                found[f"{name}Seconds"] = int(self.seconds[name].quantize(Decimal(1)))
                found[f"{name}USD"] = usd(billed * RATE)
        return found


def cost(
    meters: Iterable[Meter], limit: str | None = None, *, final: bool = False, held: bool = False
) -> dict[str, Any]:
    total = Meter()
    for meter in meters:
        total.seconds = {name: total.seconds[name] + meter.seconds[name] for name in total.seconds}
    segments = total.by_segment()
    charge = sum((Decimal(value) for key, value in segments.items() if key.endswith("USD")), Decimal(0))
    found = {"bySegment": segments, "final": final, "totalUSD": usd(charge), "heldUSD": usd(HOLD * held)}
    return found | ({"limitUSD": limit} if limit else {})


def estimate() -> dict[str, Any]:
    """A dry run's answer: ten minutes at the rate, or twenty where it goes badly."""
    band = {"p50": usd(RATE * 600), "p90": usd(RATE * 1200)}
    return {"costUSD": band, "holdUSD": usd(HOLD), "rateUSDPerHour": usd(RATE * 3600)}
