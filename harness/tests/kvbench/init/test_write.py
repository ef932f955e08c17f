"""Whatever was answered: the file loads, plans without a warning, and says what it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from first_scenarios import declare_geometry

from kvbench import tiny
from kvbench.errors import UsageError
from kvbench.expectations import bytes_of_block
from kvbench.init.choices import Answers, Library
from kvbench.init.write import write_scenario
from kvbench.plan import make_plan
from kvbench.scenario.connectors import NativeConnector, SimpleConnector
from kvbench.scenario.load import Loaded, load_scenario
from kvbench.scenario.models import PathModel
from kvbench.scenario.replay import ReplayWorkload

KNOWN = ("tiny", "tiny_qwen3_next", "smollm2_135m", "kimi_k3", "some/model")
CONNECTORS = ("simple_eager", "simple_lazy", "native")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoint folders by family."""
    cache = tmp_path_factory.mktemp("models")
    return {family: tiny.build(family, cache_dir=cache).path for family in tiny.known_families()}


def written(file: Path, answers: Answers) -> Loaded:
    assert write_scenario(file, answers).warnings == ()
    return load_scenario(file)


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("model", KNOWN)
def test_every_model_of_kvbench_loads_and_plans_without_a_warning(
    tmp_path: Path, model: str, connector: str, gpus: int
) -> None:
    file = tmp_path / "first.yaml"
    scenario = written(file, Answers(model, connector, None, gpus)).scenario
    assert scenario.name == "first"
    assert scenario.engine.tensor_parallel == max(gpus, 1)
    assert scenario.needs.gpus == gpus
    tested = scenario.arms[connector].connector
    assert isinstance(tested, SimpleConnector | NativeConnector)
    assert (tested.copies == "host_memory") == (gpus == 0)


@pytest.mark.parametrize("gpus", [0, 1, 4])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_next"])
def test_folder_of_a_checkpoint_loads_and_plans(
    tmp_path: Path, folders: dict[str, Path], family: str, gpus: int
) -> None:
    file = tmp_path / "first.yaml"
    scenario = written(file, Answers(str(folders[family]), None, None, gpus)).scenario
    assert isinstance(scenario.model, PathModel)
    assert scenario.model.geometry is None
    assert "expected hits are ranges" in file.read_text()


def test_proposed_geometry_can_be_declared_as_it_stands(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    file = tmp_path / "first.yaml"
    write_scenario(file, Answers(str(folders["qwen3"])))
    declare_geometry(file)
    loaded = load_scenario(file)
    assert make_plan(loaded).warnings == ()
    geometry = loaded.scenario.model.geometry
    assert geometry is not None
    assert bytes_of_block(geometry, loaded.scenario.engine) == 262_144  # as measured on vLLM 0.32


def test_proposed_geometry_on_gpus_plans_without_a_warning(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    file = tmp_path / "first.yaml"
    write_scenario(file, Answers(str(folders["qwen3"]), "simple_eager", None, 2))
    declare_geometry(file)
    assert make_plan(load_scenario(file)).warnings == ()


def test_pressure_is_left_out_where_nobody_knows_what_fills_the_pool(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    scenario = written(tmp_path / "first.yaml", Answers(str(folders["qwen3_next"]))).scenario
    workload = scenario.stages["replay"].workload
    assert isinstance(workload, ReplayWorkload)
    assert [kind.value for kind in workload.phases] == ["fresh", "hot", "reload", "cold_again"]
    assert scenario.engine.gpu_blocks is None
    # vLLM's CPU build: other types are refused, and other units answer from a wrong state.
    assert scenario.engine.dtype == "bfloat16"
    assert scenario.engine.prefix_match_unit_tokens == 128


def test_folder_without_weights_claims_nothing_about_answers(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    empty = tmp_path / "no weights: #1"
    empty.mkdir()
    (empty / "config.json").write_text((folders["qwen3"] / "config.json").read_text())
    scenario = written(tmp_path / "first.yaml", Answers(str(empty))).scenario
    assert isinstance(scenario.model, PathModel)
    assert (scenario.model.path, scenario.model.weights) == (str(empty), "dummy")
    assert [claim.value for claim in scenario.stages["replay"].claims] == ["alive", "hits"]


def test_enough_prompts_to_decide_where_there_is_noise(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    for model in (*KNOWN, str(folders["qwen3"]), str(folders["qwen3_next"])):
        file = tmp_path / f"{len(model)}.yaml"
        plan = make_plan(written(file, Answers(model, gpus=8)))
        scored = [name for name in plan.prompts if re.search(r"/p\d+$", name)]
        assert 2.0 ** -len(scored) < 0.01, model


def test_token_ids_lie_in_the_vocabulary(tmp_path: Path, folders: dict[str, Path]) -> None:
    small = tmp_path / "small"
    small.mkdir()
    config = json.loads((folders["qwen3"] / "config.json").read_text())
    for vocabulary in (256, 1024, 50_000):
        (small / "config.json").write_text(json.dumps(config | {"vocab_size": vocabulary}))
        plan = make_plan(written(tmp_path / f"v{vocabulary}.yaml", Answers(str(small))))
        assert max(max(tokens) for tokens in plan.prompts.values()) < vocabulary


def test_short_context_is_refused(tmp_path: Path, folders: dict[str, Path]) -> None:
    config = json.loads((folders["qwen3"] / "config.json").read_text())
    folder = tmp_path / "short"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    with pytest.raises(UsageError, match="takes 512 tokens at most"):
        write_scenario(tmp_path / "first.yaml", Answers(str(folder)))
    assert not (tmp_path / "first.yaml").exists()


def test_given_memory_is_written_and_too_little_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "first.yaml"
    made = write_scenario(file, Answers(host_memory="8MiB"))
    assert "host_pool_bytes_total: 8MiB" in file.read_text()
    assert "some replays will miss" in made.warnings[0]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (Answers("tiny_qwen"), "did you mean 'tiny_qwen3'"),
        (Answers("./no/such/folder"), "has no config.json"),
        (Answers(connector="simple"), "known: native, simple_eager, simple_lazy"),
        (Answers(connector="none"), "connector 'none' is not known"),
        (Answers(host_memory="8 gigs"), "a size such as 64MiB"),
        (Answers(host_memory="0"), "give the connector some"),
    ],
)
def test_wrong_answer_is_refused_before_anything_is_written(
    tmp_path: Path, answers: Answers, said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        write_scenario(tmp_path / "first.yaml", answers)
    assert list(tmp_path.iterdir()) == []


def test_existing_file_stays_unless_forced(tmp_path: Path) -> None:
    file = tmp_path / "first.yaml"
    file.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        write_scenario(file, Answers())
    assert file.read_text() == "mine"
    write_scenario(file, Answers(), is_forced=True)
    assert load_scenario(file).scenario.name == "first"


@pytest.mark.parametrize(
    ("stem", "name"), [("My-First Run", "my_first_run"), ("__", "first"), ("4", "4"), ("no", "no")]
)
def test_file_name_becomes_the_name(tmp_path: Path, stem: str, name: str) -> None:
    assert written(tmp_path / f"{stem}.yaml", Answers()).scenario.name == name


def test_every_shipped_connector_can_be_asked_for(tmp_path: Path) -> None:
    assert tuple(Library(tmp_path / "x.yaml").connectors()) == tuple(sorted(CONNECTORS))
