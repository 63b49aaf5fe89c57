"""Stage `evaluate@task`: score the trained model on a task's test rows.

python -m stages.evaluate sft|pretrain
"""

from stages import command, layout
from stages.delivery import deliver


def main() -> None:
    arguments = command.parser("stages.evaluate", __doc__)
    command.add_task(arguments)
    task = arguments.parse_args().task
    outputs = {"predictions.jsonl": layout.predictions(task, "evaluate")}
    deliver(task, "evaluate", model=layout.model(task), training=False, outputs=outputs)


if __name__ == "__main__":
    command.run(main)
