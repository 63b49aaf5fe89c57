"""Archives from outside: unpacked whole and inside their folder, or refused."""

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.command import ParityError
from stages.platforms.common.archive import Broken, resumed, unpack

zstandard = pytest.importorskip("zstandard")


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"x", **fields: Any
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content) if kind == tarfile.REGTYPE else 0
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def packed(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return bytes(zstandard.compress(raw.getvalue()))


def unpacked(data: bytes, folder: Path, block: int = 1000) -> None:
    blocks = (data[at : at + block] for at in range(0, len(data), block))
    unpack("the output", blocks, hashlib.sha256(data).hexdigest(), folder)


GOOD = entry("./model/weights", content=b"w" * 5000)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_an_archive_is_unpacked_whatever_blocks_it_comes_in(tmp_path: Path, block: int) -> None:
    folders = entry("."), entry("./model", tarfile.DIRTYPE), entry("model/empty", content=b"")
    data = packed(*(one for one in folders if one[0].name != "."), GOOD, entry("manifest.json", content=b"{}"))
    unpacked(data, tmp_path / "out", block)
    found = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert found == {"model/weights": b"w" * 5000, "model/empty": b"", "manifest.json": b"{}"}


@pytest.mark.parametrize(
    "bad",
    [
        entry("../outside"),
        entry("model/../../outside"),
        entry("/absolute"),
        entry("a\\b"),
        entry("a\nb"),
        entry("link", tarfile.SYMTYPE, linkname="/etc/passwd"),
        entry("hard", tarfile.LNKTYPE, linkname="model/weights"),
        entry("device", tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("disk", tarfile.BLKTYPE, devmajor=8, devminor=0),
        entry("pipe", tarfile.FIFOTYPE),
        entry("./model/weights"),
        entry("./model/weights/below"),
    ],
    ids=lambda one: repr(one[0].name),
)
def test_an_entry_that_is_no_plain_file_of_its_own_inside_the_folder_is_refused(
    tmp_path: Path, bad: tuple[tarfile.TarInfo, bytes]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "before").write_text("kept")
    with pytest.raises(ParityError, match="the archive is refused"):
        unpacked(packed(GOOD, bad), tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "before"]


def lying(size: int) -> bytes:
    """A whole digest over an archive whose last entry claims another size than it has."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.addfile(GOOD[0], io.BytesIO(GOOD[1]))
    data = raw.getvalue()
    header = tarfile.TarInfo("liar")
    header.size = size
    return bytes(zstandard.compress(data[: 512 + 5120] + header.tobuf() + b"short"))


@pytest.mark.parametrize("size", [1 << 20, 1 << 45], ids=["a little", "without bound"])
def test_a_size_that_lies_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(ParityError, match=r"not a whole tar\.zst archive|the archive is refused"):
        unpacked(lying(size), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "spoil",
    [lambda data: data[:-20], lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"no archive" * 99],
    ids=["cut short", "halved", "empty", "something else"],
)
def test_what_is_no_whole_archive_is_refused_though_its_digest_fits(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(ParityError, match=r"not a whole tar\.zst archive"):
        unpacked(spoil(packed(GOOD)), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_content_that_differs_from_its_digest_is_refused(tmp_path: Path) -> None:
    data = packed(GOOD)
    with pytest.raises(ParityError, match=r"came back altered: \d+ bytes"):
        unpack("the output", [data], "0" * 64, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_stream_that_breaks_goes_on_from_its_last_byte() -> None:
    data, asked = bytes(range(200)), []

    def blocks(offset: int) -> Iterator[bytes]:
        asked.append(offset)
        yield data[offset : offset + 50]
        if offset + 50 < len(data):
            raise Broken("cut")

    assert b"".join(resumed(blocks)) == data
    assert asked == [0, 50, 100, 150]


def test_a_stream_that_breaks_without_a_byte_is_given_up() -> None:
    def blocks(offset: int) -> Iterator[bytes]:
        raise Broken("cut")
        yield b""

    with pytest.raises(ParityError, match=r"broke off after 0 bytes, 5 times in a row \(cut\)"):
        list(resumed(blocks))
