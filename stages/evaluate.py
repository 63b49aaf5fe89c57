"""Stage `evaluate@task`: score the trained model on a task's test rows.

python -m stages.evaluate sft|pretrain
"""

from stages import command, layout
from stages.command import ParityError, Task
from stages.delivery import arguments, deliver
from stages.evidence.digests import read_json, sha256_file


def check_weights(task: Task) -> None:
    """Refuse to score weights that are not those which training exported."""
    path = layout.model(task) / "model.safetensors"
    if not path.is_file():
        raise ParityError(f"{path}: not found; run `dvc repro train@{task}` or `dvc pull` first")
    expected = read_json(layout.evidence(task, "train"))["model_weights_sha256"]
    if (found := sha256_file(path)) != expected:
        raise ParityError(f"{path}: sha256 {found}, training exported {expected}; `dvc checkout` or train again")


def main() -> None:
    given = arguments("stages.evaluate", __doc__)
    task = given.task
    check_weights(task)
    outputs = {"predictions.jsonl": layout.predictions(task, "evaluate")}
    deliver(task, "evaluate", model=layout.model(task), training=False, outputs=outputs, detach=given.detach)


if __name__ == "__main__":
    command.run(main)
