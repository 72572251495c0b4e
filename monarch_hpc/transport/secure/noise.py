"""The Noise handshake NNpsk0 and the ciphers that it yields.

`Noise_NNpsk0_25519_AESGCM_SHA256` (Noise Protocol Framework, revision 34): both sides prove that
they hold the allocation's key and agree on fresh keys; a peer without the key fails on the first message.

    -> psk, e        <- e, ee
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.backends.openssl import backend  # noqa: F401 else each proc would load it for its first key
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hmac import HMAC

from monarch_hpc.core.errors import AuthenticationError

__all__ = ["KEY_BYTES", "PUBLIC_BYTES", "TAG_BYTES", "Cipher", "Initiator", "Responder"]

KEY_BYTES = 32
PUBLIC_BYTES = 32
TAG_BYTES = 16

_NAME = b"Noise_NNpsk0_25519_AESGCM_SHA256"


class Cipher:
    """One direction of a channel: AES-256-GCM with the record counter as nonce.

    A record that was lost, repeated, reordered or altered fails to open.
    """

    __slots__ = ("_aead", "_counter", "_decrypt", "_encrypt")

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)
        self._encrypt = self._aead.encrypt
        self._decrypt = self._aead.decrypt
        # 64 bits of records at one per nanosecond last 584 years: no rekey, no overflow check.
        self._counter = 0

    def _nonce(self) -> bytes:
        nonce = self._counter.to_bytes(12, "big")
        self._counter += 1
        return nonce

    def seal(self, plain: bytes | bytearray | memoryview, associated: bytes | None = None) -> bytes:
        """Return *plain* sealed, `TAG_BYTES` longer."""
        counter = self._counter
        self._counter = counter + 1
        return self._encrypt(counter.to_bytes(12, "big"), plain, associated)

    def seal_into(self, plain: bytes | bytearray | memoryview, target: memoryview) -> None:
        """Seal *plain* into *target*, which is `TAG_BYTES` longer."""
        self._aead.encrypt_into(self._nonce(), plain, None, target)

    def open(self, sealed: bytes | bytearray | memoryview, associated: bytes | None = None) -> bytes:
        """Return the plain bytes of *sealed*.

        Raises:
            AuthenticationError: *sealed* is not the next record of this direction.
        """
        counter = self._counter
        self._counter = counter + 1
        try:
            return self._decrypt(counter.to_bytes(12, "big"), sealed, associated)
        except InvalidTag as error:
            raise _refused() from error

    def open_into(self, sealed: bytes | bytearray | memoryview, target: memoryview) -> None:
        """Open *sealed* into *target*, which is `TAG_BYTES` shorter; raises as `open`."""
        try:
            self._aead.decrypt_into(self._nonce(), sealed, None, target)
        except InvalidTag as error:
            raise _refused() from error


def _refused() -> AuthenticationError:
    return AuthenticationError("the other side", "a message does not open with the allocation's key")


class _Symmetric:
    """Noise's SymmetricState: the chaining key, the transcript hash, and the current cipher."""

    def __init__(self, prologue: bytes, psk: bytes) -> None:
        if len(psk) != KEY_BYTES:
            raise ValueError(f"the key has {len(psk)} bytes, not {KEY_BYTES}")
        self._hash = _NAME  # exactly HASHLEN bytes, so it is its own initial hash
        self._chain = _NAME
        self._cipher: Cipher | None = None
        self.mix_hash(prologue)
        chain, mixed, key = _hkdf(self._chain, psk, 3)
        self._chain = chain
        self.mix_hash(mixed)
        self._cipher = Cipher(key)

    def mix_hash(self, data: bytes) -> None:
        digest = hashes.Hash(hashes.SHA256())
        digest.update(self._hash + data)
        self._hash = digest.finalize()

    def mix_key(self, material: bytes) -> None:
        self._chain, key = _hkdf(self._chain, material, 2)
        self._cipher = Cipher(key)

    def mix_public(self, public: bytes) -> None:
        # In psk handshakes the ephemeral key goes into the chain too: Noise rev. 34, section 9.2.
        self.mix_hash(public)
        self.mix_key(public)

    def seal(self, plain: bytes) -> bytes:
        assert self._cipher is not None
        sealed = self._cipher.seal(plain, self._hash)
        self.mix_hash(sealed)
        return sealed

    def open(self, sealed: bytes) -> bytes:
        assert self._cipher is not None
        plain = self._cipher.open(sealed, self._hash)
        self.mix_hash(sealed)
        return plain

    def split(self) -> tuple[Cipher, Cipher]:
        first, second = _hkdf(self._chain, b"", 2)
        return Cipher(first), Cipher(second)


def _hkdf(chain: bytes, material: bytes, num_outputs: int) -> tuple[bytes, ...]:
    secret = _hmac(chain, material)
    outputs: list[bytes] = []
    previous = b""
    for index in range(1, num_outputs + 1):
        previous = _hmac(secret, previous + bytes((index,)))
        outputs.append(previous)
    return tuple(outputs)


def _hmac(key: bytes, data: bytes) -> bytes:
    # Not by `hashlib`, which would load another OpenSSL than the one that the ciphers have brought.
    code = HMAC(key, hashes.SHA256())
    code.update(data)
    return code.finalize()


def _public(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def _agree(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a low-order point
        raise _refused() from error


class Initiator:
    """The dialling side."""

    def __init__(self, prologue: bytes, psk: bytes) -> None:
        self._state = _Symmetric(prologue, psk)
        self._private = X25519PrivateKey.generate()

    def first(self, payload: bytes) -> bytes:
        """Return the first message: ephemeral key and sealed *payload*."""
        public = _public(self._private)
        self._state.mix_public(public)
        return public + self._state.seal(payload)

    def finish(self, message: bytes) -> tuple[bytes, Cipher, Cipher]:
        """Read the answer; return its payload and the ciphers for sending and receiving.

        Raises:
            AuthenticationError: the answer was not made with the same key and prologue.
        """
        public = message[:PUBLIC_BYTES]
        self._state.mix_public(public)
        self._state.mix_key(_agree(self._private, public))
        payload = self._state.open(message[PUBLIC_BYTES:])
        send, receive = self._state.split()
        return payload, send, receive


class Responder:
    """The listening side."""

    def __init__(self, prologue: bytes, psk: bytes) -> None:
        self._state = _Symmetric(prologue, psk)
        self._peer_public = b""

    def read(self, message: bytes) -> bytes:
        """Read the first message and return its payload.

        Raises:
            AuthenticationError: the message was not made with the same key and prologue.
        """
        self._peer_public = message[:PUBLIC_BYTES]
        self._state.mix_public(self._peer_public)
        return self._state.open(message[PUBLIC_BYTES:])

    def answer(self, payload: bytes) -> tuple[bytes, Cipher, Cipher]:
        """Return the second message and the ciphers for sending and receiving."""
        private = X25519PrivateKey.generate()
        public = _public(private)
        self._state.mix_public(public)
        self._state.mix_key(_agree(private, self._peer_public))
        sealed = self._state.seal(payload)
        receive, send = self._state.split()
        return public + sealed, send, receive
