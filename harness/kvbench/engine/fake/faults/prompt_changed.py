"""Prompts that are changed on their way to the engine (F32)."""

from __future__ import annotations

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault


@fault("prompt_changed")
class PromptChanged(Fault):
    """The engine gets another prompt than was sent; what the answer repeats is what was sent.

    Its first `drop_tokens` are missing, or with `part_tokens` its first two parts of so many tokens
    (two examples of a few-shot prompt) are exchanged.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """What is changed."""

        drop_tokens: int = 0
        part_tokens: int = 0

    def on_prompt(self, request_id: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Change the prompt, unless nothing would be left of it."""
        drop, part = self.options.drop_tokens, self.options.part_tokens
        if not self.fits(request_id) or len(prompt) <= max(drop, 2 * part):
            return prompt
        changed = prompt[drop:]
        if part:
            changed = (*changed[part : 2 * part], *changed[:part], *changed[2 * part :])
        if changed == prompt:
            return prompt
        self.applied(request_id, drop_tokens=drop, part_tokens=part)
        return changed
