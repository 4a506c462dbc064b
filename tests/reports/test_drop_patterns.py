"""Counts of dropped positions by layer, head, distance and type of token, against counting one by one."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import tiny
from scipy import stats

from attendrop.attention.layers import AttentionLayer
from attendrop.reports.drop_patterns import DropPatterns, distance_names, plot_drops
from attendrop.reports.drops import LayerDrops, PassDrops
from attendrop.reports.token_types import TokenTypes


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> TokenTypes:
    return TokenTypes(hf.AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path_factory.mktemp("bert"))))


def made(seed: int, *, rows: int = 3, length: int = 40, kinds: tuple[str, ...] = ("encoder", "encoder")) -> PassDrops:
    """Make a pass over random tokens, with padding and random drops that are more frequent in later layers."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 5 + len(tiny.WORDS), (rows, length), generator=generator)
    ids[:, 0], ids[:, 7] = 2, 3
    lengths = torch.tensor([length - 9 * row for row in range(rows)])
    valid = torch.arange(length) < lengths[:, None]
    layers = {}
    for index, kind in enumerate(kinds):
        possible = (valid[:, None, :, None] & valid[:, None, None, :]).clone()
        if kind == "decoder":
            possible &= torch.ones(length, length, dtype=torch.bool).tril()
        chance = torch.rand(rows, 2, length, length, generator=generator)
        layer = AttentionLayer(f"layer{index}", kind, index)
        layers[layer.key] = LayerDrops(layer, possible, (chance < 0.1 * (index + 1)) & possible)
    return PassDrops({"input_ids": ids.masked_fill(~valid, 0)}, layers)


def counted(drops: PassDrops, types: TokenTypes) -> dict[tuple[str, str, str], list[int]]:
    """Count one position after the other."""
    found: Counter[tuple[str, str, str, int]] = Counter()
    names = distance_names()
    lows = [int(name.rstrip("+").split("-")[0]) for name in names]
    for key, layer in drops.layers.items():
        kinds = [types.of(row) for row in drops.batch["input_ids"].tolist()]
        for row, head, query, place in np.ndindex(*layer.dropped.shape):
            if not layer.possible[row, 0, query, place]:
                continue
            far = max(i for i, low in enumerate(lows) if low <= abs(query - place))
            groups = {"layer": "all", "head": str(head), "distance": names[far]}
            groups |= {"from": kinds[row][query], "to": kinds[row][place]}
            for grouping, group in groups.items():
                found[grouping, key, group, 0] += 1
                found[grouping, key, group, 1] += int(layer.dropped[row, head, query, place])
    entries = {entry[:3] for entry in found}
    return {entry: [found[(*entry, 0)], found[(*entry, 1)]] for entry in entries}


def test_positions_are_counted_in_every_group(types: TokenTypes) -> None:
    kinds = ("decoder", "decoder")
    patterns, drops = DropPatterns(), made(0, rows=2, length=20, kinds=kinds)
    patterns.add([drops], types)
    expected = counted(drops, types)
    assert {entry: list(each[0]) for entry, each in patterns.counts.items()} == expected
    assert patterns.layers == [f"{kinds[0]}.0", f"{kinds[0]}.1"]


def test_passes_and_batches_add_up(types: TokenTypes) -> None:
    patterns = DropPatterns()
    passes = [made(seed, rows=2, length=12) for seed in range(3)]
    patterns.add(passes[:2], types)
    patterns.add(passes[2:], types)
    patterns.add([], types)
    assert patterns.batches == 3
    total = np.sum([counted(each, types)["to", "encoder.1", "word"] for each in passes], 0).tolist()
    assert np.sum(patterns.counts["to", "encoder.1", "word"], 0).tolist() == total
    share = patterns.share("to", "word", "encoder.1")
    assert (share.positions, share.share) == (total[0], pytest.approx(total[1] / total[0]))
    both = patterns.share("to", "word")
    assert both.positions == 2 * total[0]
    assert patterns.share("to", "punctuation") is None


def test_an_interval_is_that_of_the_mean_over_batches(types: TokenTypes) -> None:
    patterns = DropPatterns()
    for seed in range(6):
        patterns.add([made(seed)], types)
    share = patterns.share("layer", "all", "encoder.0")
    each = [dropped / positions for positions, dropped in patterns.counts["layer", "encoder.0", "all"]]
    low, high = stats.t.interval(0.95, 5, loc=np.mean(each), scale=stats.sem(each))
    assert (share.share, share.low, share.high) == (
        pytest.approx(np.mean(each)),
        pytest.approx(low),
        pytest.approx(high),
    )
    assert low < 0.1 < high
    single = DropPatterns()
    single.add([made(0)], types)
    one = single.share("layer", "all")
    assert math.isnan(one.low)


def test_tokens_that_are_not_known_are_left_out(types: TokenTypes) -> None:
    patterns, drops = DropPatterns(), made(0, kinds=("encoder", "decoder", "cross"))
    patterns.add([drops], types)
    known = {(grouping, layer) for grouping, layer, _ in patterns.counts}
    assert {("distance", "encoder.0"), ("from", "encoder.0"), ("to", "encoder.0")} <= known
    assert ("distance", "decoder.1") in known  # the decoder's own tokens are not in the batch, their places are
    assert not {("from", "decoder.1"), ("to", "decoder.1"), ("distance", "cross.2"), ("from", "cross.2")} & known
    assert ("to", "cross.2") in known
    images = DropPatterns()
    images.add([PassDrops({}, drops.layers)], types)
    assert not {("from", "encoder.0"), ("to", "encoder.0")} & {entry[:2] for entry in images.counts}


def test_a_figure_without_known_tokens_and_distances_is_drawn(types: TokenTypes, tmp_path: Path) -> None:
    patterns = DropPatterns()
    patterns.add([PassDrops({}, made(0, kinds=("cross",)).layers)], types)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # characters that the font lacks are no warnings
        plot_drops(patterns, "数据", tmp_path / "drops.png")
    assert (tmp_path / "drops.png").stat().st_size > 10_000


def test_types_of_tokens_that_only_idle_layers_have_are_left_out_of_the_figure(
    types: TokenTypes, tmp_path: Path
) -> None:
    """Types are known of the encoder's tokens, and only the decoder drops."""
    drops = made(0, kinds=("encoder", "decoder"))
    drops.layers["encoder.0"].dropped.zero_()
    patterns = DropPatterns()
    patterns.add([drops], types)
    assert patterns.active_layers == ["decoder.1"]
    assert "word" in patterns.groups("to") and patterns.share("to", "word") is None
    plot_drops(patterns, "idle", tmp_path / "drops.png")
