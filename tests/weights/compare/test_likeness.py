"""What a difference is said to look like."""

from __future__ import annotations

import pytest
import torch

from shardlint.weights.compare.likeness import likeness

torch.manual_seed(0)
SQUARE, WIDE = torch.randn(48, 48), torch.randn(48, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("stored", "change", "text"),
    [
        (SQUARE, lambda value: value.t(), "equals the stored tensor transposed"),
        (WIDE, lambda value: value.t().reshape(48, 8), "equals the stored tensor transposed and read in the shape"),
        (torch.randn(3, 8, 8), lambda value: value.transpose(1, 2), "transposed in its last two dimensions"),
        (WIDE, lambda value: value.roll(24, 0), "rows in another order: 2 blocks are exchanged"),
        (WIDE, lambda value: value[[*range(16, 32), *range(16), *range(32, 48)]], "3 blocks are exchanged"),
        (WIDE, lambda value: value.view(4, 6, 2, 8).transpose(1, 2).reshape(48, 8), "halves of each of 4 heads"),
        (WIDE, lambda value: value.view(4, 2, 6, 8).transpose(1, 2).reshape(48, 8), "pairs of each of 4 heads"),
        (WIDE, lambda value: value.view(2, 24, 8).transpose(0, 1).reshape(48, 8), "as of gate and up"),
        (SQUARE, lambda value: value[:, torch.randperm(48)], "columns in another order"),
        (torch.randn(6, 4, 4), lambda value: value[[5, 1, 3, 0, 2, 4]], "slices along dimension 0 in another order"),
        (SQUARE, lambda value: value * 0.5, "is the stored tensor times 0.5"),
        (SQUARE, lambda value: value * -2, "is the stored tensor times -2"),
        (SQUARE, torch.zeros_like, "holds the same number everywhere, 0"),
        (SQUARE, lambda value: torch.cat([value[:44], torch.zeros(4, 48).to(value)]), "last 4 of 48 rows only, which"),
        (SQUARE, lambda value: torch.cat([value[:44], value[44:] + 1]), "differs in its last 4 of 48 rows only"),
        (SQUARE, torch.sin, ""),
    ],
)
def test_the_words_for_a_change(stored, change, text, dtype):
    stored = stored.to(dtype)
    found = likeness(change(stored), stored).text
    assert text in found
    assert bool(text) == bool(found)


def test_how_large_a_small_change_is():
    changed = SQUARE.clone()
    changed.view(torch.int32)[0, 0] ^= 5
    found = likeness(changed, SQUARE)
    assert (found.text, found.bits) == ("differs in the lowest 3 of its 32 bits only", 3)
    assert found.median_abs == float((changed[0, 0].double() - SQUARE[0, 0].double()).abs())


def test_norm_weights_that_are_stored_without_their_one():
    assert likeness(SQUARE[0] + 1, SQUARE[0]).text == "is the stored tensor plus 1"


def test_nothing_is_said_of_what_has_no_numbers_in_common():
    assert likeness(torch.full((4, 4), float("nan")), torch.randn(4, 4)).text == ""
    assert likeness(torch.empty(0, 4), torch.empty(0, 4)).text == ""
    assert likeness(torch.arange(6), torch.arange(6).flip(0)).text == ""
