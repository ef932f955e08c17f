"""Does a wrong answer speak of another prompt (fault F02)?

It only names what was already found wrong: content of another request in a block shows as that
request's words. A word of a prompt is a token that its reference answer took or weighed (its top-k)
and that no other prompt's did. By chance a token is one of them as often as they are in the
vocabulary, whose size is taken as the largest token id that was seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kvbench.checks.answers import Answer
from kvbench.checks.chance import binomial_at_least

MIN_TOKENS = 4
"""Shorter ends of an answer say nothing."""
CHANCE = 1e-4
"""Above this a resemblance is taken for chance."""


def _words(answer: Answer) -> frozenset[int]:
    weighed = {int(token) for each in answer.tokens for token in each.top}
    return frozenset(weighed | set(answer.ids))


def reads_like(answer: Answer, start: int, references: Mapping[str, Answer]) -> str | None:
    """The prompt of which this answer speaks from position `start` on; None where none stands out.

    `references` are right answers by prompt id, the answer's own among them.
    """
    rest = answer.ids[start:]
    own = answer.request.prompt_id
    if len(rest) < MIN_TOKENS:
        return None
    for prompt, reference in references.items():
        if prompt != own and reference.ids[start:] == rest:
            return prompt
    words = {prompt: _words(reference) for prompt, reference in references.items()}
    users = Counter(token for mine in words.values() for token in mine)
    vocabulary_tokens = max(users, default=0) + 1
    chances = {}
    for prompt, mine in words.items():
        if prompt == own:
            continue
        its_own = {token for token in mine if users[token] == 1}
        hits = sum(token in its_own for token in rest)
        share = len(its_own) / vocabulary_tokens
        chances[prompt] = binomial_at_least(hits, len(rest), share)
    ranked = sorted(chances, key=lambda prompt: chances[prompt])
    if not ranked or chances[ranked[0]] >= CHANCE:
        return None
    is_clear = len(ranked) == 1 or chances[ranked[1]] >= CHANCE
    return ranked[0] if is_clear else None
