"""The model families of tiny checkpoints: their `config.json` and the tensors that vLLM loads.

The trap: weights that are all alike (vLLM's dummy weights, a plain 0.02 normal) give every prompt
nearly the same answer, and then no damage to the KV cache can be seen in any answer. The scales
here keep activations near 1 through the depth and spread the logits: top-1 near -2 nats, top-20
near -5, other prompts other answers.

Tensor names and shapes are those of the published checkpoints. A change here needs a new `RECIPE`
in `kvbench.tiny.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kvbench.errors import UsageError
from kvbench.tiny import tokenizer

HIDDEN: Final = 128
LAYERS: Final = 4
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD_DIM: Final = 32
MLP: Final = 256

GDN_KEY_HEADS: Final = 2
GDN_VALUE_HEADS: Final = 4
# vLLM's CPU kernel for gated delta nets refuses 32 ("Unexpected head dim size"); 128 is what the
# real models have.
GDN_HEAD_DIM: Final = 128
GDN_CONV_KERNEL: Final = 4
# Without one mixture-of-experts layer vLLM's Qwen3-Next refuses to load ("No Qwen3Next layer
# found").
EXPERTS: Final = 4
EXPERT_MLP: Final = 64


class Init(Enum):
    """How the values of a tensor are drawn."""

    EMBEDDING = "normal, std 1"
    LINEAR = "normal, std 1/sqrt(fan in)"
    HEAD = "normal, std 2/sqrt(fan in)"
    ONES = "1"
    ZEROS = "0"
    DECAY = "logarithm of decay rates from 0.001 to 1 a token, one for each head"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a checkpoint; `shape` is in PyTorch's order, output dimension first."""

    name: str
    shape: tuple[int, ...]
    init: Init


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: `config` lacks only `dtype`, which the build adds."""

    name: str
    config: Mapping[str, object]
    tensors: tuple[TensorSpec, ...]


def known_families() -> tuple[str, ...]:
    """Return the names that `find` accepts, sorted."""
    return tuple(sorted(_FAMILIES))


def find(name: str) -> Family:
    """Return a family by its name (its `model_type`); raise `UsageError` when there is none."""
    if name not in _FAMILIES:
        known = ", ".join(known_families())
        raise UsageError(f"unknown tiny model family {name!r}; known families: {known}")
    return _FAMILIES[name]()


def _shared_config() -> dict[str, object]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.BOS_ID,
        "eos_token_id": tokenizer.EOS_ID,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": MLP,
        "max_position_embeddings": 32768,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "pad_token_id": tokenizer.EOS_ID,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": tokenizer.VOCABULARY_SIZE,
    }


def _qwen3() -> Family:
    """Dense, full attention: bit-exact in float32, so the family for finding corruption."""
    config = _shared_config() | {
        "architectures": ["Qwen3ForCausalLM"],
        "layer_types": ["full_attention"] * LAYERS,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": None,
        "use_sliding_window": False,
    }
    tensors = [*_outer(norm=Init.ONES)]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors += _layer_norms(prefix, Init.ONES)
        tensors += _attention(f"{prefix}.self_attn", queries=HEADS, norm=Init.ONES)
        tensors += _mlp(f"{prefix}.mlp", MLP)
    return Family("qwen3", config, tuple(tensors))


def _qwen3_next() -> Family:
    """Hybrid, three gated delta nets to one full attention: the family for hybrid hit geometry.

    vLLM 0.32 serves it on a CPU in bfloat16 only ("CPU GDN attention requires BF16"), and correctly
    only with `--prefix-match-unit 128`: without it, a hit on a prompt whose last, partial block is
    longer than 128 tokens resumes from a state that the CPU kernel never wrote. No connector is
    needed to see that: an engine hit then differs from a fresh run by 0.2 nats, with the unit by 0.
    """
    layer_types = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    config = _shared_config() | {
        "architectures": ["Qwen3NextForCausalLM"],
        "decoder_sparse_step": 1,
        "layer_types": layer_types,
        "linear_conv_kernel_dim": GDN_CONV_KERNEL,
        "linear_key_head_dim": GDN_HEAD_DIM,
        "linear_num_key_heads": GDN_KEY_HEADS,
        "linear_num_value_heads": GDN_VALUE_HEADS,
        "linear_value_head_dim": GDN_HEAD_DIM,
        "mlp_only_layers": [],
        "model_type": "qwen3_next",
        "moe_intermediate_size": EXPERT_MLP,
        "norm_topk_prob": True,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "partial_rotary_factor": 0.5,
        "rope_parameters": {
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
            "rope_type": "default",
        },
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": EXPERT_MLP,
    }
    # This family's norms multiply by 1 + weight, so 0 is their neutral value; the gated norm inside
    # GDN does not.
    tensors = [*_outer(norm=Init.ZEROS)]
    for layer, kind in enumerate(layer_types):
        prefix = f"model.layers.{layer}"
        tensors += _layer_norms(prefix, Init.ZEROS)
        if kind == "full_attention":
            # The output gate comes out of q_proj beside each query head.
            attention = _attention(f"{prefix}.self_attn", queries=2 * HEADS, norm=Init.ZEROS)
            tensors += attention
        else:
            tensors += _gated_delta_net(f"{prefix}.linear_attn")
        tensors += _experts(f"{prefix}.mlp")
    return Family("qwen3_next", config, tuple(tensors))


_FAMILIES: Final[Mapping[str, Callable[[], Family]]] = {
    "qwen3": _qwen3,
    "qwen3_next": _qwen3_next,
}


def _linear(name: str, out: int, fan_in: int) -> TensorSpec:
    return TensorSpec(f"{name}.weight", (out, fan_in), Init.LINEAR)


def _outer(norm: Init) -> Iterator[TensorSpec]:
    vocabulary = tokenizer.VOCABULARY_SIZE
    yield TensorSpec("model.embed_tokens.weight", (vocabulary, HIDDEN), Init.EMBEDDING)
    yield TensorSpec("model.norm.weight", (HIDDEN,), norm)
    yield TensorSpec("lm_head.weight", (vocabulary, HIDDEN), Init.HEAD)


def _layer_norms(prefix: str, norm: Init) -> Iterator[TensorSpec]:
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield TensorSpec(f"{prefix}.{name}.weight", (HIDDEN,), norm)


def _attention(prefix: str, queries: int, norm: Init) -> Iterator[TensorSpec]:
    yield _linear(f"{prefix}.q_proj", queries * HEAD_DIM, HIDDEN)
    yield _linear(f"{prefix}.k_proj", KV_HEADS * HEAD_DIM, HIDDEN)
    yield _linear(f"{prefix}.v_proj", KV_HEADS * HEAD_DIM, HIDDEN)
    yield _linear(f"{prefix}.o_proj", HIDDEN, HEADS * HEAD_DIM)
    yield TensorSpec(f"{prefix}.q_norm.weight", (HEAD_DIM,), norm)
    yield TensorSpec(f"{prefix}.k_norm.weight", (HEAD_DIM,), norm)


def _mlp(prefix: str, width: int) -> Iterator[TensorSpec]:
    yield _linear(f"{prefix}.gate_proj", width, HIDDEN)
    yield _linear(f"{prefix}.up_proj", width, HIDDEN)
    yield _linear(f"{prefix}.down_proj", HIDDEN, width)


def _experts(prefix: str) -> Iterator[TensorSpec]:
    yield _linear(f"{prefix}.gate", EXPERTS, HIDDEN)
    yield _linear(f"{prefix}.shared_expert_gate", 1, HIDDEN)
    yield from _mlp(f"{prefix}.shared_expert", EXPERT_MLP)
    for expert in range(EXPERTS):
        yield from _mlp(f"{prefix}.experts.{expert}", EXPERT_MLP)


def _gated_delta_net(prefix: str) -> Iterator[TensorSpec]:
    keys = GDN_KEY_HEADS * GDN_HEAD_DIM
    values = GDN_VALUE_HEADS * GDN_HEAD_DIM
    channels = 2 * keys + values
    yield _linear(f"{prefix}.in_proj_qkvz", 2 * keys + 2 * values, HIDDEN)
    yield _linear(f"{prefix}.in_proj_ba", 2 * GDN_VALUE_HEADS, HIDDEN)
    yield TensorSpec(f"{prefix}.conv1d.weight", (channels, 1, GDN_CONV_KERNEL), Init.LINEAR)
    yield TensorSpec(f"{prefix}.A_log", (GDN_VALUE_HEADS,), Init.DECAY)
    yield TensorSpec(f"{prefix}.dt_bias", (GDN_VALUE_HEADS,), Init.ONES)
    yield TensorSpec(f"{prefix}.norm.weight", (GDN_HEAD_DIM,), Init.ONES)
    yield _linear(f"{prefix}.out_proj", HIDDEN, values)
