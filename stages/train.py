"""Stage `train@task`: train from the untouched base model; export, loss curve and evidence come back verified.

python -m stages.train sft|pretrain
"""

from stages import command, layout
from stages.delivery import arguments, base_model, deliver
from stages.protocol import read


def main() -> None:
    given = arguments("stages.train", __doc__)
    task = given.task
    _, protocol = read()
    outputs = {"model": layout.model(task), "log_history.csv": layout.loss_curve(task)}
    deliver(task, "train", model=base_model(protocol), training=True, outputs=outputs, detach=given.detach)


if __name__ == "__main__":
    command.run(main)
