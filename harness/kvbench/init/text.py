"""The text of a first scenario: short, and with a comment where a line decides what is proved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from jinja2 import Environment, StrictUndefined

from kvbench.init.checkpoint import Checkpoint
from kvbench.init.choices import HOST_SUFFIX, ChosenModel, HubName, KnownModel
from kvbench.init.sizes import Sizes
from kvbench.scenario.models import TinyModel

_TEMPLATE: Final = """\
# {{ title }}
# Written by `kvbench init`. Its parts: docs/scenarios.md of kvbench; its fields: docs/reference.md.
#
#   kvbench plan {{ file }}
#   kvbench run {{ file }}
#
extends: [{{ extends | join(", ") }}]
name: {{ name | quoted }}
title: {{ title | quoted }}
{% if needs %}
needs:
{% for key, value in needs.items() %}
  {{ key }}: {{ value | quoted }}
{% endfor %}
{% endif %}
{% if model %}
model:
{% for line in model.comment %}
  # {{ line }}
{% endfor %}
{% for key, value in model.fields.items() %}
  {{ key }}: {{ value | quoted }}
{% endfor %}
{% for line in model.geometry %}
  #{{ " " + line if line else "" }}
{% endfor %}
{% endif %}
engine:
{% if dtype %}
{% if is_hybrid %}
  # vLLM's CPU kernels for recurrent layers take nothing else.
{% elif gpus == 0 %}
  # In float32, where memory allows it, clean answers are equal to the bit on a CPU, so that the
  # smallest damage shows.
{% endif %}
  dtype: {{ dtype }}
{% endif %}
{% if is_hybrid %}
  # Without it a hybrid on vLLM's CPU build can answer from a wrong state (docs/cpu.md).
  prefix_match_unit_tokens: 128
{% endif %}
{% if tensor_parallel > 1 %}
  tensor_parallel: {{ tensor_parallel }}
{% endif %}
{% if has_own_code %}
  trust_remote_code: true
{% endif %}
{% if sizes.block_tokens %}
  block_tokens: {{ sizes.block_tokens }}
{% endif %}
{% if sizes.gpu_blocks %}
  # A small pool forces eviction on purpose; it is not the normal distribution of hits.
  gpu_blocks: {{ sizes.gpu_blocks }}
{% endif %}
  max_model_len_tokens: {{ sizes.max_model_len_tokens }}
  max_num_seqs: 16
{% if sizes.gpu_blocks %}
  # Below the longest prompts, so that they span several prefill chunks.
{% endif %}
  chunk_tokens: {{ sizes.chunk_tokens }}
arms:
  # The control shows what is noise, and what is broken without a connector already.
  control:
    role: control
    connector: {extends: connectors/none}
  {{ arm }}:
    role: tested
    connector:
      extends: {{ connector }}
      # Over all ranks (one rank's: host_pool_bytes_per_rank). It should hold what is sent between
      # two resets of both tiers; `plan` warns of less, where the geometry is declared.
      host_pool_bytes_total: {{ host_memory }}
stages:
  replay:
{% if claims | length < 4 %}
    # Dummy weights answer every prompt alike, so identity and logprobs would prove nothing.
{% endif %}
    claims: [{{ claims | join(", ") }}]
    workload:
      kind: replay
      prompts:
        seed: 1
{% if sizes.token_ids %}
        # Token ids away from the special tokens at either end of the vocabulary.
        low_token_id: {{ sizes.token_ids[0] }}
        high_token_id: {{ sizes.token_ids[1] }}
{% endif %}
{% if many_prompts %}
        # Where the noise is not 0, fewer than 7 prompts cannot decide at error_rate 0.01.
{% endif %}
{% if sizes.blocks %}
        blocks: {{ sizes.blocks | listed }}
        offsets_tokens: {{ sizes.offsets_tokens | listed }}
{% endif %}
{% if sizes.lengths_tokens %}
        lengths_tokens: {{ sizes.lengths_tokens | listed }}
{% endif %}
{% if sizes.filler_lengths_tokens %}
      # One and a half times the pool; with a declared geometry kvbench counts them itself.
      filler_lengths_tokens: {{ sizes.filler_lengths_tokens | listed }}
{% endif %}
{% if sizes.phases %}
      # Without the geometry nobody can say what fills the GPU pool, so pressure and replay are left
      # out, and the tier is asked after a reset of the device cache. With engine.gpu_blocks and
      # filler_lengths_tokens that are larger than it, this line can go.
      phases: {{ sizes.phases | listed }}
{% endif %}
      new_tokens: 16
      concurrency: {{ sizes.concurrency | listed }}
