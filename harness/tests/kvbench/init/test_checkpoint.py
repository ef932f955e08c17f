from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import UsageError
from kvbench.init.checkpoint import Checkpoint, read_checkpoint

# The keys that decide, as the published config.json files of these families have them.
DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 1024,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def checkpoint(folder: Path, config: object) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(config))
    return read_checkpoint(folder)


def test_dense_model_is_described_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    found = checkpoint(tmp_path, DENSE)
    assert found.words == (
        "Qwen3ForCausalLM: full attention, 28 layers, 8 KV heads of 128, vocabulary 151936, "
        "up to 40960 tokens, bfloat16, weights"
    )
    assert found.kv_values_per_token(1) == 28 * 2 * 8 * 128
    assert found.kv_values_per_token(16) == 28 * 2 * 16 * 128  # each rank holds a head


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        ({"sliding_window": 4096, "use_sliding_window": False}, "full attention"),
        ({"layer_types": ["full_attention"] * 28, "sliding_window": 4096}, "full attention"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding window"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding window"),
        ({"attention_chunk_size": 8192}, "sliding window"),
        ({"kv_lora_rank": 512}, "latent attention (MLA)"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "hybrid"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid"),
        ({"kv_lora_rank": 512, "linear_attn_config": {"kda_layers": [1]}}, "hybrid"),
    ],
)
def test_kinds_of_attention_are_told_apart(
    tmp_path: Path, changes: dict[str, Any], attention: str
) -> None:
    found = checkpoint(tmp_path, DENSE | changes)
    assert found.attention == attention
    is_plain = attention == "full attention"
    assert (found.kv_values_per_token(1) is not None) == is_plain


def test_text_part_of_a_model_with_images_counts(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, {"architectures": ["SomeVisionModel"], "text_config": DENSE})
    assert (found.architecture, found.layers, found.vocabulary) == ("SomeVisionModel", 28, 151936)


def test_head_size_follows_from_the_width_where_it_is_not_said(tmp_path: Path) -> None:
    config = {key: value for key, value in DENSE.items() if key != "head_dim"}
    assert checkpoint(tmp_path, config).head_size == 1024 // 16


def test_what_is_not_said_stays_unknown(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, {"model_type": "odd"})
    assert found.words == "odd: full attention, dtype n/a, no weights in the folder"
    assert found.kv_values_per_token(1) is None


@pytest.mark.parametrize("text", ["{", "[]"])
def test_broken_config_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        read_checkpoint(tmp_path)


def test_folder_without_config_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give the folder of a checkpoint"):
        read_checkpoint(tmp_path)
