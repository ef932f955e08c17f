"""Names and shapes of the tensors: with a wrong one vLLM refuses the model."""

from __future__ import annotations

import pytest

from kvbench.tiny import families, known_families


@pytest.mark.parametrize("name", known_families())
def test_each_tensor_is_declared_once(name: str) -> None:
    names = [spec.name for spec in families.find(name).tensors]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", known_families())
def test_the_family_is_called_by_its_model_type(name: str) -> None:
    family = families.find(name)
    assert family.name == name
    assert family.config["model_type"] == name
    assert len(family.config["layer_types"]) == family.config["num_hidden_layers"]  # type: ignore[arg-type]


def test_qwen3_has_the_shapes_of_its_config() -> None:
    family = families.find("qwen3")
    shapes = {spec.name: spec.shape for spec in family.tensors}
    assert len(shapes) == 3 + 4 * 11
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (128, 128)
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (64, 128)
    assert shapes["model.layers.0.self_attn.k_norm.weight"] == (32,)
    assert shapes["model.layers.3.mlp.down_proj.weight"] == (128, 256)
    assert shapes["lm_head.weight"] == (1024, 128)


def test_qwen3_next_has_the_shapes_of_its_config() -> None:
    shapes = {spec.name: spec.shape for spec in families.find("qwen3_next").tensors}
    gdn = "model.layers.0.linear_attn"
    # keys and queries 2 x 128 each, values and output gate 4 x 128 each
    assert shapes[f"{gdn}.in_proj_qkvz.weight"] == (1536, 128)
    assert shapes[f"{gdn}.in_proj_ba.weight"] == (8, 128)
    assert shapes[f"{gdn}.conv1d.weight"] == (1024, 1, 4)
    assert shapes[f"{gdn}.A_log"] == (4,)
    assert shapes[f"{gdn}.out_proj.weight"] == (128, 512)
    assert f"{gdn}.norm.weight" in shapes
    # queries and their output gates
    assert shapes["model.layers.3.self_attn.q_proj.weight"] == (256, 128)
    assert "model.layers.3.linear_attn.A_log" not in shapes
    assert shapes["model.layers.3.mlp.experts.3.gate_proj.weight"] == (64, 128)
    assert shapes["model.layers.3.mlp.gate.weight"] == (4, 128)
    assert shapes["model.layers.3.mlp.shared_expert_gate.weight"] == (1, 128)


def test_each_gated_delta_net_has_a_spread_of_decays() -> None:
    decays = [s for s in families.find("qwen3_next").tensors if s.init is families.Init.DECAY]
    assert [spec.name.split(".")[2] for spec in decays] == ["0", "1", "2"]
