"""The SDK, pointed at the account that the environment names, and its errors as one line each."""

import contextlib
import errno
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from stages.command import ParityError

# What to do, by the reason that the API gives.
HINTS = {
    "Unauthorized": "the key was refused; run `nodus login`, or set NODUS_API_KEY to one that is valid",
    "Forbidden": "the key may not do this; use one with access to the project",
    "BudgetExceeded": "raise the budget on Nodus, or campaign.cap_usd in params.yaml",
    "InsufficientCredits": "add credits on Nodus, then run the same command again",
    "PaymentMethodRequired": "add a card on Nodus, then run the same command again",
    "CapacityUnavailable": "run the same command again later; nothing was charged",
    "NoFeasibleOffering": "no machine has the protocol's resources; nothing was charged",
    "ImageNotReady": "the image is still being built; run the same command again in some minutes",
    "AlreadyExists": "a Job of this name but with other settings exists; see `nodus get jobs`",
}
AGAIN = "run the same command again"
MOST_CHARACTERS = 500  # of a server's own words in a line


def connect(project: str | None) -> Any:
    """The `nodus` package with a client of its own, once its server has answered.

    Every call but this one is retried for five minutes by the SDK where the server is away; a user hears of it here,
    within seconds.
    """
    try:
        nodus = importlib.import_module("nodus")
    except ModuleNotFoundError:
        raise ParityError("platform: nodus needs its SDK: pip install 'parity[nodus]'") from None
    config = nodus.api.resolve(project=project)
    if config.api_key is None:
        raise ParityError("nodus: not signed in; run `nodus login`, or set NODUS_API_KEY")
    # A client reads the environment when it is made: never one of an earlier account, or of an earlier rehearsal.
    nodus.api.set_default_client(nodus.Client(project=project))
    problem = unhealthy(nodus)
    if problem:
        raise ParityError(f"nodus: {config.api_url}: {problem}. Check the network and NODUS_API_URL, then {AGAIN}")
    return nodus


def credential(config: Any) -> dict[str, str]:
    """The headers that the SDK itself would send; a user's token chooses its organization, a key belongs to one."""
    chosen = {"Nodus-Org": config.org} if config.org and not config.api_key.startswith("nodus_") else {}
    return {"Authorization": f"Bearer {config.api_key}"} | chosen


def unhealthy(nodus: Any) -> str | None:
    """Why the server is not to be used now; asked once, with no retries."""
    try:
        return None if nodus.api.healthz() else "the server says that it is not healthy"
    except nodus.errors.NodusError as error:
        return f"no answer ({first_line(error.message)})"


def first_line(text: object) -> str:
    return (str(text or "").strip() or "no reason given").splitlines()[0].rstrip(".")[:MOST_CHARACTERS]


def described(error: Any) -> str:
    """An SDK error in one line: reason, message, what is wrong in which field, what to do."""
    reason = error.reason or error.code
    causes = [f"{cause.get('field')}: {cause.get('message')}" for cause in error.causes]
    amounts = [f"needed {error.details['neededUSD']} USD"] if "neededUSD" in error.details else []
    amounts += [f"left {error.details['remainingUSD']} USD"] if "remainingUSD" in error.details else []
    hint = HINTS.get(reason) or HINTS.get(error.code) or error.fix
    if hint is None and error.retryable:
        hint = f"{AGAIN} in some minutes"
    parts = [first_line(error.message), *causes, *amounts]
    return f"{reason}: {', '.join(parts)}" + (f"; {hint}" if hint else "")


@contextlib.contextmanager
def explained(nodus: Any, doing: str) -> Iterator[None]:
    """What the SDK raises in the block becomes a ParityError that says what was being done.

    A server that is away, or an answer that was lost, is a ConnectionError: what was asked for may have happened.
    """
    import httpx

    away = (nodus.errors.APIConnectionError, nodus.errors.APITimeoutError, nodus.errors.Unavailable)
    try:
        yield
    except away as error:
        raise unreachable(f"{doing}: {described(error)}") from None
    except nodus.errors.ImageBuildFailed as error:
        raise ParityError(
            f"nodus: {doing}: {first_line(error.message)}; its log stands above. Check the protocol's stack"
        ) from None
    except nodus.errors.NodusError as error:
        raise ParityError(f"nodus: {doing}: {described(error)}") from None
    except httpx.HTTPError as error:
        raise unreachable(f"{doing}: the connection broke ({first_line(error)})") from None


def unreachable(what: str) -> OSError:
    """No ParityError: the driver then keeps the job's handle, since the job may well run on."""
    text = f"{what}. Check the network and {AGAIN}: it takes up the job"
    return ConnectionError(errno.ENETUNREACH, text, "nodus")


def get(nodus: Any, kind: str, name: str) -> Mapping[str, Any] | None:
    """An object as it is now, or None where there is none."""
    try:
        found: Mapping[str, Any] = nodus.api.get(kind, name)
    except nodus.errors.NotFound:
        return None
    return found
