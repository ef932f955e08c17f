"""Weights of a llama-type GGUF file under the names and in the row order of a checkpoint.

The trap: the GGUF converter reorders the rows of the query and key projections, because llama.cpp
rotates neighbours (0 with 1) where the code of transformers and vLLM rotates halves (0 with
head_dim / 2). Left in that order, the model loads and runs, and its answers are worthless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from gguf import dequantize
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.gguf_models.config import Shape
from kvbench.gguf_models.metadata import Metadata

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
_WHOLE: Final = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    "output.weight": HEAD,
}
_OF_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR: Final = re.compile(r"blk\.(\d+)\.(\w+)\.weight")

Values = NDArray[np.float32]


class _Place(NamedTuple):
    """Where a tensor goes, and over how many heads its rows are spread (None: not reordered)."""

    name: str
    heads: int | None = None


def read(metadata: Metadata, shape: Shape) -> dict[str, Values]:
    """Return all weights as float32 by their names in a checkpoint, rows put back.

    A model with a tied output projection has no `HEAD`. Raises `UsageError` for a tensor that a
    plain llama-type model does not have, and when one is missing.
    """
    found = dict(_tensors(metadata, shape))
    wanted = {*_names(shape)}
    missing = sorted(wanted - found.keys())
    if missing:
        raise UsageError(f"{metadata.path.name} lacks {len(missing)} tensors, such as {missing[0]}")
    extra = sorted(found.keys() - wanted - {HEAD})
    if extra:
        raise UsageError(f"{metadata.path.name} has more layers than it says, such as {extra[0]}")
    return found


def to_neighbours(rows: NDArray, heads: int) -> NDArray:  # type: ignore[type-arg]
    """Reorder the rows of each head from halves (a checkpoint) to neighbours (GGUF).

    `rows` is [heads * head_dim, ...]; row i of the first half of a head moves to 2 i, row i of the
    second half to 2 i + 1.
    """
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def to_halves(rows: NDArray, heads: int) -> NDArray:  # type: ignore[type-arg]
    """Undo `to_neighbours`: from GGUF's order of rows to that of a checkpoint."""
    neighbours = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(neighbours.swapaxes(1, 2)).reshape(rows.shape)


def _tensors(metadata: Metadata, shape: Shape) -> Iterator[tuple[str, Values]]:
    for tensor in metadata.reader.tensors:
        place = _place(tensor.name, shape)
        if place is None:
            raise UsageError(
                f"{metadata.path.name}: tensor {tensor.name} does not belong to a plain llama-type "
                "model, so the model would be converted without it"
            )
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if place.heads is not None:
            values = to_halves(values, place.heads)
        yield place.name, values


def _place(name: str, shape: Shape) -> _Place | None:
    if name in _WHOLE:
        return _Place(_WHOLE[name])
    parts = _LAYER_TENSOR.fullmatch(name)
    if parts is None or parts[2] not in _OF_LAYER:
        return None
    heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(parts[2])
    return _Place(f"model.layers.{parts[1]}.{_OF_LAYER[parts[2]]}.weight", heads)


def _names(shape: Shape) -> Iterator[str]:
    yield from (name for name in _WHOLE.values() if name != HEAD)
    for layer in range(shape.layers):
        yield from (f"model.layers.{layer}.{part}.weight" for part in _OF_LAYER.values())
