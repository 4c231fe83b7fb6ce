"""Containers of program files: damage, trust and versions."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from smelt.errors import ProgramFileError, ProgramTrustError, ProgramVersionError, SmeltError
from smelt.saved.file import HEADER_BYTES, PAGE, ProgramFile, Writer

ELEMENTS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a text and a constant, each added twice."""
    writer = Writer()
    facts = {
        "texts": [writer.add(b"text"), writer.add(b"text")],
        "arrays": [writer.add_array(ELEMENTS), writer.add_array(ELEMENTS.copy())],
    }
    writer.write(tmp_path / "f.smelt", facts)
    return tmp_path / "f.smelt"


def test_sections_come_back_and_equal_ones_are_stored_once(path: Path) -> None:
    file = ProgramFile(path)
    assert [file.read(n) for n in file.facts["texts"]] == [b"text", b"text"]
    for described in file.facts["arrays"]:
        array = file.array(described)
        np.testing.assert_array_equal(array, ELEMENTS)
        assert not array.flags.writeable
    assert len(file.sections) == 2
    assert file.sections[1].offset % PAGE == 0
    file.verify()


def test_a_file_appears_whole_or_not_at_all(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(TypeError):  # facts that have no JSON
        Writer().write(path, {"facts": object()})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["f.smelt"]


def test_every_truncation_is_damage(path: Path) -> None:
    whole = path.read_bytes()
    for length in [*range(HEADER_BYTES + 8), *range(HEADER_BYTES, len(whole), 97)]:
        path.write_bytes(whole[:length])
        with pytest.raises(ProgramFileError):
            ProgramFile(path)


def test_every_changed_byte_is_damage_or_padding(path: Path) -> None:
    whole = path.read_bytes()
    used = set(range(HEADER_BYTES))
    for s in ProgramFile(path).sections:
        used |= set(range(s.offset, s.offset + s.length))
    end = max(used) + 1
    for at in sorted(used | set(range(end, len(whole), 7))):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises((ProgramFileError, ProgramVersionError)):
            ProgramFile(path).verify()


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{}",
        b"[1, 2]",
        b'{"sections": 1, "facts": {}}',
        b'{"sections": [[0, 4, ""]], "facts": {}}',
        b'{"sections": [[64, -1, ""]], "facts": {}}',
        b'{"sections": [[64, 4611686018427387904, ""]], "facts": {}}',
        b'{"sections": [], "facts": 7}',
        b"[" * 100_000,
    ],
)
def test_a_manifest_that_lies_is_damage(tmp_path: Path, manifest: bytes) -> None:
    digest = hashlib.sha256(manifest).digest()
    header = struct.pack("<8sIIQQ32s", b"SMELTPRG", 1, 0, HEADER_BYTES, len(manifest), digest)
    path = tmp_path / "f.smelt"
    path.write_bytes(header + manifest)
    with pytest.raises(ProgramFileError):
        ProgramFile(path)


def test_constants_of_other_sizes_are_damage(path: Path) -> None:
    file = ProgramFile(path)
    described = file.facts["arrays"][0]
    for change in (
        {"shape": [3, 5]},
        {"shape": [-1]},
        {"shape": [2**62, 4]},
        {"dtype": "O"},
        {"dtype": "no type"},
        {"section": 99},
        {"section": -1},
        {"section": "0"},
    ):
        with pytest.raises(ProgramFileError):
            file.array(described | change)


def test_a_newer_format_says_what_wrote_it(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + struct.pack("<I", 9) + whole[12:])
    with pytest.raises(ProgramVersionError, match="format 9"):
        ProgramFile(path)


def test_what_others_may_write_is_not_trusted_nor_mapped(path: Path) -> None:
    ProgramFile(path).check_trust()
    path.chmod(0o666)
    file = ProgramFile(path)
    with pytest.raises(ProgramTrustError, match="0666"):
        file.check_trust()
    file.check_trust(hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(ProgramTrustError, match="SHA-256"):
        file.check_trust("0" * 64)
    path.write_bytes(b"")  # its constants were read: cutting it off does not stop the process
    np.testing.assert_array_equal(file.array(file.facts["arrays"][0]), ELEMENTS)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProgramFileError, match="regular"):
        ProgramFile(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        ProgramFile(tmp_path / "none")


def test_reading_reports_malformed_facts_as_damage(path: Path) -> None:
    file = ProgramFile(path)
    with pytest.raises(ProgramFileError, match="malformed"), file.reading():
        json.loads("{")
    with pytest.raises(SmeltError, match="no section"), file.reading():
        file.read(7)
