"""Stage `gate@task`: hold a task's metrics against the protocol's gates; a failed gate is a metric, not a crash.

python -m stages.gate sft|pretrain
"""

from stages import command, layout
from stages.command import ParityError, Task
from stages.comparison.gates import Verdict, verdicts
from stages.comparison.records import Metrics
from stages.evidence.digests import read_json, write_json
from stages.protocol import Protocol, read
from stages.validation import validate


def judge(protocol: Protocol, task: Task) -> dict[str, Verdict]:
    """The task's gates; raises ParityError for metrics that lack what they are about."""
    paths = [layout.metrics(task, stage) for stage in ("baseline", "evaluate")]
    baseline, final = (validate(Metrics, read_json(path), path).root for path in paths)
    try:
        return verdicts(protocol, task, baseline, final)
    except KeyError as error:
        raise ParityError(f"{' or '.join(map(str, paths))}: no {error}; run `dvc repro evaluate@{task}`") from None


def main() -> None:
    arguments = command.parser("stages.gate", __doc__)
    command.add_task(arguments)
    task = arguments.parse_args().task
    _, protocol = read()
    found = judge(protocol, task)
    write_json(layout.metrics(task, "gate"), {name: verdict._asdict() for name, verdict in found.items()})
    for name, verdict in found.items():
        print(
            f"{task} {name}: {verdict.value:.4f}, gate {verdict.threshold:.4f}: {'met' if verdict.passed else 'FAILED'}"
        )


if __name__ == "__main__":
    command.run(main)
