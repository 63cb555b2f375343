//! URLs of receipts: `/r/{receipt}` (RFC 8030 section 5.1).

use protocol::webpush::endpoint::BadKey;
use protocol::webpush::receipt::{self, Receipt};
use protocol::wire::url::BaseUrl;

/// Start of the paths of receipts.
pub(super) const PATH: &str = "/r/";

/// The sealed part of receipts of one edge, and the start of their URLs.
pub(super) struct ReceiptUrls {
    pub(super) sealed: receipt::Receipts,
    prefix: String,
}

impl ReceiptUrls {
    /// Creates the receipts below `base`, under keys derived from the crypto keys.
    pub(super) fn new(base: &BaseUrl, crypto_keys: &[String]) -> Result<ReceiptUrls, BadKey> {
        Ok(ReceiptUrls { sealed: receipt::Receipts::new(crypto_keys)?, prefix: format!("{base}{PATH}") })
    }

    pub(super) fn rekey(&mut self, crypto_keys: &[String]) -> Result<(), BadKey> {
        self.sealed = receipt::Receipts::new(crypto_keys)?;
        Ok(())
    }

    /// Appends the value of `Link` (RFC 8288) for a message.
    pub(super) fn push_link(&self, receipt: &Receipt, out: &mut Vec<u8>) {
        out.push(b'<');
        out.extend_from_slice(self.prefix.as_bytes());
        self.sealed.seal(receipt, out);
        out.extend_from_slice(br#">; rel="urn:ietf:params:push:receipt""#);
    }
}
