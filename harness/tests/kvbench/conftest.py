from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `records`, a helper of many tests

import records

from kvbench.judge import judge_ledger
from kvbench.ledger import Ledger, load
from kvbench.verdict import Verdict


@pytest.fixture(scope="session")
def healthy_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return records.write(tmp_path_factory.mktemp("records") / "healthy")


@pytest.fixture(scope="session")
def healthy(healthy_directory: Path) -> Ledger:
    return load(healthy_directory)


@pytest.fixture(scope="session")
def healthy_verdict(healthy: Ledger) -> Verdict:
    return judge_ledger(healthy)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Where a test writes its own record."""
    return tmp_path / "run"


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of tests need not survive a crash of the machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
