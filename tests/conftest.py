"""What every test may rely on."""

from __future__ import annotations

import contextlib
import signal

from hypothesis import HealthCheck, settings

# Started in the background, a shell may have made us ignore these, and what we start would inherit that.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    with contextlib.suppress(ValueError):  # not the main thread: then signals cannot reach us either
        if signal.getsignal(_number) is signal.SIG_IGN:
            signal.signal(_number, _handler)

# How long an example takes says more of the machine than of the code; no test asserts a time.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")
