"""TLS 1.3 with certificates at both ends, without I/O: bytes from the network in, bytes for the network out.

Only the handshake decides who the other side is. The chain of its certificate is verified by OpenSSL; which principal
the certificate stands for, and whether that one is wanted here, by `admit`.
"""

import contextlib
import ssl
from collections.abc import Callable

from tara.net import bounds
from tara.net.errors import HAS_NO_KEYS, Broken, Closed, ConnectionRefused
from tara.net.framing import TLS_ALERT, begins_like_tls, refusal
from tara.net.principal import NOBODY, Principal

#: The longest plain text in one record.
_RECORD_BYTES = 1 << 14
#: What passes OpenSSL's buffers at once: they keep for ever the size that they once had.
_BUFFER_BYTES = 4 * _RECORD_BYTES

#: From the other side's certificate (DER) to its principal; raises `ConnectionRefused`.
Admit = Callable[[bytes], Principal]

#: Codes of OpenSSL for a certificate that does not verify.
_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)

_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other side has no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side requires a certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not know the authority of our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired, says the other side",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side does not accept our certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "our certificate is of the wrong kind, says the other side",
    "TLSV1_ALERT_DECRYPT_ERROR": "the other side does not accept our signature",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other side does not speak TLS 1.3",
    "UNSUPPORTED_PROTOCOL": "the other side does not speak TLS 1.3",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other side gave up the handshake",
}


def in_words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return "the other side's certificate has expired"
        if error.verify_code == _NOT_YET_VALID:
            return "the other side's certificate is not valid yet"
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return "the other side's certificate is of an unknown authority"
        return f"the other side's certificate: {error.verify_message}"
    reason = error.reason or "no reason given"
    return _REASONS.get(reason, f"the TLS connection failed: {reason.lower().replace('_', ' ')}")


class Tls:
    """One end of a connection."""

    def __init__(self, context: ssl.SSLContext, server_side: bool, admit: Admit) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._read, self._write = self._object.read, self._object.write
        self._server_side = server_side
        self._admit = admit
        self._any = False
        #: The handshake is over, and the other side is somebody who may talk to us.
        self.over = False
        self.principal: Principal = NOBODY

    def shake(self, data: bytes) -> None:
        """Go on with the handshake. Whether it fails or not, there may be something to send afterwards."""
        if data and not self._any:
            self._any = True
            if not begins_like_tls(data):
                self._outgoing.write(TLS_ALERT)
                raise ConnectionRefused(HAS_NO_KEYS)
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise ConnectionRefused(in_words(error)) from error
        certificate = self._object.getpeercert(True)
        try:
            self.principal = self._admit(certificate or b"")
        except ConnectionRefused as refused:
            if self._server_side:
                with contextlib.suppress(ssl.SSLError):
                    self._object.write(refusal(str(refused)))
            raise
        self.over = True

    def encrypt_short(self, data: bytes) -> bytes:
        """For what is not longer than a buffer."""
        self._write(data)
        return self._outgoing.read()

    def encrypt(self, *pieces: bytes) -> list[bytes]:
        """In one piece, unless it is long."""
        encrypted: list[bytes] = []
        waiting = 0
        for piece in pieces:
            view = memoryview(piece)
            while view:
                done = self._write(view[: _BUFFER_BYTES - waiting])
                view = view[done:]
                waiting += done
                if waiting >= _BUFFER_BYTES:
                    encrypted.append(self._outgoing.read())
                    waiting = 0
        if waiting:
            encrypted.append(self._outgoing.read())
        return encrypted

    def decrypt(self, data: bytes) -> bytes:
        plain: list[bytes] = []
        try:
            if len(data) <= _BUFFER_BYTES:
                if data:
                    self._incoming.write(data)
                # Mostly it is one record.
                plain.append(self._read(_RECORD_BYTES))
                if self._incoming.pending:
                    self._decrypt(b"", plain)
            else:
                view = memoryview(data)
                for start in range(0, len(data), _BUFFER_BYTES):
                    self._decrypt(view[start : start + _BUFFER_BYTES], plain)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError as error:
            raise Closed("the other side closed the connection") from error
        except ssl.SSLError as error:
            raise ConnectionRefused(in_words(error)) from error
        if self._outgoing.pending > bounds.TLS_ANSWERS_BYTES_MAX:
            raise Broken("the other side asks for new keys again and again")
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def _decrypt(self, data: "bytes | memoryview", plain: list[bytes]) -> None:
        incoming, read = self._incoming, self._read
        if data:
            incoming.write(data)
        try:
            while incoming.pending:
                plain.append(read(_RECORD_BYTES))
        except ssl.SSLWantReadError:
            return

    def outgoing(self) -> bytes:
        """What the handshake has for the other side."""
        return self._outgoing.read()
