"""Reading outside data: YAML and typed values, every wrong one named with its source, its path and what is allowed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages.command import ParityError

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="64 lower-case hex digits")]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Usd = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,8})?$", description='USD in quotes, such as "1.00"')]
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
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key.value}' stands twice", key.start_mark)
        seen.add(key.value)
    return dict(loader.construct_mapping(node, deep=True))


Loader.add_constructor("tag:yaml.org,2002:map", construct_mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader)  # a SafeLoader
    except FileNotFoundError:
        raise ParityError(f"{path}: not found; run from the project's folder") from None
    except UnicodeDecodeError as error:
        raise ParityError(f"{path}: not UTF-8 at byte {error.start}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ParityError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(data, dict):
        raise ParityError(f"{path}: found {shown(data)}, expected keys and values")
    return data


M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], data: object, source: object, at: tuple[str, ...] = ()) -> M:
    """`data` as a `model`, or a ParityError that names `source` and every key below the path `at` that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [describe(model, problem, at) for problem in error.errors()]
        raise ParityError("; ".join(f"{source}: {problem}" for problem in problems)) from None


def describe(model: type[BaseModel], problem: Mapping[str, Any], at: tuple[str, ...] = ()) -> str:
    loc = problem["loc"]
    path = ".".join(str(part) for part in (*at, *loc)) or "top level"
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
