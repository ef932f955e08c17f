"""A byte-level tokenizer of 1,024 tokens, as the two files that transformers reads.

One token for each byte, so that the length of a prompt in tokens is its length in UTF-8 bytes and a
workload can ask for an exact one. The trap: the model also generates the filler tokens (`t260`
...), which decode to several characters, so an answer's text does not encode to its tokens again;
whoever replays an answer must send token ids.
"""

from __future__ import annotations

import json
from typing import Final

VOCABULARY_SIZE: Final = 1024
BOS_ID: Final = 0
EOS_ID: Final = 1
_SPECIAL: Final = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def files() -> dict[str, bytes]:
    """Return file name -> content.

    They are written out here and not by the tokenizers package, so that they stay the same bytes
    with every version.
    """
    return {
        "tokenizer.json": _encode(_tokenizer()),
        "tokenizer_config.json": _encode(_tokenizer_config()),
    }


def _encode(content: object) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _byte_alphabet() -> list[str]:
    """Return the character of each byte: itself if printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet, substitute = [], 0x100
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(substitute))
            substitute += 1
    return alphabet


def _vocabulary() -> dict[str, int]:
    tokens = [*_SPECIAL, *sorted(_byte_alphabet())]
    tokens += [f"t{index}" for index in range(len(tokens), VOCABULARY_SIZE)]
    return {token: index for index, token in enumerate(tokens)}


def _tokenizer() -> dict[str, object]:
    special = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, token in enumerate(_SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"add_prefix_space": False, **byte_level},
        "post_processor": None,
        "decoder": {"add_prefix_space": True, **byte_level},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": _vocabulary(),
            "merges": [],
        },
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "bos_token": _SPECIAL[BOS_ID],
        "chat_template": _CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": _SPECIAL[EOS_ID],
        "model_max_length": 32768,
        "pad_token": _SPECIAL[EOS_ID],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