"""

_WORD: Final = re.compile(r"[a-z_]+")
_NO_TEXT: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
"""words that are something else than text to one YAML reader or another"""
_COST: Final = (
    "The KV geometry is not declared, so expected hits are ranges: a tier that gives back only a",
    "part of what it should is not failed for it. Answers are compared all the same.",
)


def render(
    file: Path,
    name: str,
    chosen: ChosenModel,
    *,
    connector: str,
    host_memory_bytes: int,
    gpus: int,
    sizes: Sizes,
) -> str:
    """Return the YAML of a scenario; `gpus` 0 is vLLM's CPU build."""
    node = "nodes/cpu" if gpus == 0 else "nodes/gpu8" if gpus == 8 else "nodes/gpu"
    machine = machine_words(gpus)
    arm = connector.removeprefix("connectors/").removesuffix(HOST_SUFFIX)
    title = f"{model_words(chosen)} with {arm.replace('_', ' ')}, {machine}"
    is_hybrid = gpus == 0 and isinstance(chosen, Checkpoint) and chosen.attention == "hybrid"
    has_dummy = _weights(chosen) == "dummy"
    claims = ("alive", "hits") if has_dummy else ("alive", "hits", "identity", "logprobs")
    return (
        _environment()
        .from_string(_TEMPLATE)
        .render(
            file=file,
            gpus=gpus,
            name=name,
            title=title,
            extends=[chosen.fragment, node] if isinstance(chosen, KnownModel) else [node],
            needs=_needs(chosen, gpus),
            model=_model(chosen, sizes, tensor_parallel=max(gpus, 1)),
            dtype=_dtype(chosen, is_hybrid=is_hybrid),
            is_hybrid=is_hybrid,
            tensor_parallel=gpus if gpus != 8 else 1,
            has_own_code=isinstance(chosen, Checkpoint) and chosen.has_own_code,
            sizes=sizes,
            arm=arm,
            connector=connector,
            host_memory=size_words(host_memory_bytes),
            claims=claims,
            many_prompts=gpus > 0,
        )
    )


def model_words(chosen: ChosenModel) -> str:
    """Return a short name of the model."""
    if isinstance(chosen, Checkpoint):
        return chosen.directory.name or chosen.architecture
    return chosen.name if isinstance(chosen, HubName) else chosen.fragment.removeprefix("models/")


def machine_words(gpus: int) -> str:
    """Return the machine in a word or two."""
    return "CPU" if gpus == 0 else "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def size_words(size: int) -> str:
    """Return bytes as people write them, without rounding: 64MiB, or the number itself."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _environment() -> Environment:
    # No autoescape: the text is YAML, and values are quoted by the filter.
    environment = Environment(  # noqa: S701
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters["quoted"] = _quoted
    environment.filters["listed"] = lambda values: f"[{', '.join(map(str, values))}]"
    return environment


def _quoted(value: Any) -> str:
    """A JSON text is a YAML text; plain words stay as people write them."""
    if isinstance(value, str) and value not in _NO_TEXT and _WORD.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _weights(chosen: ChosenModel) -> str | None:
    if isinstance(chosen, Checkpoint):
        return "real" if chosen.has_weights else "dummy"
    return getattr(chosen.model, "weights", None) if isinstance(chosen, KnownModel) else "real"


def _dtype(chosen: ChosenModel, *, is_hybrid: bool) -> str | None:
    if is_hybrid:
        return "bfloat16"
    return chosen.dtype if isinstance(chosen, Checkpoint) else None


def _needs(chosen: ChosenModel, gpus: int) -> dict[str, Any]:
    model = chosen.model if isinstance(chosen, KnownModel) else None
    if gpus == 0 and isinstance(model, TinyModel) and model.family == "qwen3_next":
        # What vLLM's CPU kernels for gated delta nets were seen to work with.
        return {"cpu_flags": ["avx512_bf16"]}
    return {"gpus": gpus} if gpus > 1 and gpus != 8 else {}


def _model(chosen: ChosenModel, sizes: Sizes, *, tensor_parallel: int) -> dict[str, Any] | None:
    if isinstance(chosen, HubName):
        comment = [
            "Of a folder (--model PATH) kvbench init reads config.json; of a name it knows",
            "nothing. A revision makes the run repeatable.",
        ]
        fields = {"kind": "hub", "name": chosen.name, "revision": None}
        return {"comment": comment, "fields": fields, "geometry": _undeclared()}
    if not isinstance(chosen, Checkpoint):
        return None
    fields = {"kind": "path", "path": str(chosen.directory)}
    if not chosen.has_weights:
        fields["weights"] = "dummy"
    values = chosen.kv_values_per_token(tensor_parallel)
    geometry = _undeclared()
    if values is not None and sizes.block_tokens is not None:
        geometry = _proposed(chosen, values, sizes.block_tokens, tensor_parallel)
    return {"comment": wrap(chosen.words, 94), "fields": fields, "geometry": geometry}


def _undeclared() -> list[str]:
    return [
        *_COST,
        "To declare it, take the block sizes of its groups from the server's log (of any run:",
        'artifacts/life-1/server.log, "kv cache group sizes") and write model.geometry as',
        "configs/models/tiny_qwen3_next.yaml does.",
    ]


def _proposed(chosen: Checkpoint, values: int, block_tokens: int, ranks: int) -> list[str]:
    assert chosen.kv_heads is not None
    heads = max(chosen.kv_heads, ranks)
    formula = f"{chosen.layers} layers x K and V x {heads} heads x {chosen.head_size} numbers"
    return [
        *_COST,
        "What config.json makes it is below: take the `# ` away to declare it, and every run asks",
        "the engine whether its blocks are so.",
        "geometry:",
        f"  source: computed from config.json, {formula} a token",
        "  groups:",
        f"    - {{kind: full_attention, block_tokens: {block_tokens}, layers: {chosen.layers}}}",
        f"  hash_block_tokens: {block_tokens}",
        f"  hit_alignment_tokens: {block_tokens}",
        f"  kv_values_per_token: {values}",
    ]
