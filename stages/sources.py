"""Stage `sources`: snapshot the corpora, and a generated base model, into `data/raw/`.

    python -m stages.sources

Where from: the mirror in PARITY_MIRROR (or `mirror` in params.yaml) if set, else the hub at the pinned revision; what
the protocol calls generated is made here. The digest of what was taken goes to `metrics/sources.json`.
"""

from stages import command
from stages.corpora.sources import snapshot
from stages.evidence.digests import filling, indented, replacing
from stages.layout import RAW, SOURCES
from stages.protocol import read


def main() -> None:
    command.parser("stages.sources", __doc__).parse_args()
    params, protocol = read()
    with replacing(RAW, SOURCES) as (folder, record):
        folder.mkdir()
        taken = snapshot(protocol, params.mirror_path, folder)
        with filling(record) as stream:
            stream.write(indented(taken))
    for name, source in taken.items():
        print(f"{name}: {source['source']}, revision {source['revision']}, sha256 {source['sha256']}")


if __name__ == "__main__":
    command.run(main)
