//! Forms of protection that a race compares. The server freezes and thaws by the crate `hibernate`.

/// Protection against bytes that arrive between the check and the close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Not at all: loses bytes, which shows that the race test can fail.
    Naive,
    /// The socket loses its mark, then a grace period: from then on its segments pass through the queue, where a lock
    /// holds them while the connection is recorded and closed. Nothing is dropped.
    Mark,
}
