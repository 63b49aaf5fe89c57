"""Stage `gate@task`: hold a task's metrics against the protocol's gates; a failed gate is a metric, not a crash.

python -m stages.gate sft|pretrain
"""

from stages import command, layout
from stages.comparison.gates import verdicts
from stages.evidence.digests import read_json, write_json
from stages.protocol import read


def main() -> None:
    arguments = command.parser("stages.gate", __doc__)
    command.add_task(arguments)
    task = arguments.parse_args().task
    _, protocol = read()
    baseline, final = (read_json(layout.metrics(task, stage)) for stage in ("baseline", "evaluate"))
    found = verdicts(protocol, task, baseline, final)
    write_json(layout.metrics(task, "gate"), {name: verdict._asdict() for name, verdict in found.items()})
    for name, verdict in found.items():
        print(
            f"{task} {name}: {verdict.value:.4f}, gate {verdict.threshold:.4f}: {'met' if verdict.passed else 'FAILED'}"
        )


if __name__ == "__main__":
    command.run(main)
