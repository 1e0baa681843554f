"""How long to wait before a destination that failed is tried again."""

from __future__ import annotations

import math
import random

from penstock.core.flow import RetryRules
from penstock.errors import PenstockError


def pause_before(rules: RetryRules, attempts: int, error: PenstockError) -> float:
    """Seconds before the next try: growing and jittered as the rules say, or longer where the destination says when to come."""
    # The logarithm keeps a destination that is down for days from a number that no float can hold.
    steps = math.log(max(1.0, rules.max / max(rules.base, 1e-3))) / math.log(max(rules.factor, 1.0001))
    pause = min(rules.max, rules.base * math.pow(rules.factor, min(attempts - 1, steps + 1)))
    return max(pause * random.uniform(0.5, 1.0), float(error.facts.get("retry_after", 0)))
