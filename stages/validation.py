"""Reading outside data: YAML and typed values, every wrong one named with its source, its path and what is allowed."""

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from stages.command import ParityError
from stages.evidence.digests import bounded

MOST_YAML = 256 << 10  # bytes of one document: seconds for the reader, and many times our longest
# What PyYAML lets out beside its own errors, where a value does not fit its tag.
BESIDE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
MOST_SHOWN = 5  # problems of one document that are named; the rest are counted
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="64 lower-case hex digits")]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Usd = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,8})?$", description='USD in quotes, such as "1.00"')]
# What was charged, as a bill or a sum of bills has it: any number of decimals, and negative where one was corrected.
Charge = Annotated[str, Field(pattern=r"^-?[0-9]{1,12}(\.[0-9]{1,24})?$", description='USD as text, such as "0.104"')]


def aware(text: str) -> str:
    """A moment that can be ordered among others: ISO 8601 with its zone, far from where a calendar ends."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"found {shown(text)}, expected a date and time in ISO 8601") from None
    if moment.tzinfo is None or not 1970 <= moment.year < 3000:
        raise ValueError(f"found {shown(text)}, expected a date and time with its zone, of this millennium")
    return text


Moment = Annotated[str, AfterValidator(aware)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
# What becomes a path below data/ or a mirror: never absolute, never upwards.
PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
RepoId = Annotated[str, Field(pattern=f"^{PART}/{PART}$", description="<owner>/<name>")]
Name = Annotated[str, Field(pattern=f"^{PART}$", description="letters, digits, '.', '_' and '-'")]


class Frozen(BaseModel):
    """Unknown keys are refused, types are taken as they are, nothing changes after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Loader(yaml.SafeLoader):
    """YAML as DVC reads it: `2e-5` is a number (PyYAML alone makes it text), and a key may stand only once."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def construct_mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key that is no plain text", key.start_mark)
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key.value}' stands twice", key.start_mark)
        seen.add(key.value)
    return dict(loader.construct_mapping(node, deep=True))


Loader.add_constructor("tag:yaml.org,2002:map", construct_mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            return parse_yaml(stream.read(MOST_YAML + 1), path)
    except FileNotFoundError:
        raise ParityError(f"{path}: not found; run from the project's folder") from None


def parse_yaml(content: bytes, source: object) -> dict[str, Any]:
    """A YAML document of keys and values; raises ParityError, with its place in `source`, for anything else."""
    if len(content) > MOST_YAML:
        raise ParityError(f"{source}: more than {MOST_YAML} bytes, which no file of this project needs")
    try:
        data = yaml.load(content.decode(), Loader)  # a SafeLoader
    except UnicodeDecodeError as error:
        raise ParityError(f"{source}: not UTF-8 at byte {error.start}") from None
    except (
        yaml.YAMLError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        # Beside its own errors, PyYAML lets out whatever its constructors meet in a value that does not fit its tag.
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else str(source)
        raise ParityError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or first_line(error)}") from None
    try:
        bounded(data)
    except ValueError as error:
        raise ParityError(f"{source}: {error}") from None
    if not isinstance(data, dict):
        raise ParityError(f"{source}: found {shown(data)}, expected keys and values")
    return data


def plain(amount: Decimal) -> str:
    """Money as text without an exponent, which `str` gives to what is very small."""
    return f"{amount:f}"


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], data: object, source: object, at: tuple[str, ...] = ()) -> M:
    """`data` as a `model`, or a ParityError that names `source` and every key below the path `at` that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [describe(model, problem, at) for problem in error.errors()[:MOST_SHOWN]]
        more = [f"{error.error_count() - MOST_SHOWN} problems more"] if error.error_count() > MOST_SHOWN else []
        raise ParityError("; ".join(f"{source}: {problem}" for problem in (*problems, *more))) from None


def describe(model: type[BaseModel], problem: Mapping[str, Any], at: tuple[str, ...] = ()) -> str:
    loc = problem["loc"]
    path = ".".join(str(part) for part in (*at, *loc)).encode("unicode_escape").decode()[:200] or "top level"
    kind, found = problem["type"], shown(problem["input"])
    if kind == "extra_forbidden":
        return f"{path}: unknown key; allowed here: {', '.join(keys_at(model, loc[:-1]))}"
    if kind == "missing":
        return f"{path}: missing"
    allowed = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    field = field_at(model, loc)
    if kind == "string_pattern_mismatch" and field and field.description:
        allowed = field.description
    return f"{path}: found {found}, expected {allowed}" if kind != "value_error" else f"{path}: {allowed}"


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def field_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> Any:
    field, here = None, model
    for part in loc:
        fields = getattr(here, "model_fields", {})
        field = fields.get(str(part)) or next((f for f in fields.values() if f.alias == part), None)
        if field is None:
            return None
        here = field.annotation
    return field


def keys_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    field = field_at(model, loc)
    here = model if not loc else field.annotation if field else None
    return [field.alias or key for key, field in getattr(here, "model_fields", {}).items()]
