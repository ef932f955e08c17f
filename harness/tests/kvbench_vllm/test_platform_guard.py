"""On any platform but vLLM's CPU one, the host-memory modules must refuse to load."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "kvbench_vllm"

LOAD_ON_A_GPU = """
import sys
from vllm import platforms
import vllm.v1.kv_offload.tiering.spec
import vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector
from vllm.platforms.interface import Platform, PlatformEnum

class Cuda(Platform):
    _enum = PlatformEnum.CUDA
    device_name = "cuda"

if sys.argv[2] == "cuda":
    platforms._current_platform = Cuda()
sys.path.insert(0, sys.argv[3])
__import__(sys.argv[1])
print("loaded")
"""


def load(vllm_python: Path, module: str, platform: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(vllm_python), "-c", LOAD_ON_A_GPU, module, platform, str(FOLDER)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("kvb_host_simple", "use SimpleCPUOffloadConnector"),
        ("kvb_faulty_simple", "use SimpleCPUOffloadConnector"),
        ("kvb_host_native", "use the native OffloadingConnector"),
    ],
)
def test_module_refuses_to_load_on_a_gpu_platform(
    vllm_python: Path, module: str, advice: str
) -> None:
    refused = load(vllm_python, module, "cuda")
    assert refused.returncode != 0
    assert "RuntimeError" in refused.stderr
    assert "host-memory copy backend is for the CPU build only" in refused.stderr
    assert advice in refused.stderr


@pytest.mark.vllm
def test_module_loads_on_the_cpu_platform(vllm_python: Path) -> None:
    """The counterpart: the refusal above comes from the platform and not from a broken import."""
    loaded = load(vllm_python, "kvb_faulty_simple", "cpu")
    assert loaded.stdout.strip().endswith("loaded"), loaded.stderr[-2000:]
