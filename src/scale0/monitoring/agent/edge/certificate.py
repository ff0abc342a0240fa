"""The agent's own certificate: the name in it, its validity, and its renewal.

A child process renews it (`scale0.monitoring.pki.enrolment`), because a certificate library would cost an agent a
quarter of its memory. OpenSSL decides whether a certificate is valid. Invariants: a file that is not a certificate is
refused with a reason; a renewal that fails is logged and tried again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about
from scale0.kernel.names import is_identity
from scale0.monitoring.checks.certificates import parse_certificate

log = logging.getLogger("scale0.agent")

RENEWAL_MODULE: Final = "scale0.monitoring.pki.enrolment"
LEFT_OF_LIFE: Final = 1 / 3
"""A certificate is renewed when this part of its validity is left."""
MAX_WAIT_SECONDS: Final = 3_600.0
"""How often the wall clock is read: it may jump."""
WAITS_PER_LIFE: Final = 60
"""More often for a certificate with a short validity."""
MIN_WAIT_SECONDS: Final = 1.0
RENEWAL_SECONDS: Final = 120.0

MAX_CERTIFICATE_BYTES: Final = 1024 * 1024

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII)


class AgentCertificate(NamedTuple):
    """The agent's name, and the validity (wall time)."""

    identity: str
    not_before: float
    not_after: float


def read_certificate(path: Path) -> AgentCertificate:
    """The first certificate of a PEM file; ConfigError if there is none that can be used."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CERTIFICATE_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError([f"certificate: {path}: {error.strerror}"]) from error
    match = _PEM.search(text)
    if match is None:
        raise ConfigError([f"certificate: {path} has no certificate in PEM format"])
    try:
        found = parse_certificate(ssl.PEM_cert_to_DER_cert(match[0]))
    except ValueError as error:
        raise ConfigError([f"certificate: {path} cannot be parsed: {error}"]) from error
    if not is_identity(found.subject):
        raise ConfigError([f"certificate: {path}: its common name is not a valid agent name"])
    return AgentCertificate(found.subject, found.begins, found.ends)


async def renew_forever(certificate: Path, config_file: Path, rng: random.Random) -> None:
    while True:
        wait = MAX_WAIT_SECONDS
        try:
            found = read_certificate(certificate)
        except ConfigError as error:
            log.error("cannot renew the certificate: %s", error, extra=about(certificate=certificate))
        else:
            life = found.not_after - found.not_before
            wait = min(wait, max(MIN_WAIT_SECONDS, life / WAITS_PER_LIFE))
            if time.time() >= found.not_after - life * LEFT_OF_LIFE:
                await renew(config_file)
        # Agents that were enrolled at the same time must not all renew at the same time.
        await asyncio.sleep(wait * rng.uniform(0.5, 1.0))


async def renew(config_file: Path) -> None:
    """One attempt, in a child process."""
    try:
        child = await start_renewal(config_file)
    except OSError as error:
        log.error("the renewal of the certificate could not be started: %s", error, extra=about())
        return
    try:
        output, errors = await asyncio.wait_for(child.communicate(), RENEWAL_SECONDS)
    except TimeoutError:
        log.error("the renewal of the certificate took longer than %g s", RENEWAL_SECONDS, extra=about())
    else:
        text = (output + errors).decode("utf-8", "replace").strip()
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


async def start_renewal(config_file: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", RENEWAL_MODULE, str(config_file)),  # -P: never import modules from the working directory
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
