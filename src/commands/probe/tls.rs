//! TLS of the probe: `wss://` and `https://` URLs, by rustls over the blocking sockets.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::Failure;
use super::deadline::{Deadline, Timed};
use crate::island::client_config;
use protocol::wire::url::Origin;

/// TCP, or TLS over it.
pub enum Wire {
    /// `ws://` and `http://`.
    Plain(Timed),
    /// `wss://` and `https://`.
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

/// The authorities that the probe trusts: those of `--ca`, else those of this host.
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Reads the certificates.
    ///
    /// # Errors
    /// The file cannot be read, or holds no certificate.
    pub fn read(ca: Option<&Path>) -> Result<Trust, Failure> {
        let config = client_config(ca).map_err(|error| {
            let path = ca.map_or_else(String::new, |path| path.display().to_string());
            Failure::new(format!("cannot read --ca {path}: {error}; give a file of PEM certificates"))
        })?;
        Ok(Trust(Arc::new(config)))
    }

    /// Connects to the host of `at`, with TLS where its scheme says so. The certificate must name the host of `named`.
    ///
    /// # Errors
    /// No connection, no TLS, or a certificate that is not trusted.
    pub fn connect(&self, at: &Origin, named: &Origin, deadline: Deadline) -> Result<Wire, Failure> {
        let stream = deadline.connect(&at.with_port())?;
        if !at.https {
            return Ok(Wire::Plain(stream));
        }
        let host = if named.https { &named.host } else { &at.host };
        let name = ServerName::try_from(host.clone())
            .map_err(|_| Failure::new(format!("{host} is no name that a certificate can have")))?;
        let connection =
            ClientConnection::new(Arc::clone(&self.0), name).map_err(|error| Failure::new(error.to_string()))?;
        let mut tls = StreamOwned::new(connection, stream);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock).map_err(|error| refused(host, error))?;
        }
        Ok(Wire::Tls(Box::new(tls)))
    }
}

/// Says why a handshake failed.
fn refused(host: &str, error: io::Error) -> Failure {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(why)) => Failure::new(format!(
            "the certificate of {host} is not trusted: {why}; name the authority that signed it with --ca"
        )),
        Some(why) => Failure::new(format!("{host} does not speak TLS as expected: {why}")),
        None => error.into(),
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(into),
            Wire::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(from),
            Wire::Tls(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.flush(),
            Wire::Tls(stream) => stream.flush(),
        }
    }
}
