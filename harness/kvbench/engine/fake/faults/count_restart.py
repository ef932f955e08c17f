"""Counters that begin anew in the middle of a phase, as after a restart behind the API (F23)."""

from __future__ import annotations

import msgspec

from kvbench.engine.fake.faults.base import Fault, fault


@fault("count_restart")
class CountRestart(Fault):
    """All counters and the process' start time begin anew after so many finished requests."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """When: counted over the requests that fit, from the moment the fault is on."""

        after_requests: int = 1

    _finished = 0

    def restarts_counters(self, request_id: str) -> bool:
        """Once, whatever `times` says."""
        if not self.fits(request_id):
            return False
        self._finished += 1
        if self._finished != self.options.after_requests:
            return False
        self.applied(request_id, after_requests=self._finished)
        return True
