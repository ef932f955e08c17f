"""What a checkpoint folder is, read from its config.json: for a comment, and for sizes that fit.

Only words and lower bounds come from here. The KV geometry that vLLM makes of a model (block sizes
of the groups, their order) is decided by vLLM, so it is proposed and never declared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from kvbench.errors import UsageError

CONFIG: Final = "config.json"
Attention = Literal["full attention", "sliding window", "latent attention (MLA)", "hybrid"]

# Keys of config.json that only models with recurrent or state-space layers have.
_RECURRENT: Final = (
    "attn_layer_period",
    "full_attention_interval",
    "hybrid_override_pattern",
    "layers_block_type",
    "linear_attn_config",
    "linear_num_key_heads",
    "mamba_d_state",
    "ssm_cfg",
    "ssm_state_size",
    "state_size",
)
_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
_DTYPES: Final = frozenset({"float32", "bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder; None is what its config.json does not say."""

    directory: Path
    architecture: str
    attention: Attention
    layers: int | None
    kv_heads: int | None
    head_size: int | None
    vocabulary: int | None
    longest_tokens: int | None
    dtype: str | None
    has_weights: bool
    has_own_code: bool
    """it brings Python code, which vLLM runs only with --trust-remote-code"""

    @property
    def words(self) -> str:
        """One line for a person."""
        parts: list[str] = [self.attention]
        if self.layers is not None:
            parts.append(f"{self.layers} layers")
        if self.kv_heads is not None and self.head_size is not None:
            parts.append(f"{self.kv_heads} KV heads of {self.head_size}")
        if self.vocabulary is not None:
            parts.append(f"vocabulary {self.vocabulary}")
        if self.longest_tokens is not None:
            parts.append(f"up to {self.longest_tokens} tokens")
        parts.append(self.dtype or "dtype n/a")
        parts.append("weights" if self.has_weights else "no weights in the folder")
        return f"{self.architecture}: {', '.join(parts)}"

    def kv_values_per_token(self, tensor_parallel: int) -> int | None:
        """Cached numbers per token over all layers and ranks; None where that is not K and V.

        A rank has at least one KV head, so with more ranks than heads some are held twice.
        """
        known = (self.layers, self.kv_heads, self.head_size)
        if self.attention != "full attention" or None in known:
            return None
        assert self.layers is not None
        assert self.kv_heads is not None
        assert self.head_size is not None
        return self.layers * 2 * max(self.kv_heads, tensor_parallel) * self.head_size


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a folder; raises UsageError where it has no config.json that can be read."""
    path = directory / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            f"{directory} has no {CONFIG}; give the folder of a checkpoint, a name of the Hugging "
            "Face hub (org/name), or a model that kvbench knows"
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{path}: is no JSON object")
    # Models with other inputs than text keep the language model's part below.
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    architectures = config.get("architectures") or [config.get("model_type") or "unknown model"]
    dtype = str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch.")
    return Checkpoint(
        directory=directory,
        architecture=str(architectures[0]),
        attention=_attention(text),
        layers=_number(text, "num_hidden_layers"),
        kv_heads=_number(text, "num_key_value_heads", "num_attention_heads"),
        head_size=_head_size(text),
        vocabulary=_number(text, "vocab_size"),
        longest_tokens=_number(text, "max_position_embeddings"),
        dtype=dtype if dtype in _DTYPES else None,
        has_weights=any(next(directory.glob(f"*.{end}"), None) for end in ("safetensors", "bin")),
        has_own_code="auto_map" in config,
    )


def _attention(text: Mapping[str, Any]) -> Attention:
    kinds = set(text.get("layer_types") or ())
    if any(text.get(key) for key in _RECURRENT) or kinds - _WINDOWED - {"full_attention"}:
        return "hybrid"
    if text.get("kv_lora_rank"):
        return "latent attention (MLA)"
    is_windowed = text.get("sliding_window") and text.get("use_sliding_window", True)
    if kinds & _WINDOWED or text.get("attention_chunk_size") or (is_windowed and not kinds):
        return "sliding window"
    return "full attention"


def _head_size(text: Mapping[str, Any]) -> int | None:
    own = _number(text, "head_dim")
    if own is not None:
        return own
    width, heads = _number(text, "hidden_size"), _number(text, "num_attention_heads")
    return width // heads if width and heads else None


def _number(text: Mapping[str, Any], *keys: str) -> int | None:
    found = next((text[key] for key in keys if text.get(key) is not None), None)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
