"""Promise: the job folder is all that platform and worker share, its id is its content, no manifest is no result."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import jobs
from stages.command import ParityError
from stages.evidence.digests import canonical, parse_row, read_rows, sha256_file, whole, whole_folder
from stages.protocol import Protocol


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "sft-test.jsonl"
    path.write_text('{"completion": " positive", "prompt": "a"}\n')
    return path


def build(embedded: Protocol, inputs: Path, model: Path, **changes: int) -> jobs.Job:
    return jobs.build(embedded, "sft", inputs=[inputs], model=model, **changes)


def test_the_same_job_has_the_same_id_wherever_its_files_lie(
    embedded: Protocol, inputs: Path, tiny_model: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / inputs.name
    moved.parent.mkdir()
    moved.write_bytes(inputs.read_bytes())
    assert build(embedded, inputs, tiny_model).id == build(embedded, moved, tiny_model).id
    assert str(tmp_path) not in build(embedded, inputs, tiny_model).canonical().decode()


def test_seed_repeat_input_and_kind_make_another_job(embedded: Protocol, inputs: Path, tiny_model: Path) -> None:
    made = [build(embedded, inputs, tiny_model, **changes) for changes in ({}, {"repeat": 2}, {"seed": 1}, {"seed": 2})]
    inputs.write_text(inputs.read_text() * 2)
    made.append(build(embedded, inputs, tiny_model))
    assert len({job.id for job in made}) == 5
    assert [job.kind for job in made] == ["score", "score", "train", "train", "score"]


def test_a_job_folder_reads_back_as_written_and_a_changed_file_is_named(
    embedded: Protocol, inputs: Path, tiny_model: Path, tmp_path: Path
) -> None:
    job = build(embedded, inputs, tiny_model)
    folder = tmp_path / "job"
    jobs.write_job(job, folder, [inputs], tiny_model)
    assert jobs.read_job(folder) == job
    assert sha256_file(folder / "job.json") == job.id
    (folder / "model" / "chat_template.jinja").write_text("")
    with pytest.raises(ParityError, match=r"model/chat_template\.jinja: not of this job"):
        jobs.read_job(folder)
    (folder / "model" / "chat_template.jinja").unlink()
    (folder / "inputs" / inputs.name).write_text("{}\n")
    with pytest.raises(ParityError, match=r"inputs/sft-test\.jsonl: sha256 .*, job\.json says"):
        jobs.read_job(folder)


def test_what_scoring_reads_of_an_export_holds_no_pickle(embedded: Protocol, inputs: Path, tiny_model: Path) -> None:
    (tiny_model / "training_args.bin").write_bytes(b"\x80\x04.")
    names = build(embedded, inputs, tiny_model).model.sha256
    assert "model.safetensors" in names
    assert "training_args.bin" not in names


def sealed(folder: Path) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "a.json").write_text("{}")
    (folder / "result.json").write_text("[]")
    jobs.write_manifest(folder, "0" * 64)
    return folder


def test_an_output_is_its_manifest(tmp_path: Path) -> None:
    manifest = jobs.verify(sealed(tmp_path / "out"), "0" * 64)
    assert {name: entry.bytes for name, entry in manifest.files.items()} == {"model/a.json": 2, "result.json": 2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda out: (out / "manifest.json").unlink(), "manifest.json: not found"),
        (lambda out: (out / "result.json").write_text("{}"), "result.json: sha256 .*, the manifest says"),
        (lambda out: (out / "result.json").write_text("[] "), "result.json: 3 bytes, the manifest says 2"),
        (lambda out: (out / "result.json").unlink(), "result.json: in the manifest but missing"),
        (lambda out: (out / "more").touch(), "more: not in the manifest"),
        (lambda out: (out / "link").symlink_to("result.json"), "link: a link in an output folder"),
        (lambda out: (out / "manifest.json").write_text("{}"), "manifest.json: version: missing"),
        (lambda out: (out / "manifest.json").write_text("NaN"), "manifest.json: not valid JSON: NaN"),
        (lambda out: (out / "manifest.json").write_text("[" * 100000), "manifest.json: not valid JSON: nested"),
    ],
)
def test_anything_that_differs_from_the_manifest_is_named(tmp_path: Path, change: object, said: str) -> None:
    out = sealed(tmp_path / "out")
    change(out)  # type: ignore[operator]
    with pytest.raises(ParityError, match=said):
        jobs.verify(out, "0" * 64)


def test_the_output_of_another_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParityError, match="output of job 000000000000, expected 111111111111"):
        jobs.verify(sealed(tmp_path / "out"), "1" * 64)


HOSTILE = ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a\\b", "C:x", "", ".", "a\nb", "a\0b", "manifest.json",
           "nul", "a/CON.txt", "aux", "x/lpt1", "nul .txt", "CONIN$", "com\u00b9.log", "a ", "b."]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_a_manifest_path_that_is_not_plain_is_refused(tmp_path: Path, path: str) -> None:
    out = sealed(tmp_path / "out")
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["files"][path] = manifest["files"]["result.json"]
    (out / "manifest.json").write_bytes(canonical(manifest))
    with pytest.raises(ParityError, match="no plain path inside the output folder"):
        jobs.read_manifest(out, "0" * 64)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["RESULT.json"], "differ only in case"),
        (["caf\u00e9", "cafe\u0301"], "in how they write an accent"),
        (["Caf\u00e9", "cafe\u0301"], "in how they write an accent"),
        (["result.json/inner"], "'result.json/inner' lies in a folder that is a file"),
        (["weights", "WEIGHTS/config.json"], "'weights/config.json' lies in a folder that is a file"),
    ],
)
def test_paths_that_some_file_system_cannot_keep_apart_are_refused(tmp_path: Path, more: list[str], said: str) -> None:
    out = sealed(tmp_path / "out")
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["files"] |= dict.fromkeys(more, manifest["files"]["result.json"])
    (out / "manifest.json").write_bytes(canonical(manifest))
    with pytest.raises(ParityError, match=said):
        jobs.verify(out, "0" * 64)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=300)
def test_no_row_of_bytes_gets_past_the_reader_as_anything_but_a_row_or_our_own_error(line: bytes) -> None:
    try:
        row = parse_row(line, {"text": str}, "f:1")
    except ParityError as error:
        assert str(error).startswith("f:1: ")  # noqa: PT017
    else:
        assert list(row) == ["text"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "a"', "x.jsonl:2: not valid JSON"),
        (b'{"txt": "a"}', r"x.jsonl:2: found \['txt'\], expected the keys \['text'\]"),
        (b'{"text": 1}', "x.jsonl:2: text: found 1, expected str"),
        (b'{"text": "\xff"}', "x.jsonl:2: not UTF-8 at byte 10"),
        (b"[]", "x.jsonl:2: found list"),
        (b'{"text": NaN}', "x.jsonl:2: not valid JSON: NaN"),
        (b"", "x.jsonl:2: not valid JSON"),
    ],
)
def test_a_row_that_does_not_parse_is_named_by_file_and_true_line(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "one\\ntwo \xe2\x80\xa8 three"}\n' + line + b"\n")
    with pytest.raises(ParityError, match=said):
        list(read_rows(path, {"text": str}))


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        with whole(path) as stream:
            stream.write(b"half")
            raise RuntimeError

    target = tmp_path / "f"
    target.write_text("before")
    with pytest.raises(RuntimeError):
        fail(target)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert target.read_text() == "before"


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        with whole_folder(path) as folder:
            (folder / "half").touch()
            raise RuntimeError

    target = tmp_path / "d"
    target.mkdir()
    (target / "before").touch()
    with pytest.raises(RuntimeError):
        fail(target)
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "before"]
