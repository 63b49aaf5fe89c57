"""Promise: a snapshot comes from the mirror, the hub at its revision or the generator, and a bad file is named."""

import hashlib
import http.server
import json
import threading
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.command import ParityError
from stages.corpora.sources import snapshot, split_files
from stages.prepare import prepare
from stages.protocol import Corpus, Protocol
from tests.conftest import ROOT, stage


def corpus(**changes: object) -> Corpus:
    values = {"id": "o/c", "revision": "1", "source": "hub", "configuration": None, "train_split": "train",
              "test_split": "test"}  # fmt: skip
    return Corpus.model_validate(values | changes)


def test_a_split_is_every_parquet_file_whose_name_starts_with_it(tmp_path: Path) -> None:
    shards = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    others = ["test.parquet", "training-notes.parquet", ".cache/train.parquet", "v1/train.parquet", "train.txt"]
    for name in (*shards, *others):
        path = tmp_path / "o/c" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def found(made: Corpus, split: str) -> list[str]:
        return [str(path.relative_to(tmp_path / "o/c")) for path in split_files(tmp_path, made, split)]

    assert found(corpus(), "train") == [
        "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "v1/train.parquet"
    ]  # fmt: skip
    assert found(corpus(configuration="v1"), "train") == ["v1/train.parquet"]
    assert found(corpus(configuration="v2"), "test") == ["test.parquet"]
    with pytest.raises(ParityError, match="no parquet file of the split 'dev' of o/c"):
        split_files(tmp_path, corpus(), "dev")


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as one dataset needs: its revision, its tree and its files."""

    files: ClassVar[dict[str, bytes]] = {}  # "<repo>/<path>" -> content
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.asked.append((path, self.headers.get("Authorization")))
        repo = "/".join(path.split("datasets/", 1)[-1].split("/")[:2])
        name = f"{repo}/" + path.split("/resolve/", 1)[-1].split("/", 1)[-1]
        if "/tree/" in path:
            rows = [{"type": "file", "path": n.removeprefix(repo + "/"), "size": len(b), "oid": "0" * 40}
                    for n, b in self.files.items() if n.startswith(repo)]  # fmt: skip
            self.answer(json.dumps(rows).encode(), "application/json")
        elif "/resolve/" in path and name in self.files:
            self.answer(self.files[name], "application/octet-stream")
        else:
            self.send_error(404)

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(body)), "X-Repo-Commit": "1" * 40,
                           "ETag": f'"{hashlib.sha1(body).hexdigest()}"'}.items():  # fmt: skip
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def as_pilot(project: Path) -> None:
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("protocol: embedded", "protocol: pilot"))


def test_the_hub_is_asked_for_the_pinned_revision_and_the_token_comes_from_the_environment(
    pilot: Path, project: Path
) -> None:
    as_pilot(project)
    sst2, wikitext = pilot / "stanfordnlp/sst2", pilot / "Salesforce/wikitext/wikitext-2-raw-v1"
    Hub.files = {
        "stanfordnlp/sst2/data/train-00000-of-00001.parquet": (sst2 / "train.parquet").read_bytes(),
        "stanfordnlp/sst2/data/validation-00000-of-00001.parquet": (sst2 / "validation.parquet").read_bytes(),
        "stanfordnlp/sst2/data/test-00000-of-00001.parquet": b"not asked for",
        "stanfordnlp/sst2/README.md": b"not asked for",
        "Salesforce/wikitext/wikitext-2-raw-v1/train-00000-of-00001.parquet": (
            wikitext / "train-head.parquet"
        ).read_bytes(),
        "Salesforce/wikitext/wikitext-2-raw-v1/test-00000-of-00001.parquet": (wikitext / "test.parquet").read_bytes(),
        "Salesforce/wikitext/wikitext-103-v1/train-00000-of-00002.parquet": b"not asked for",
    }
    Hub.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_TOKEN": "hf_from_the_environment"}
    done = stage("sources", cwd=project, env=env)
    server.shutdown()
    assert done.returncode == 0, done.stderr
    assert "stanfordnlp/sst2: hub, revision 8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb, sha256 " in done.stdout
    assert {token for _, token in Hub.asked} == {"Bearer hf_from_the_environment"}
    assert all("8d51e7e4887" in path or "b08601e04326" in path for path, _ in Hub.asked)
    kept = sorted(str(p.relative_to(project / "data/raw")) for p in (project / "data/raw").rglob("*") if p.is_file())
    assert kept == [
        "Salesforce/wikitext/wikitext-2-raw-v1/test-00000-of-00001.parquet",
        "Salesforce/wikitext/wikitext-2-raw-v1/train-00000-of-00001.parquet",
        "stanfordnlp/sst2/data/train-00000-of-00001.parquet",
        "stanfordnlp/sst2/data/validation-00000-of-00001.parquet",
    ]
    for task in ("sft", "pretrain"):
        assert stage("check", cwd=project).returncode == 0
        prepared = stage("prepare", task, cwd=project)
        assert prepared.returncode == 0, prepared.stderr


def test_an_unreachable_hub_is_one_line_with_the_way_out(project: Path) -> None:
    as_pilot(project)
    done = stage("sources", cwd=project)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "the hub did not give the dataset stanfordnlp/sst2 at revision 8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb" in (
        done.stderr
    )
    assert "Set PARITY_MIRROR" in done.stderr
    assert not (project / "data/raw").exists()


# Files that are not what they should be.


def snapshot_with(tmp_path: Path, table: pa.Table) -> Path:
    folder = tmp_path / "generated/sentiment"
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        pq.write_table(table, folder / f"{split}.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"text": ["a"]}), r"\.parquet: no column 'sentence'; it has text"),
        (pa.table({"sentence": ["a"], "label": ["0"]}), r"column 'label' is string, expected int64"),
        (pa.table({"sentence": ["a", None], "label": [0, 1]}), r"parquet: row 1: sentence is null"),
        (
            pa.table({"sentence": pa.array([], pa.string()), "label": pa.array([], pa.int64())}),
            "0 distinct rows of class",
        ),
    ],
)
def test_a_corpus_of_another_shape_is_refused_by_file(
    tmp_path: Path, embedded: Protocol, table: pa.Table, said: str
) -> None:
    raw = snapshot_with(tmp_path / "raw", table)
    with pytest.raises(ParityError, match=said):
        prepare(embedded, "sft", raw, tmp_path / "inputs")
    assert not (tmp_path / "inputs").exists()


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path, embedded: Protocol) -> None:
    raw = snapshot_with(tmp_path / "raw", pa.table({"sentence": ["a"], "label": [0]}))
    (raw / "generated/sentiment/train.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ParityError, match=r"train\.parquet: cannot be read as parquet"):
        prepare(embedded, "sft", raw, tmp_path / "inputs")


def test_an_input_off_its_pin_says_file_found_and_expected_and_writes_nothing(
    tmp_path: Path, embedded: Protocol
) -> None:
    raw = tmp_path / "raw"
    snapshot(embedded, None, raw)
    other = embedded.model_copy(update={"inputs": embedded.inputs.model_copy(update={"sft": embedded.inputs.pretrain})})
    with pytest.raises(ParityError, match=r"sft-train\.jsonl: 4096 rows, protocols/embedded\.yaml pins 320 at inputs"):
        prepare(other, "sft", raw, tmp_path / "inputs")
    assert not (tmp_path / "inputs").exists()


def test_the_mirrors_name_is_no_part_of_the_record(pilot: Path, project: Path) -> None:
    as_pilot(project)
    done = stage("sources", cwd=project, env={"PARITY_MIRROR": str(pilot)})
    assert done.returncode == 0, done.stderr
    assert str(pilot) not in (project / "metrics/sources.json").read_text()
    assert str(ROOT) not in (project / "metrics/sources.json").read_text()
