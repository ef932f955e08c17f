"""Resets that are refused, or answered in ways that say nothing (F17)."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault


@fault("reset_refused")
class ResetRefused(Fault):
    """The first `refusals` reset calls of each series (null: all) are not answered as they should.

    `body`: "false" refuses, "missing" answers 404, "empty" resets and says nothing.
    """

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How often, and in which form."""

        refusals: int | None = 1
        body: Literal["false", "empty", "missing"] = "false"

    def on_reset_answer(self, tries: int) -> tuple[int, str] | None:
        """Answer in place of a reset."""
        refusals = self.options.refusals
        if not self.fits(None) or (refusals is not None and tries > refusals):
            return None
        self.applied(body=self.options.body, tries=tries)
        answers = {
            "false": (200, '{"success":false}'),
            "empty": (200, ""),
            "missing": (404, '{"detail":"Not Found"}'),
        }
        return answers[self.options.body]
