//! Certificates from an ACME authority in a build without the feature `acme`: a type that has no value.
//!
//! Its items are those of `mod.rs`. The configuration refuses `acme.agree` in such a build.

#[path = "answers.rs"]
mod answers;
#[path = "stats.rs"]
#[expect(dead_code, reason = "no task writes to the book")]
mod stats;

pub use answers::Answers;
pub use stats::{OrderBook, Outcome};

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::host::Host;

/// Orders certificates: there are none.
pub enum Acme {}

impl Acme {
    /// # Errors
    /// Always.
    pub fn new(_: config::Acme, _: &[String], _: PathBuf, _: (Answers, Arc<OrderBook>)) -> io::Result<Option<Acme>> {
        Err(io::Error::other("this build lacks the feature \"acme\""))
    }

    pub(super) fn book(&self) -> Arc<OrderBook> {
        match *self {}
    }

    pub(super) async fn run(self, _: Arc<dyn Host>) {
        match self {}
    }
}
