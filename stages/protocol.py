"""The only reader of YAML: `params.yaml` (what a user turns) and `protocols/*.yaml` (what is frozen before a run).

Both are validated whole before anything runs. A wrong key, type or value is reported with the file, the key's path,
what was found and what is allowed.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stages.command import ParityError

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="64 lower-case hex digits")]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
# What becomes a path below data/ or a mirror: never absolute, never upwards.
Usd = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,8})?$", description='USD in quotes, such as "1.00"')]
PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
RepoId = Annotated[str, Field(pattern=f"^{PART}/{PART}$", description="<owner>/<name>")]
Name = Annotated[str, Field(pattern=f"^{PART}$", description="letters, digits, '.', '_' and '-'")]


class Frozen(BaseModel):
    """Unknown keys are refused, types are taken as they are, nothing changes after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Architecture(Frozen):
    """A Qwen2's dimensions, in the names of its `config.json`."""

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    vocab_size: Count
    max_position_embeddings: Count
    rope_theta: Positive
    rms_norm_eps: Positive
    tie_word_embeddings: bool

    @property
    def non_embedding_parameters(self) -> int:
        """Parameters outside the embedding, which `transformers` counts FLOPs by (6 x tokens x these)."""
        hidden, inner = self.hidden_size, self.intermediate_size
        keys = hidden // self.num_attention_heads * self.num_key_value_heads
        attention = 2 * hidden * hidden + hidden + 2 * (hidden * keys + keys)
        return self.num_hidden_layers * (attention + 3 * hidden * inner + 2 * hidden) + hidden


class Model(Frozen):
    id: RepoId
    revision: Name
    source: Literal["hub", "generated"]
    sha256: dict[Name, Sha256] = Field(description="files of the model pinned by digest")
    architecture: Architecture


class Stack(Frozen):
    """The worker's packages as pinned for a GPU platform; evidence says what really ran."""

    torch: str
    transformers: str
    trl: str
    datasets: str
    accelerate: str
    huggingface_hub: str = Field(alias="huggingface-hub")


class Resources(Frozen):
    gpu: Name | None
    gpus: int = Field(ge=0)
    cpus: Count
    memory_gib: Count


class Execution(Frozen):
    training_dtype: Literal["float32", "bfloat16"]
    evaluation_dtype: Literal["float32"]
    attention: Literal["sdpa", "eager"]
    tf32: bool


class Corpus(Frozen):
    id: RepoId
    revision: Name
    source: Literal["hub", "generated"]
    configuration: Name | None
    train_split: Name
    test_split: Name


class SftSelection(Frozen):
    rows_per_class: Count
    classes: tuple[str, ...] = Field(min_length=2, strict=False, description="names in the order of their labels")
    prompt: str = Field(pattern=r"\{sentence\}", description="a text with {sentence} in it")


class PretrainSelection(Frozen):
    rows: Count
    longer_than: int = Field(ge=0, description="characters of the stripped text")


class Input(Frozen):
    rows: Count
    sha256: Sha256


class Inputs(Frozen):
    train: Input
    test: Input


class Recipe(Frozen):
    """Arguments of TRL's `SFTConfig`, in its own names; seeds come from params."""

    bf16: bool
    fp16: bool
    tf32: bool | None
    full_determinism: bool
    optim: str
    learning_rate: Positive
    lr_scheduler_type: str
    warmup_steps: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    max_grad_norm: Positive
    gradient_checkpointing: bool
    per_device_train_batch_size: Count
    gradient_accumulation_steps: Count
    max_steps: Count
    max_length: int = Field(ge=2)
    packing: Literal[False]
    completion_only_loss: bool | None
    save_steps: Count
    save_total_limit: Count
    logging_steps: Count


class LabelScorer(Frozen):
    max_new_tokens: Count
    batch_size: Count


class WindowScorer(Frozen):
    max_window_tokens: int = Field(ge=2)
    scoring_stride: Count
    batch_size: Count

    @model_validator(mode="after")
    def stride_leaves_context(self) -> "WindowScorer":
        if self.scoring_stride >= self.max_window_tokens:
            raise ValueError(
                f"scoring_stride {self.scoring_stride} must be below max_window_tokens {self.max_window_tokens}, "
                "or tokens at a window's start would have no context"
            )
        return self


class SftGates(Frozen):
    accuracy_at_least: Share
    format_validity_at_least: Share
    accuracy_points_below_other_at_most: Positive


class PretrainGates(Frozen):
    nll_below_base: Literal[True]
    nll_percent_above_other_at_most: Positive


T = TypeVar("T")


class Selections(Frozen):
    sft: SftSelection
    pretrain: PretrainSelection


class Corpora(Frozen):
    sft: Corpus
    pretrain: Corpus


class TaskInputs(Frozen):
    sft: Inputs
    pretrain: Inputs


class Recipes(Frozen):
    sft: Recipe
    pretrain: Recipe


class Scorers(Frozen):
    sft: LabelScorer
    pretrain: WindowScorer


class Gates(Frozen):
    sft: SftGates
    pretrain: PretrainGates


class Protocol(Frozen):
    """Everything frozen before a run. The sections that hold both tasks are indexed by the task's name."""

    version: Literal[1]
    name: Name
    model: Model
    stack: Stack
    resources: Resources
    execution: Execution
    corpora: Corpora
    select: Selections
    inputs: TaskInputs
    train: Recipes
    score: Scorers
    gates: Gates


class Campaign(Frozen):
    """A budget, in USD as decimal strings, that every paid attempt is held against."""

    name: Name
    authorization_usd: Usd
    cap_usd: Usd
    reserve_usd: Usd


class Params(Frozen):
    """`params.yaml` without the platforms' own sections, which each platform validates."""

    protocol: str
    platform: str
    seed: int = Field(ge=0, lt=2**32)
    repeat: Count
    mirror: str | None
    rehearse: bool
    campaign: Campaign

    @property
    def mirror_path(self) -> Path | None:
        found = os.environ.get("PARITY_MIRROR") or self.mirror
        return Path(found) if found else None


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


def protocol_path(name: str, root: Path = Path()) -> Path:
    folder = root / "protocols"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        allowed = f"one of {', '.join(names)}" if names else f"a file in {folder}/, which holds none"
        raise ParityError(f"protocol: found {shown(name)}, expected {allowed}")
    return folder / f"{name}.yaml"


def read_protocol(name: str, root: Path = Path()) -> Protocol:
    path = protocol_path(name, root)
    protocol = validate(Protocol, read_yaml(path), path)
    if protocol.name != name:
        raise ParityError(f"{path}: name: found {shown(protocol.name)}, expected the file's own, '{name}'")
    return protocol


def read_params(root: Path = Path()) -> tuple[Params, dict[str, Any]]:
    """Params, and the remaining sections of `params.yaml` (one per platform, not yet validated)."""
    path = root / "params.yaml"
    data = read_yaml(path)
    own = {key: value for key, value in data.items() if key in Params.model_fields}
    return validate(Params, own, path), {key: value for key, value in data.items() if key not in own}


def read(root: Path = Path()) -> tuple[Params, Protocol]:
    params, _ = read_params(root)
    return params, read_protocol(params.protocol, root)
