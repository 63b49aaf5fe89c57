"""Stage `check`: validate params.yaml and the chosen protocol before anything runs.

    python -m stages.check

Writes `data/inputs/SHA256SUMS`, the protocol's four pinned digests, which every later stage stands on.
"""

from pathlib import Path

from stages import command
from stages.evidence.digests import whole
from stages.layout import INPUTS, input_names
from stages.platforms import read_settings
from stages.protocol import Protocol, read_params, read_protocol


def checksums(protocol: Protocol) -> bytes:
    """The pins as `sha256sum -c` reads them."""
    lines = []
    for task in command.TASKS:
        pins = getattr(protocol.inputs, task)
        for name, pin in zip(input_names(task), (pins.train, pins.test), strict=True):
            lines.append(f"{pin.sha256}  {name}\n")
    return "".join(lines).encode()


def main() -> None:
    command.parser("stages.check", __doc__).parse_args()
    params, sections = read_params()
    protocol = read_protocol(params.protocol)
    read_settings(params.platform, sections, Path("params.yaml"))
    with whole(INPUTS / "SHA256SUMS") as stream:
        stream.write(checksums(protocol))
    print(f"protocol {protocol.name} on platform {params.platform}: valid")


if __name__ == "__main__":
    command.run(main)
