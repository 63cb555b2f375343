"""Ends TLS in front of a server, as a load balancer does."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

CHUNK_BYTES = 64 * 1024


class TlsFront:
    """Listens on `address` with a certificate of its own, which `certificate` names, and passes bytes to `upstream`."""

    def __init__(self, address, upstream, directory):
        self.upstream = upstream
        self.certificate = directory / "certificate.pem"
        key = directory / "key.pem"
        make_certificate(address[0], self.certificate, key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, key)
        self.loop = asyncio.new_event_loop()
        self.listener = self.loop.run_until_complete(asyncio.start_server(self.serve, *address, ssl=context))
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    async def serve(self, reader, writer):
        with contextlib.suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection(*self.upstream)
            await asyncio.gather(pump(reader, server_writer), pump(server_reader, writer))

    def close(self):
        asyncio.run_coroutine_threadsafe(self.end(), self.loop).result(timeout=20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def end(self):
        self.listener.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pump(reader, writer):
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


def make_certificate(
    name, certificate_path, key_path, is_authority=True, issuer=None, key=None, age=datetime.timedelta()
):
    """A certificate for one host name or IP address that is good for an hour. `issuer` is the certificate and the key
    of the authority that signs it, as paths; without it the certificate signs itself. The key is ECDSA P-256 by
    default. A certificate of more than an hour of `age` is over."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject, signer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), key
    issuer_name = subject
    if issuer:
        issuer_name = x509.load_pem_x509_certificate(issuer[0].read_bytes()).subject
        signer = serialization.load_pem_private_key(issuer[1].read_bytes(), password=None)
    now = datetime.datetime.now(datetime.timezone.utc) - age
    try:
        alternative = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        alternative = x509.DNSName(name)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True)
        .sign(signer, None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key_path.write_bytes(key.private_bytes(*pem))
