"""A GGUF file becomes the checkpoint that it was made from; what is not understood is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_gguf
from gguf import GGMLQuantizationType
from safetensors import deserialize
from small_gguf import Recipe

from kvbench.errors import UsageError
from kvbench.gguf_models import weights
from kvbench.gguf_models.checkpoint import convert


def converted(folder: Path, recipe: Recipe) -> dict[str, bytes]:
    return convert(small_gguf.write(folder / "small.gguf", recipe))


def stored(files: dict[str, bytes]) -> dict[str, np.ndarray]:
    tensors = {}
    for name, tensor in deserialize(files["model.safetensors"]):  # type: ignore[no-untyped-call]
        assert tensor["dtype"] == "BF16"
        upper = np.frombuffer(tensor["data"], "<u2").astype(np.uint32) << np.uint32(16)
        tensors[name] = upper.view(np.float32).reshape(tensor["shape"])
    return tensors


def config(files: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files["config.json"])
    return found


@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_are_those_that_the_file_was_made_from(is_tied: bool, tmp_path: Path) -> None:
    recipe = Recipe(is_tied=is_tied)
    files = converted(tmp_path, recipe)
    wanted, found = small_gguf.values(recipe), stored(files)
    assert found.keys() == wanted.keys()
    assert all((found[name] == wanted[name]).all() for name in wanted)
    assert (weights.HEAD in found) is not is_tied
    assert config(files)["tie_word_embeddings"] is is_tied


def test_quantized_weights_come_back_within_their_steps(tmp_path: Path) -> None:
    recipe = Recipe(quantization=GGMLQuantizationType.Q8_0)
    wanted, found = small_gguf.values(recipe), stored(converted(tmp_path, recipe))
    differences = [np.abs(found[name] - wanted[name]).max() for name in wanted]
    # 8 bits over a block whose largest value is about 3, and the rounding to bfloat16.
    assert 0 < max(differences) < 0.03


def test_config_says_what_the_metadata_say(tmp_path: Path) -> None:
    files = converted(tmp_path, Recipe())
    assert config(files) | {"vocab_size": 265} == {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 2,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 25000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": 265,
    }
    assert config(files)["vocab_size"] == len(Recipe().tokens)
    assert json.loads(files["generation_config.json"]) == {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe(settings={"rope_scaling": "yarn"}), "scaling.type is 'yarn'"),
        (Recipe(settings={"rope_dimensions": 8}), "over 8 of 16 numbers"),
        (Recipe(extra_tensor="blk.0.attn_q.bias"), r"attn_q\.bias does not belong"),
        (Recipe(extra_tensor="rope_freqs.weight"), r"rope_freqs\.weight does not belong"),
        (Recipe(extra_tensor="blk.2.attn_norm.weight"), "more layers than it says"),
        (Recipe(without="blk.1.ffn_up.weight"), r"lacks 1 tensors.*layers\.1\.mlp\.up_proj"),
        (Recipe(pre="llama-bpe"), "pre is 'llama-bpe'; kvbench converts smollm"),
        (Recipe(merges=("hello",)), "'hello' is not a merge"),
        (Recipe(tokens=["a", "b", "a"], merges=("a b",)), "a token twice"),
        (Recipe(kinds=[6] * 265), r"kinds \[6\]"),
    ],
)
def test_what_is_not_understood_is_refused(recipe: Recipe, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        converted(tmp_path, recipe)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="architecture is 'qwen2'; kvbench converts llama"):
        converted(tmp_path, Recipe(architecture="qwen2"))


def test_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"no weights here " * 64)
    with pytest.raises(UsageError, match=r"small\.gguf is not a GGUF file"):
        convert(path)
