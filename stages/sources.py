"""Stage `sources`: snapshot the corpora, and a generated base model, into `data/raw/`.

    python -m stages.sources

Where from: the mirror in PARITY_MIRROR (or `mirror` in params.yaml) if set, else the hub at the pinned revision; what
the protocol calls generated is made here. The digest of what was taken goes to `metrics/sources.json`.
"""

from stages import command
from stages.corpora.sources import snapshot
from stages.evidence.digests import whole_folder, write_json
from stages.layout import RAW, SOURCES
from stages.protocol import read


def main() -> None:
    command.parser("stages.sources", __doc__).parse_args()
    params, protocol = read()
    with whole_folder(RAW) as folder:
        taken = snapshot(protocol, params.mirror_path, folder)
    for name, source in taken.items():
        print(f"{name}: {source['source']}, revision {source['revision']}, sha256 {source['sha256']}")
    write_json(SOURCES, taken)


if __name__ == "__main__":
    command.run(main)
