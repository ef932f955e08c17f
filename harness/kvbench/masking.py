"""Hides secrets before anything is recorded: environments, commands, log text.

The trap: a server prints its arguments and its exceptions into its own log, so masking only what
kvbench writes itself would still put a token into a record that people share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

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
    """Replace the value after `--api-key` and its like, and whatever looks like a secret."""
    masked = []
    hide_next = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        is_flag = word.startswith("-")
        if is_flag and equals and is_secret(flag.lstrip("-")):
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
