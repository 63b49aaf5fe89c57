"""Stage `evaluate@task`: score the trained model on a task's test rows.

python -m stages.evaluate sft|pretrain
"""

from pydantic import BaseModel

from stages import command, layout
from stages.command import ParityError, Task
from stages.delivery import arguments, deliver
from stages.evidence.digests import read_json, sha256_file
from stages.jobs import MODEL_SUFFIXES, Entry, model_files
from stages.validation import validate


class Trained(BaseModel):
    """What training's evidence says of its export."""

    output: dict[str, Entry]


def check_model(task: Task) -> None:
    """Refuse to score a model that is not, file by file, what training exported."""
    folder, evidence = layout.model(task), layout.evidence(task, "train")
    if not (folder / "model.safetensors").is_file():
        raise ParityError(
            f"{folder / 'model.safetensors'}: not found; run `dvc repro train@{task}` or `dvc pull` first"
        )
    exported = validate(Trained, read_json(evidence), evidence).output
    present = model_files(folder)
    for name in sorted(exported):
        file = name.removeprefix("model/")
        if file != name and file.endswith(MODEL_SUFFIXES) and file not in present:
            raise ParityError(f"{folder / file}: not found, but training exported it; {layout.HEAL}")
    for name, path in present.items():
        entry = exported.get(f"model/{name}")
        if entry is None:
            raise ParityError(f"{path}: no file that training exported, by {evidence}; move it away")
        if (found := sha256_file(path)) != entry.sha256:
            raise ParityError(f"{path}: sha256 {found}, training exported {entry.sha256}; {layout.HEAL}")


def main() -> None:
    given = arguments("stages.evaluate", __doc__)
    task = given.task
    check_model(task)
    outputs = {"predictions.jsonl": layout.predictions(task, "evaluate")}
    deliver(task, "evaluate", model=layout.model(task), training=False, outputs=outputs, detach=given.detach)


if __name__ == "__main__":
    command.run(main)
