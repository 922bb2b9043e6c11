"""Every dtype of the safetensors format: live against stored, and stored against stored."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
import torch

from shardlint.weights import RowKind, RowStatus, WeightsVerdict, compare_checkpoints, faults, verify
from shardlint.weights.compare.bits import bits_of

SHAPE = (8, 16)
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
LIVE = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "F4": torch.float4_e2m1fn_x2,
}


def write(folder: Path, dtype: str, *, flipped: int | None = None) -> bytearray:
    """A checkpoint of one tensor of finite numbers, perhaps with the lowest bit of one byte flipped."""
    size = math.prod(SHAPE) * BITS[dtype] // 8
    data = bytearray(k * 37 % (2 if dtype == "BOOL" else 50) for k in range(size))
    if flipped is not None:
        data[flipped] ^= 1
    header = json.dumps({"w": {"dtype": dtype, "shape": SHAPE, "data_offsets": [0, size]}}).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return data


def model_of(data: bytearray, dtype: torch.dtype) -> torch.nn.Module:
    model = torch.nn.Module()
    model.register_buffer("w", torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(SHAPE[0], -1))
    return model


@pytest.mark.parametrize("dtype", LIVE)
def test_live_against_stored(dtype, tmp_path):
    model = model_of(write(tmp_path / "stored", dtype), LIVE[dtype])
    result = verify(model, tmp_path / "stored")
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert all(row.status is RowStatus.EXACT and row.checked == row.expected for row in result.rows)
    bits_of(model.w)[5, 3] ^= 1
    (row,) = (row for row in verify(model, tmp_path / "stored").of_kind(RowKind.LIVE) if row.load_mismatches)
    assert row.load_mismatches == 1
    assert row.first
    assert (row.first.live_index, row.first.checkpoint_index) == ((5, 3), (5, 3))


@pytest.mark.parametrize("dtype", [name for name in BITS if name != "C64"])
def test_stored_against_stored(dtype, tmp_path):
    write(tmp_path / "one", dtype)
    write(tmp_path / "same", dtype)
    write(tmp_path / "other", dtype, flipped=21)
    result = compare_checkpoints(tmp_path / "one", tmp_path / "same")
    assert result.verdict is WeightsVerdict.PASS, faults(result)
    assert all(row.status is RowStatus.EXACT and row.checked == row.expected for row in result.rows)
    result = compare_checkpoints(tmp_path / "one", tmp_path / "other")
    assert result.verdict is WeightsVerdict.FAIL
    (row,) = (row for row in result.of_kind(RowKind.LIVE) if row.load_mismatches)
    item = max(1, BITS[dtype] // 8)
    width = SHAPE[1] * BITS[dtype] // 8 // item
    assert row.load_mismatches == 1
    assert row.first
    assert row.first.checkpoint_index == divmod(21 // item, width)


def test_complex_numbers_are_refused(tmp_path):
    data = write(tmp_path / "one", "C64")
    write(tmp_path / "same", "C64")
    for result in (
        compare_checkpoints(tmp_path / "one", tmp_path / "same"),
        verify(model_of(data, torch.complex64), tmp_path / "one"),
    ):
        assert result.verdict is WeightsVerdict.FAIL
        assert all(row.status is RowStatus.INCOMPLETE for row in result.rows)
        assert all("complex dtypes (C64) are not compared" in fault.message for fault in faults(result))
        assert not any(fault.message.startswith("0 ") for fault in faults(result))


def test_the_two_formats_of_six_bits_are_not_the_same(tmp_path):
    write(tmp_path / "one", "F6_E2M3")
    write(tmp_path / "other", "F6_E3M2")
    result = compare_checkpoints(tmp_path / "one", tmp_path / "other")
    assert result.verdict is WeightsVerdict.FAIL
    assert any("has another dtype: F6_E3M2" in fault.message for fault in faults(result))


def test_six_bits_have_no_live_tensor(tmp_path):
    data = write(tmp_path / "one", "F6_E2M3")
    result = verify(model_of(data, torch.uint8), tmp_path / "one")
    assert result.verdict is WeightsVerdict.FAIL
    assert not any(row.status is RowStatus.EXACT for row in result.rows)
    assert any("the installed torch has no dtype for F6_E2M3" in row.reason for row in result.rows)
