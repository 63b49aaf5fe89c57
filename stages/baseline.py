"""Stage `baseline@task`: score the untouched base model on a task's test rows.

python -m stages.baseline sft|pretrain
"""

from stages import command, layout
from stages.delivery import arguments, base_model, deliver
from stages.protocol import read


def main() -> None:
    given = arguments("stages.baseline", __doc__)
    task = given.task
    _, protocol = read()
    outputs = {"predictions.jsonl": layout.predictions(task, "baseline")}
    deliver(task, "baseline", model=base_model(protocol), training=False, outputs=outputs, detach=given.detach)


if __name__ == "__main__":
    command.run(main)
