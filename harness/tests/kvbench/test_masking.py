"""Secrets never reach a record; what is no secret stays readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench import masking


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "hf_token",
        "OPENAI_API_KEY",
        "VLLM_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "PROXY_AUTH",
        "api-key",
        "hf-token",
    ],
)
def test_secret_names_are_known(name: str) -> None:
    assert masking.mask_env({name: "value"}) == {name: "***"}


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "PWD",
        "VLLM_KEYBOARD",
        "PYTHONPATH",
        "max-num-batched-tokens",
        "return-token-ids",
        "enable-prompt-tokens-details",
    ],
)
def test_ordinary_names_stay_readable(name: str) -> None:
    assert masking.mask_env({name: "value"}) == {name: "value"}


def test_empty_secret_is_shown_as_empty() -> None:
    assert masking.mask_env({"HF_TOKEN": ""}) == {"HF_TOKEN": ""}


def test_secret_inside_an_ordinary_value_is_masked() -> None:
    assert masking.mask_env({"URL": "https://me:pass@host/x"}) == {"URL": "https://***@host/x"}


def test_command_is_masked_and_keeps_its_shape() -> None:
    argv = [
        "python",
        "--api-key",
        "abcdef1",
        "--hf-token=abcdef2",
        "--max-num-batched-tokens",
        "64",
    ]
    masked = masking.mask_argv([*argv, "hf_abcdefgh1234"])
    assert masked == [
        "python",
        "--api-key",
        "***",
        "--hf-token=***",
        "--max-num-batched-tokens",
        "64",
        "***",
    ]


def test_flag_with_several_keys_is_masked_up_to_the_next_flag() -> None:
    masked = masking.mask_argv(["--api-key", "first1", "second", "--port", "1"])
    assert masked == ["--api-key", "***", "***", "--port", "1"]


def test_known_and_shaped_secrets_leave_a_text() -> None:
    text = "args {'api_key': ['abcdef1']} token hf_ABCDEFGHIJ Authorization: Bearer abc.def-123"
    secrets = masking.secrets_of({"X_SECRET": "zzzzzz"}, ["--api-key", "abcdef1"])
    masked = masking.mask_text(text + " zzzzzz", secrets)
    for secret in ("abcdef1", "hf_ABCDEFGHIJ", "abc.def-123", "zzzzzz"):
        assert secret not in masked


def test_short_values_are_not_looked_for_in_texts() -> None:
    """A key `1` would turn every 1 of a log into stars."""
    assert masking.secrets_of({"A_KEY": "1"}) == ()


def test_log_is_masked_in_place_whatever_its_bytes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"key abcdef1 \xff\xfe end\n")
    masking.mask_file(log, ["abcdef1"])
    assert log.read_bytes() == b"key *** \xff\xfe end\n"
    masking.mask_file(tmp_path / "absent", ["abcdef1"])
