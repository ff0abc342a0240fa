"""The certificate is renewed before it ends.

Lives here: when, and a child process that does it, because what it needs would double the agent's memory. Never here:
how (`io/enrolment`). Invariant: it is tried again until it is done, with a wait in between; a renewal that fails costs
nothing but a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from pathlib import Path
from typing import Final

from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about
from scale0.monitoring.agent.edge.certificate import read_certificate

log = logging.getLogger("scale0.agent")

MODULE: Final = "scale0.monitoring.pki.enrolment"
LEFT_OF_LIFE: Final = 1 / 3
"""What is left of a certificate's life when it is renewed."""
MAX_LOOK_SECONDS: Final = 3_600.0
"""How often the wall clock is looked at: it may jump."""
LOOKS_PER_LIFE: Final = 60
"""More often for a certificate that does not last long."""
MIN_LOOK_SECONDS: Final = 1.0
CHILD_SECONDS: Final = 120.0
"""How long a renewal may take."""


async def renew_forever(certificate: Path, config_file: Path, chance: random.Random) -> None:
    """Renew the certificate whenever a third of its life is left."""
    while True:
        wait = MAX_LOOK_SECONDS
        try:
            found = read_certificate(certificate)
        except ConfigError as error:
            log.error("the certificate cannot be renewed: %s", error, extra=about(certificate=certificate))
        else:
            life = found.not_after - found.not_before
            wait = min(wait, max(MIN_LOOK_SECONDS, life / LOOKS_PER_LIFE))
            if time.time() >= found.not_after - life * LEFT_OF_LIFE:
                await renew(config_file)
        # A fleet that was enrolled in one hour does not renew in one minute.
        await asyncio.sleep(wait * chance.uniform(0.5, 1.0))


async def renew(config_file: Path) -> None:
    """One attempt, in a process of its own."""
    try:
        child = await start(config_file)
    except OSError as error:
        log.error("the renewal of the certificate could not be started: %s", error, extra=about())
        return
    try:
        said, failed = await asyncio.wait_for(child.communicate(), CHILD_SECONDS)
    except TimeoutError:
        log.error("the renewal of the certificate took longer than %g s", CHILD_SECONDS, extra=about())
    else:
        text = (said + failed).decode("utf-8", "replace").strip()
        log.log(
            logging.INFO if child.returncode == 0 else logging.ERROR,
            "renewal of the certificate: %s",
            text,
            extra=about(),
        )
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def start(config_file: Path) -> asyncio.subprocess.Process:
    """The process that renews; OSError if the system has none to give."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", MODULE, str(config_file)),  # -P: the folder that we were started in is no place for modules
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
