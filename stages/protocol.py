"""`params.yaml` (what a user turns) and `protocols/*.yaml` (what is frozen before a run), typed.

Both are validated whole before anything runs. A wrong key, type or value is reported with the file, the key's path,
what was found and what is allowed.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from stages.command import TASKS, ParityError
from stages.validation import Count, Frozen, Name, Positive, RepoId, Sha256, Share, Usd, read_yaml, shown, validate


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

    @model_validator(mode="after")
    def heads_fit(self) -> Self:
        for whole, part in (("hidden_size", "num_attention_heads"), ("num_attention_heads", "num_key_value_heads")):
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(f"{part}: {getattr(self, part)} does not divide {whole}, {getattr(self, whole)}")
        return self

    @property
    def non_embedding_parameters(self) -> int:
        """Parameters outside the embedding, which `transformers` counts FLOPs by (6 x tokens x these)."""
        hidden, inner = self.hidden_size, self.intermediate_size
        keys = hidden // self.num_attention_heads * self.num_key_value_heads
        attention = 2 * hidden * hidden + hidden + 2 * (hidden * keys + keys)
        return self.num_hidden_layers * (attention + 3 * hidden * inner + 2 * hidden) + hidden


class Repository(Frozen):
    """A repository of the hub at a revision, or one that is generated, whose revision is the seed."""

    id: RepoId
    revision: Name
    source: Literal["hub", "generated"]

    @model_validator(mode="after")
    def seed_is_a_number(self) -> Self:
        if self.source == "generated" and not re.fullmatch("[0-9]{1,9}", self.revision):
            raise ValueError(f"revision: found {shown(self.revision)}, expected the seed that it is generated from")
        return self


class Model(Repository):
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


class Corpus(Repository):
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
    optim: Literal["adamw_torch", "adamw_torch_fused", "adafactor", "sgd"]
    learning_rate: Positive
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial"]
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

    @model_validator(mode="after")
    def one_precision(self) -> Self:
        if self.bf16 and self.fp16:
            raise ValueError("bf16 and fp16 are both true, expected one of them at most")
        return self


class LabelScorer(Frozen):
    max_new_tokens: Count
    batch_size: Count


class WindowScorer(Frozen):
    max_window_tokens: int = Field(ge=2)
    scoring_stride: Count
    batch_size: Count

    @model_validator(mode="after")
    def stride_leaves_context(self) -> Self:
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
    processes: Count = Field(description="that train together, one GPU each, on one machine")
    sft: Recipe
    pretrain: Recipe

    @model_validator(mode="after")
    def global_batch_is_kept(self) -> Self:
        for task in TASKS:
            if (steps := getattr(self, task).gradient_accumulation_steps) % self.processes:
                key = f"{task}.gradient_accumulation_steps"
                raise ValueError(f"processes: {self.processes} cannot share the {steps} micro-batches of {key}")
        return self


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
