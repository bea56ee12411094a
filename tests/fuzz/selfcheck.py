"""Dies, hangs and raises now and then: whether the driver notices."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random


def case(random: Random, folder: Path) -> str:
    match random.randrange(12):
        case 0:
            os.abort()
        case 1:
            time.sleep(1000)
        case 2:
            raise ValueError("this is no crash")
    return "fine"
