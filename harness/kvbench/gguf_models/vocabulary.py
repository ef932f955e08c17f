"""The tokenizer of a GGUF file as the files that transformers and vLLM read.

The trap: GGUF holds tokens and merges, but of the rule that cuts text before merging only a name.
Only rules that are known here are converted, or numbers would be cut in another way than the model
was trained on. SmolLM2's rule (seen in its published tokenizer.json): every digit by itself, then
GPT-2's byte-level pattern. Its vocabulary lacks about twenty rare bytes; text with them is dropped
there as it is here, because the published tokenizer has no unknown token either.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from kvbench.errors import UsageError
from kvbench.gguf_models.metadata import Metadata

MODELS: Final = ("gpt2",)
PRE_TOKENIZERS: Final = ("smollm",)
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_TOKENS: Final = "tokenizer.ggml.tokens"
_CHAT_TEMPLATE: Final = "tokenizer.chat_template"


def files(metadata: Metadata, *, context_tokens: int) -> dict[str, bytes]:
    """Return file name -> content of `tokenizer.json` and `tokenizer_config.json`.

    Raises `UsageError` for a tokenizer of another kind than `MODELS` and `PRE_TOKENIZERS`.
    """
    config = json.dumps(_config(metadata, context_tokens), indent=1, ensure_ascii=False)
    return {
        "tokenizer.json": f"{tokenizer(metadata).to_str(pretty=True)}\n".encode(),
        "tokenizer_config.json": f"{config}\n".encode(),
    }


def tokenizer(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer; token ids are those of the GGUF file."""
    metadata.is_one_of("tokenizer.ggml.model", MODELS)
    metadata.is_one_of("tokenizer.ggml.pre", PRE_TOKENIZERS)
    tokens: list[str] = metadata.need(_TOKENS)
    merges = [_pair(metadata, merge) for merge in metadata.need("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise UsageError(f"{metadata.path.name}: {_TOKENS} names a token twice")
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = _digits_then_bytes()
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(_added(metadata, tokens, _CONTROL))
    made.add_tokens(_added(metadata, tokens, _USER_DEFINED))
    return made


def _digits_then_bytes() -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _pair(metadata: Metadata, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise UsageError(f"{metadata.path.name}: {merge!r} is not a merge of two tokens")
    return left, right


def _added(metadata: Metadata, tokens: list[str], wanted: int) -> list[AddedToken]:
    kinds: list[int] = metadata.need("tokenizer.ggml.token_type")
    unknown = {*kinds} - {_NORMAL, _CONTROL, _USER_DEFINED}
    if unknown or len(kinds) != len(tokens):
        raise UsageError(
            f"{metadata.path.name}: tokenizer.ggml.token_type has {len(kinds)} entries for "
            f"{len(tokens)} tokens, kinds {sorted({*kinds})}; a byte-level vocabulary has kinds "
            f"{_NORMAL}, {_CONTROL} and {_USER_DEFINED}"
        )
    return [
        AddedToken(token, special=wanted == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == wanted
    ]


def _config(metadata: Metadata, context_tokens: int) -> dict[str, Any]:
    tokens: list[str] = metadata.need(_TOKENS)
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    found: dict[str, Any] = {}
    for ours, theirs in named.items():
        index = metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if index is not None:
            found[f"{ours}_token"] = tokens[index]
    template = metadata.get(_CHAT_TEMPLATE)
    if template is not None:
        found["chat_template"] = template
    # Not the class of the published tokenizer (GPT2Tokenizer): that one builds GPT-2's own
    # pre-tokenizer, while this one takes tokenizer.json as it is.
    found |= {
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token")),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return found
