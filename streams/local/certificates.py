"""The certificates of a local installation, and the authority that signs them.

The first start creates the authority, which is kept with the data. Every start issues new
certificates, so that none expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from streams.local.directory import write_private
from streams.local.ports import LOOPBACK

_AUTHORITY_DAYS, _CERTIFICATE_DAYS = 3650, 365
_EARLIER = timedelta(days=1)  # for clocks that are slow
_HOSTS: Sequence[x509.GeneralName] = (
    x509.IPAddress(ip_address(LOOPBACK)),
    x509.DNSName("localhost"),
)


class Authority:
    """Signs the certificates of one installation.

    Attributes:
        certificate: the file with the authority's certificate, which clients trust.
    """

    def __init__(self, directory: Path) -> None:
        """Load the authority from a directory; create it if the directory has none."""
        self.certificate = directory / "ca.pem"
        key = directory / "ca.key"
        if not key.exists():
            made = ec.generate_private_key(ec.SECP256R1())
            certificate = _certificate("dp-turnstile local authority", made, None)
            write_private(self.certificate, _pem(certificate))
            write_private(key, _key_pem(made))  # last: its existence means that both exist
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        self._key = loaded
        self._own = x509.load_pem_x509_certificate(self.certificate.read_bytes())

    def issue(self, name: str, path: Path) -> None:
        """Write a new key and its certificate for a name into one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, (self._own, self._key))
        write_private(path, _key_pem(key) + _pem(certificate))


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    by: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
) -> x509.Certificate:
    """Return a certificate for a key, signed by an authority, or self-signed without one."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing = key if by is None else by[1]
    now = datetime.now(UTC)
    days = _AUTHORITY_DAYS if by is None else _CERTIFICATE_DAYS
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(_usage(is_authority=by is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
    )
    if by is not None:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName(_HOSTS), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    return builder.sign(signing, hashes.SHA256())


def _usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
