"""Tiles: everything equal is clean, everything else is counted as it is, for any dtype, stride and cast."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardlint.weights.compare.bits import bits_of, has_nonfinite, lossless, nonfinite_mask, torch_dtype, values_of
from shardlint.weights.compare.counts import Tally
from shardlint.weights.compare.live_tensor import LiveBytes, Unreadable
from shardlint.weights.compare.threads import Compared
from shardlint.weights.storage.stored_tensors import ReadError
from shardlint.weights.symbolic.tensor import SymbolicTensor
from support.leaves import leaf, run, write

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS += [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.uint16, torch.uint32]


def only(result: Compared) -> Tally:
    (tally,) = result.counts.values()
    return tally


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("staged", [False, True])
def test_every_dtype_is_equal_to_itself_and_one_bit_is_found(tmp_path, dtype, staged):
    value = random(dtype, 37, 51)
    sources = write(tmp_path / "a.safetensors", {"w": value})
    live = value.clone()
    clean = only(run(live, leaf(sources["w"]), sources, staged=staged))
    assert clean == Tally(checked=37 * 51)
    bits = bits_of(live)
    bits[20, 13] ^= 1
    found = only(run(live, leaf(sources["w"]), sources, staged=staged))
    assert (found.checked, found.exact_mismatches, found.load_mismatches) == (37 * 51, 1, 1)
    assert found.first is not None
    assert found.first.live_index == (20, 13)
    assert found.first.checkpoint_index == (20 * 51 + 13,)
    assert found.first.actual_bits != found.first.reference_bits
    assert not found.first.cast_only


def test_zeros_of_different_sign_differ_and_nan_is_counted(tmp_path):
    value = torch.zeros(8)
    sources = write(tmp_path / "a.safetensors", {"w": value})
    live = value.clone()
    live[3] = -0.0
    found = only(run(live, leaf(sources["w"]), sources))
    assert (found.exact_mismatches, found.load_mismatches, found.nonfinite, found.max_abs) == (1, 1, 0, 0.0)
    live[4] = float("nan")
    found = only(run(live, leaf(sources["w"]), sources))
    assert (found.load_mismatches, found.nonfinite, found.max_abs) == (2, 1, None)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_equal_but_not_finite_is_found(tmp_path, bad, dtype):
    value = random(dtype, 100)
    value[77] = bad
    sources = write(tmp_path / "a.safetensors", {"w": value})
    found = only(run(value.clone(), leaf(sources["w"]), sources))
    assert (found.load_mismatches, found.exact_mismatches, found.nonfinite) == (0, 0, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, *FLOATS[4:], torch.float8_e8m0fnu], ids=str)
def test_nonfinite_patterns_are_those_of_torch(dtype):
    patterns = np.arange(1 << (8 * dtype.itemsize), dtype=np.uint8 if dtype.itemsize == 1 else np.uint16)
    expected = ~torch.isfinite(values_of(patterns, dtype).float()).numpy()
    assert (nonfinite_mask(patterns, dtype) == expected).all()
    assert has_nonfinite(patterns[expected], dtype)
    assert all(has_nonfinite(patterns[k : k + 1], dtype) for k in np.flatnonzero(expected)[:300])
    assert not has_nonfinite(patterns[~expected], dtype)


@pytest.mark.parametrize("source", FLOATS + INTEGERS, ids=str)
def test_lossless_casts_come_back(source):
    patterns = np.arange(1 << (8 * min(source.itemsize, 2)), dtype=np.uint8 if source.itemsize == 1 else np.uint16)
    if source.itemsize > 2:
        values = random(source, 4096)
    elif source == torch.bool:
        values = torch.tensor([False, True])
    else:
        values = values_of(patterns, source)
        values = values[torch.isfinite(values.float())]
    for target in FLOATS + INTEGERS:
        if lossless(source, target):
            assert (bits_of(values.to(target).to(source)) == bits_of(values)).all(), target
    assert lossless(source, source)


def test_casts_are_told_apart(tmp_path):
    value = torch.randn(64, 64)
    sources = write(tmp_path / "a.safetensors", {"w": value})
    narrowed = only(run(value.to(torch.bfloat16), leaf(sources["w"]), sources))
    assert narrowed.load_mismatches == 0
    assert narrowed.exact_mismatches > 3000
    assert narrowed.first is not None
    assert narrowed.first.cast_only
    assert narrowed.max_load_abs == 0.0
    assert narrowed.max_abs == pytest.approx(float((value - value.bfloat16().float()).abs().max()))
    sources = write(tmp_path / "b.safetensors", {"w": value.bfloat16()})
    assert only(run(value.bfloat16().float(), leaf(sources["w"]), sources)) == Tally(checked=4096)
    live = value.bfloat16().float()
    live[5, 5] += 1
    widened = only(run(live, leaf(sources["w"]), sources))
    assert (widened.load_mismatches, widened.exact_mismatches) == (1, 1)
    assert widened.first is not None
    assert (widened.first.storage_dtype, widened.first.reference_dtype) == ("float32", "bfloat16")


def test_integers_loaded_into_floats_are_compared_by_value(tmp_path):
    sources = write(tmp_path / "a.safetensors", {"w": torch.tensor([1, 2, 2**24 + 1])})
    found = only(run(torch.tensor([1.0, 2.0, 2.0**24]), leaf(sources["w"]), sources))
    assert (found.load_mismatches, found.exact_mismatches) == (0, 1)


@st.composite
def layouts(draw):
    """A live tensor with odd strides: a slice of a larger, permuted one."""
    rank = draw(st.integers(1, 3))
    shape = [draw(st.integers(1, 9)) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    steps = [draw(st.integers(1, 2)) for _ in range(rank)]
    margin = [draw(st.integers(0, 2)) for _ in range(rank)]
    return shape, order, steps, margin


@given(layouts(), st.integers(0, 5), st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_strides_and_any_rearrangement(tmp_path, layout, seed, data):
    shape, order, steps, margin = layout
    torch.manual_seed(seed)
    big = torch.zeros([size * step + pad for size, step, pad in zip(shape, steps, margin, strict=True)])
    live = big[tuple(slice(pad, pad + size * step, step) for size, step, pad in zip(shape, steps, margin, strict=True))]
    live.copy_(torch.randn(shape))
    live = live.permute(order)
    stored = live.flip(0).reshape(-1).clone()
    sources = write(tmp_path / "a.safetensors", {"w": stored})
    region = leaf(sources["w"]).reshape(tuple(live.shape)).flip(0)
    assert only(run(live, region, sources)) == Tally(checked=live.numel())
    at = tuple(data.draw(st.integers(0, size - 1)) for size in live.shape)
    live[at] += 1
    found = only(run(live, region, sources))
    assert found.load_mismatches == 1
    assert found.first is not None
    assert found.first.live_index == at
    flipped = (live.shape[0] - 1 - at[0], *at[1:])
    assert stored[found.first.checkpoint_index[0]] != live[at]
    assert found.first.checkpoint_index == (int(torch.arange(live.numel()).reshape(live.shape)[flipped]),)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t(),
        lambda x: x[:, 300:900],
        lambda x: x[::2],
        lambda x: x.reshape(2, 700, 1000).transpose(0, 1).reshape(1400, 1000),
        lambda x: x[:, 17],
        lambda x: x.flip(1),
        lambda x: torch.cat([x[700:], x[:700]], 1),
        lambda x: x.unsqueeze(0).expand(3, 1400, 1000).reshape(4200, 1000),
    ],
)
def test_tensors_of_many_tiles(tmp_path, change):
    value = torch.arange(1400 * 1000).reshape(1400, 1000)
    sources = write(tmp_path / "a.safetensors", {"pad": torch.zeros(3, dtype=torch.uint8), "w": value})
    live = change(value)
    region = change(leaf(sources["w"]))
    for tensor in (live, live.contiguous()):
        assert only(run(tensor, region, sources)) == Tally(checked=live.numel())
    wrong = live.clone()
    at = tuple(size * 2 // 3 for size in wrong.shape)
    wrong[at] = -5
    found = only(run(wrong, region, sources))
    assert (found.load_mismatches, found.first and found.first.live_index) == (1, at)


def test_everything_different_is_counted_exactly(tmp_path):
    value = torch.randn(6000, 1000).bfloat16()
    sources = write(tmp_path / "a.safetensors", {"w": value})
    live = value.clone()
    live[100:] += 1
    found = only(run(live, leaf(sources["w"]), sources))
    assert found.load_mismatches == int((bits_of(live) != bits_of(value)).sum())
    assert found.detailed_tiles == 2
    assert found.counted_tiles > 5
    assert found.first is not None
    assert found.first.live_index[0] == 100


def test_constants_and_lazy_arithmetic(tmp_path):
    weight = torch.randn(256, 384).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3)
    sources = write(tmp_path / "a.safetensors", {"w": weight, "scale": scale})

    def dequantised(w, s):
        blocks = w.to(torch.float32).reshape(2, 128, 3, 128) * s.reshape(2, 1, 3, 1)
        return torch.nn.functional.pad(blocks.reshape(256, 384).to(torch.bfloat16), (0, 2))

    region = dequantised(leaf(sources["w"]), leaf(sources["scale"]))
    live = dequantised(weight, scale)
    assert sum(tally.checked for tally in run(live, region, sources).counts.values()) == 256 * 386
    assert all(not tally.load_mismatches for tally in run(live, region, sources).counts.values())
    live[200, 100] += 1
    live[9, 385] = 1
    assert sum(tally.load_mismatches for tally in run(live, region, sources).counts.values()) == 2
    turned = region.t()
    assert all(
        not tally.load_mismatches for tally in run(dequantised(weight, scale).t(), turned, sources).counts.values()
    )


def test_threads_do_not_change_the_outcome(tmp_path):
    from shardlint.weights.compare.threads import Options, compare
    from support.leaves import pieces_of

    values = {f"w{k}": torch.randn(3000, 997) for k in range(8)}
    sources = write(tmp_path / "a.safetensors", values)
    live = {key: value.clone() for key, value in values.items()}
    live["w3"][1000:] = 0
    live["w6"][5, 5] = float("nan")
    pieces = [piece for key in values for piece in pieces_of(LiveBytes(key, live[key]), leaf(sources[key]), sources)]
    one, two = (compare(pieces, sources, Options(threads=threads)) for threads in (1, 3))
    assert one.counts == two.counts
    assert one.counts["w6", "w6"].nonfinite == 1
    seen: list[tuple[int, int, str]] = []
    sampled = compare(pieces, sources, Options(sample=0.3, progress=lambda *a: seen.append(a)))
    assert sampled.sampled
    assert 0 < sampled.elements < one.elements
    assert seen[-1][0] <= seen[-1][1] == sum(value.nbytes for value in values.values())


def test_a_short_file_is_an_error_with_its_place(tmp_path):
    path = tmp_path / "a.safetensors"
    sources = write(path, {"w": torch.randn(1000, 1000)})
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ReadError, match=r"a\.safetensors: ends at byte .*w needs 10 bytes more"):
        run(torch.randn(1000, 1000), leaf(sources["w"]), sources)


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (torch.empty(3, device="meta"), "meta"),
        (torch.zeros(3, dtype=torch.complex64), "complex"),
        (torch.zeros(3, 3).to_sparse(), "sparse"),
    ],
)
def test_what_cannot_be_read_is_refused(tensor, word):
    with pytest.raises(Unreadable, match=word):
        LiveBytes("w", tensor)


def test_storage_smaller_than_its_shape_is_refused():
    tensor = torch.zeros(10)
    tensor.untyped_storage().resize_(8)
    with pytest.raises(Unreadable, match="needs 40 bytes, its storage has 8"):
        LiveBytes("w", tensor)


def test_every_name_of_safetensors_has_a_dtype_or_is_refused():
    assert torch_dtype("BF16") is torch.bfloat16
    assert torch_dtype("F6_E2M3") is None


def test_packed_four_bit_values_are_compared_as_bits(tmp_path):
    bytes_ = torch.randint(0, 255, (16, 8), dtype=torch.uint8)
    sources = write(tmp_path / "a.safetensors", {"w": bytes_})
    packed = torch.float4_e2m1fn_x2
    from attrs import evolve

    source = {"w": evolve(sources["w"], dtype=packed)}
    region = SymbolicTensor.leaf("w", (16, 8), packed)
    live = bytes_.clone().view(packed)
    assert only(run(live, region, source)) == Tally(checked=128)
    live.view(torch.uint8)[3, 3] ^= 1
    found = only(run(live, region, source))
    assert (found.load_mismatches, found.max_abs) == (1, None)


@pytest.mark.parametrize("shape", [(6,), (3, 4)])
def test_expanded_tensors_are_told_by_the_index_of_the_element(tmp_path, shape):
    """All elements share one place in storage, so that says nothing about which of them differs."""
    stored = torch.full(shape, 2.0)
    at = tuple(size - 1 for size in shape)
    stored[at] = 3.0
    sources = write(tmp_path / "a.safetensors", {"a": stored})
    live = torch.full((1,) * len(shape), 2.0).expand(shape)
    found = run(live, leaf(sources["a"]), sources)
    ((_, tally),) = found.counts.items()
    assert (tally.checked, tally.load_mismatches) == (stored.numel(), 1)
    assert tally.first is not None
    assert tally.first.live_index == at
