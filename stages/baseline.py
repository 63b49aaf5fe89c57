"""Stage `baseline@task`: score the untouched base model on a task's test rows.

python -m stages.baseline sft|pretrain
"""

from stages import command, layout
from stages.delivery import base_model, deliver
from stages.protocol import read


def main() -> None:
    arguments = command.parser("stages.baseline", __doc__)
    command.add_task(arguments)
    task = arguments.parse_args().task
    _, protocol = read()
    outputs = {"predictions.jsonl": layout.predictions(task, "baseline")}
    deliver(task, "baseline", model=base_model(protocol), training=False, outputs=outputs)


if __name__ == "__main__":
    command.run(main)
