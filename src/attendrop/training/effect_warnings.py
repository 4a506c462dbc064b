"""Warnings about methods that have no effect: active in no epoch, or without effect in all steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

from attendrop.methods.core.base import Method
from attendrop.methods.core.context import RunningStatistics
from attendrop.wording import counted

logger = logging.getLogger(__name__)


class EffectTracker:
    """Record of the methods that had an effect so far, by their names in logs; warns about those without."""

    def __init__(self, effective: Iterable[str] = ()) -> None:
        self.effective = set(effective)
        self._warned: set[Method] = set()

    def update(self, methods: Iterable[Method], statistics: RunningStatistics) -> None:
        """Add the methods that had an effect while these statistics were collected."""
        for method in methods:
            acted = statistics.active.get(method.source, 0) > 0
            if acted and (not method.info.reports_all_effects or statistics.took_effect(method.source)):
                self.effective.add(method.source)

    def warn_before(self, methods: Iterable[Method], num_epochs: int) -> None:
        """Warn before training of methods that act in no epoch, or if the number is not known (``sys.maxsize``)."""
        for method in methods:
            if num_epochs == sys.maxsize and method.needs_epoch():
                reason = (
                    "acts in some epochs, and the training data has no length: if it never ends, there is one epoch"
                )
            elif num_epochs < sys.maxsize and method.regularized_epochs(num_epochs) == []:
                reason = f"would regularise none of {counted(num_epochs, 'epoch')}"
            else:
                continue
            logger.warning("Method %s %s. %s", method.name, reason, method.info.inactive_epochs_hint)
            self._warned.add(method)

    def warn_after(self, methods: Iterable[Method]) -> None:
        """Warn after training of methods that had no effect; a hint is given only once."""
        for method in methods:
            if method.source not in self.effective:
                known = method in self._warned or not method.needs_epoch()
                hint = "" if known else f" {method.info.inactive_epochs_hint}".rstrip()
                how = "without it" if self.effective else "plainly"
                logger.warning("Method %s never took effect: the model was fine-tuned %s.%s", method.name, how, hint)
