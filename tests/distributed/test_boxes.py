"""Boxes by replay against the shards that torch itself deals out to 2, 4 and 8 ranks, over seeded random layouts."""

import itertools
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from shardlint.boxes import REPLICATE, SHARD, STRIDED, Placement, boxes, coordinates, replay, shape_of

pytestmark = pytest.mark.distributed

WORKER = Path(__file__).with_name("boxes_worker.py")
MESHES = {
    2: ((2,), (1, 2), (2, 1)),
    4: ((4,), (2, 2), (1, 4)),
    8: ((8,), (2, 4), (4, 2), (2, 2, 2)),
}
LAYOUTS = 60
LIMIT = 240


def random_layout(choose, meshes):
    """
    A layout of a small tensor. Torch sends no strided shards of unequal sizes, so every rank cuts its own of those;
    64 rows are equal ones whatever the cuts.
    """
    mesh, even = choose.choice(meshes), choose.random() < 0.3
    shape = [64] if even else [choose.randint(1, 13) for _ in range(choose.randint(1, 3))]
    factors = (2, 4) if even else (2, 3, 4)
    placements = [random_placement(choose, len(shape), factors) for _ in mesh]
    sent = even or all(kind != STRIDED for kind, _, _ in placements)
    return {"shape": shape, "mesh": mesh, "placements": placements, "sent": sent}


def random_placement(choose, ndim, factors):
    kind = choose.choice((SHARD, STRIDED, REPLICATE))
    dim = None if kind == REPLICATE else choose.randrange(-ndim, ndim)
    return [kind, dim, choose.choice(factors) if kind == STRIDED else None]


def flat_indices(shape, dims):
    """The elements, counted row by row in the whole tensor, at the product of the indices of each dim."""
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return [sum(i * stride for i, stride in zip(pick, strides, strict=True)) for pick in itertools.product(*dims)]


def of_box(shape, box):
    sides = zip(box.offsets, box.sizes, strict=True)
    return flat_indices(shape, [range(start, start + size) for start, size in sides])


@pytest.fixture(scope="module", params=sorted(MESHES))
def dealt(request, tmp_path_factory):
    """Every layout with what each rank holds: pairs of a layout and rows of coordinate, local shape and elements."""
    world, choose = request.param, random.Random(request.param)
    layouts = [random_layout(choose, MESHES[world]) for _ in range(LAYOUTS)]
    folder = tmp_path_factory.mktemp(f"boxes{world}")
    source, target = folder / "layouts.json", folder / "shards.json"
    source.write_text(json.dumps(layouts))
    # A process of its own, for the threaded group replaces what torch.distributed takes for the world.
    command = [sys.executable, "-W", "ignore", str(WORKER), str(world), str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return list(zip(layouts, json.loads(target.read_text()), strict=True))


def test_boxes_equal_the_shards_of_every_rank(dealt):
    for layout, rows in dealt:
        shape, mesh = layout["shape"], layout["mesh"]
        assert [tuple(coordinate) for coordinate, _, _ in rows] == list(coordinates(mesh))
        placements = [Placement(*item) for item in layout["placements"]]
        for coordinate, local_shape, elements in rows:
            dims = replay(shape, mesh, coordinate, placements)
            order = [[i for start, length in ranges for i in range(start, start + length)] for ranges in dims]
            assert flat_indices(shape, order) == elements, (layout, coordinate)
            assert list(shape_of(dims)) == local_shape, (layout, coordinate)
            held = [i for box in boxes(shape, mesh, coordinate, placements) for i in of_box(shape, box)]
            assert sorted(held) == sorted(elements), (layout, coordinate)


def test_the_layouts_reach_the_hard_cases(dealt):
    sizes = [[len(elements) for _, _, elements in rows] for _, rows in dealt]
    kinds = [{item[0] for item in layout["placements"]} for layout, _ in dealt]
    assert any(0 in row for row in sizes), "no rank is empty"
    assert any(len(set(row) - {0}) > 1 for row in sizes), "no shards are uneven"
    assert {len(layout["mesh"]) for layout, _ in dealt} >= {1, 2}
    assert any({SHARD, STRIDED} <= kind for kind in kinds)
    assert any({REPLICATE, STRIDED} <= kind for kind in kinds)
    assert any(layout["sent"] and STRIDED in kind for (layout, _), kind in zip(dealt, kinds, strict=True))
