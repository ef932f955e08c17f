"""`config.json` and `generation_config.json` of a llama-type model, from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kvbench.errors import UsageError
from kvbench.gguf_models.metadata import Metadata

ARCHITECTURES: Final = ("llama",)
_ROPE_TYPES: Final = ("none",)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the converter must know of a model; names as in `config.json`."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int


def shape_of(metadata: Metadata) -> Shape:
    """Return the sizes; raises `UsageError` for another architecture or scaled positions."""
    prefix = metadata.is_one_of("general.architecture", ARCHITECTURES)
    if metadata.get(f"{prefix}.rope.scaling.type") is not None:
        metadata.is_one_of(f"{prefix}.rope.scaling.type", _ROPE_TYPES)
    heads = metadata.need(f"{prefix}.attention.head_count")
    hidden = metadata.need(f"{prefix}.embedding_length")
    head_dim = metadata.get(f"{prefix}.attention.key_length") or hidden // heads
    rotated = metadata.get(f"{prefix}.rope.dimension_count")
    if rotated not in {None, head_dim}:
        raise UsageError(
            f"{metadata.path.name}: rotary embedding over {rotated} of {head_dim} numbers of a "
            "head; kvbench converts whole heads only"
        )
    return Shape(
        layers=metadata.need(f"{prefix}.block_count"),
        hidden=hidden,
        mlp=metadata.need(f"{prefix}.feed_forward_length"),
        heads=heads,
        kv_heads=metadata.get(f"{prefix}.attention.head_count_kv") or heads,
        head_dim=head_dim,
    )


def model_config(
    metadata: Metadata, shape: Shape, *, vocabulary_size: int, is_tied: bool, dtype: str
) -> dict[str, Any]:
    """Return `config.json`; `is_tied`: the output projection is the embedding."""
    prefix = metadata.need("general.architecture")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        **_token_ids(metadata),
        "dtype": dtype,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "max_position_embeddings": metadata.need(f"{prefix}.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": metadata.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_theta": metadata.number(f"{prefix}.rope.freq_base"),
            "rope_type": "default",
        },
        "tie_word_embeddings": is_tied,
        "vocab_size": vocabulary_size,
    }


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Return `generation_config.json`: where an answer ends, and nothing about sampling."""
    return _token_ids(metadata)


def _token_ids(metadata: Metadata) -> dict[str, Any]:
    named = {"bos": "bos", "eos": "eos", "pad": "padding"}
    found = {
        f"{ours}_token_id": metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        for ours, theirs in named.items()
    }
    return {name: value for name, value in found.items() if value is not None}
