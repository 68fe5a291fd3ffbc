"""Who may see the page: one password, kept as an scrypt verifier, and whoever has a session (`pages.sessions`).

A wrong password costs the guesser time: `ATTEMPTS` at once for each address, then one every `REFILL_S` seconds, and one
at a time for all. Comparisons take the same time wherever they differ.

Forms carry a token that only who reads the password's file can make for the cookie that came with them, so no other
site can send one; any process of the page takes it.

Not promised: one limit for several processes, each of which counts attempts for itself; nor that someone who guesses
from many addresses is kept out by anything but the length of the password.
"""

import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from crypto.errors import PharoahError, Refusal
from crypto.ristretto import RandomBytes
from federation.base.key_files import replace_secret
from provider_server.program.pages.sessions import Sessions

FILE = "page.password"
LEAST_LETTERS = 12
SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 15, 8, 1
MOST_SCRYPT_BYTES = 256 * SCRYPT_N * SCRYPT_R  # twice what it takes
ATTEMPTS, REFILL_S, MOST_ADDRESSES = 5, 30.0, 1024


class NoPassword(PharoahError):
    """The page has no usable password."""

    default_hint = "set one with `pharoah-provider page password`"


class WrongPassword(Refusal):
    """This is not the password of the page."""

    default_hint = "try again, or set another with `pharoah-provider page password`"


class TooManyAttempts(Refusal):
    """Too many wrong passwords in a short time."""

    default_hint = "wait a minute"


def set_password(home: Path, password: str, salt: bytes) -> None:
    """Keeps the verifier of a new password in the home, mode 0600, in place of the one before."""
    if len(password) < LEAST_LETTERS:
        raise NoPassword("the password is too short", hint=f"use at least {LEAST_LETTERS} characters")
    replace_secret(home / FILE, verifier(password, salt))


def verifier(password: str, salt: bytes) -> bytes:
    """A line from which a password can be checked and not told: parameters, salt, digest."""
    digest = _digest(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    return f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${salt.hex()}${digest.hex()}".encode()


def matches(line: bytes, password: str) -> bool:
    """Whether a password is the one behind a verifier; NoPassword where that is damaged."""
    try:
        kind, n, r, p, salt, digest = line.decode().strip().split("$")
        if kind != "scrypt":
            raise ValueError(kind)
        made = _digest(password, bytes.fromhex(salt), int(n), int(r), int(p))
        return hmac.compare_digest(made, bytes.fromhex(digest))
    except ValueError as error:
        raise NoPassword("the password file is damaged") from error


def _digest(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=MOST_SCRYPT_BYTES, dklen=32)


class Door:
    """Lets people in. `line` gives the verifier as it is now, `now_s` seconds since 1970."""

    def __init__(
        self, line: Callable[[], bytes], sessions: Sessions, random_bytes: RandomBytes, now_s: Callable[[], float]
    ) -> None:
        self._line = line
        self._sessions = sessions
        self._random_bytes = random_bytes
        self._now_s = now_s
        self._purses: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()
        self._one_guess = threading.Lock()

    def new_name(self) -> str:
        """A fresh random name: of a session, or of a visitor who has none."""
        return self._random_bytes(32).hex()

    def form_token(self, name: str) -> str:
        """What a form must carry that comes with the cookie `name`."""
        return hmac.new(self._line(), b"pharoah/page-form/1\0" + name.encode(), hashlib.sha256).hexdigest()

    def is_form_of(self, name: str, token: str) -> bool:
        """Whether a form's token belongs to the cookie that came with it."""
        return bool(name) and hmac.compare_digest(self.form_token(name).encode(), token.encode())

    def enter(self, address: str, password: str) -> str:
        """The name of a new session; WrongPassword, or TooManyAttempts before the password is even looked at."""
        self._pay(address)
        with self._one_guess:
            line = self._line()
            if not matches(line, password):
                raise WrongPassword("wrong password")
        name = self.new_name()
        with self._lock:
            self._purses.pop(address, None)
        self._sessions.begin(name, line, self._now_s())
        return name

    def is_in(self, name: str) -> bool:
        """Whether a session of this name is open; asking keeps it open."""
        return self._sessions.is_open(name, self._line(), self._now_s())

    def leave(self, name: str) -> None:
        """Ends a session."""
        self._sessions.end(name)

    def _pay(self, address: str) -> None:
        """Takes one attempt out of an address's purse, which refills with time."""
        now_s = self._now_s()
        with self._lock:
            left, since_s = self._purses.pop(address, (float(ATTEMPTS), now_s))
            left = min(float(ATTEMPTS), left + max(0.0, now_s - since_s) / REFILL_S)
            self._purses[address] = (left - 1.0 if left >= 1.0 else left), now_s
            while len(self._purses) > MOST_ADDRESSES:
                self._purses.popitem(last=False)
        if left < 1.0:
            raise TooManyAttempts("too many wrong passwords")
