"""Hides secrets before anything is recorded: environments, commands, log text.

The trap: a server prints its arguments and its exceptions into its own log, so masking only what
kvbench writes itself would still put a token into a record that people share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

MASK: Final = "***"
_SHORTEST_SECRET_CHARACTERS: Final = 6

# Whole words of a name, and some only at its end: --max-num-batched-tokens, --return-token-ids,
# TOKENIZERS_PARALLELISM and SSL_KEY_FILE hold no secret.
_SECRET_NAME: Final = re.compile(
    r"(?:^|[_\-.])(?:"
    r"(?:TOKEN|API_?KEYS?|APIKEY|KEY|PWD|AUTH)$"
    r"|(?:SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTHORIZATION|COOKIE|BEARER)(?:$|[_\-.])"
    r")",
    re.IGNORECASE,
)
_PUBLIC_NAMES: Final = frozenset({"PWD", "OLDPWD"})
_COMMANDS: Final = frozenset({"argv", "args"})
_PATTERNS: Final = (
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{16,}"),
    re.compile(r"\bAKIA[A-Z0-9]{12,}"),
    re.compile(r"(?<=Bearer )[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
)


def is_secret(name: str) -> bool:
    """Tell whether a variable or flag of this name holds a secret."""
    return name.upper() not in _PUBLIC_NAMES and _SECRET_NAME.search(name) is not None


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """Replace values of secret names by `***`, and what looks like a secret inside the others."""
    return {
        name: MASK if is_secret(name) and value else mask_text(value) for name, value in env.items()
    }


def mask_argv(argv: Sequence[str]) -> list[str]:
    """Replace the value after `--api-key` and its like, and whatever looks like a secret.

    `engine.env.HF_TOKEN=...`, as it stands after `--set`, is a name with a value, too.
    """
    masked = []
    hide_next = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        is_flag = word.startswith("-")
        if equals and is_secret(flag.lstrip("-")):
            masked.append(f"{flag}={MASK}")
        elif hide_next and not is_flag:
            masked.append(MASK)
        else:
            masked.append(mask_text(word))
        hide_next = (is_flag and not equals and is_secret(flag.lstrip("-"))) or (
            hide_next and not is_flag
        )
    return masked


def secrets_of(env: Mapping[str, str], argv: Sequence[str] = ()) -> tuple[str, ...]:
    """Collect the secret values that a server was given, to look for in what it prints."""
    found = {value for name, value in env.items() if is_secret(name)}
    masked = mask_argv(argv)
    found |= {word for word, shown in zip(argv, masked, strict=True) if shown == MASK}
    found |= {
        word.partition("=")[2]
        for word, shown in zip(argv, masked, strict=True)
        if shown.endswith(f"={MASK}")
    }
    return tuple(sorted(value for value in found if len(value) >= _SHORTEST_SECRET_CHARACTERS))


def secrets_in(tree: Any) -> tuple[str, ...]:
    """Collect the secret values of every `env`, `argv` and `args` in nested mappings and lists."""
    found: set[str] = set()
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key == "env" and isinstance(value, Mapping):
                found |= set(secrets_of(value))
            elif key in _COMMANDS and isinstance(value, list | tuple):
                found |= set(secrets_of({}, value))
            else:
                found |= set(secrets_in(value))
    elif isinstance(tree, list | tuple):
        for item in tree:
            found |= set(secrets_in(item))
    return tuple(sorted(found))


def mask_tree(tree: Any, secrets: Sequence[str] = ()) -> Any:
    """Mask a scenario or a plan: environments, commands, and known secrets in every text."""
    if isinstance(tree, str):
        return mask_text(tree, secrets)
    if isinstance(tree, list | tuple):
        return [mask_tree(item, secrets) for item in tree]
    if not isinstance(tree, Mapping):
        return tree
    masked: dict[str, Any] = {}
    for key, value in tree.items():
        if key == "env" and isinstance(value, Mapping):
            env = mask_env(value)
            masked[key] = {name: mask_text(text, secrets) for name, text in env.items()}
        elif key in _COMMANDS and isinstance(value, list | tuple):
            masked[key] = [mask_text(word, secrets) for word in mask_argv(value)]
        else:
            masked[key] = mask_tree(value, secrets)
    return masked


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace known secrets, and what has the shape of one, in any text."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(MASK, text)
    return text


def mask_file(path: Path, secrets: Iterable[str] = ()) -> None:
    """Mask a log that is no longer written to, in place; a missing one is left alone."""
    if not path.is_file():
        return
    text = path.read_text(errors="surrogateescape")
    masked = mask_text(text, secrets)
    if masked != text:
        path.write_text(masked, errors="surrogateescape")
