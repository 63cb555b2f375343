//! Assembly: keys, store, shards, island; orderly start and stop.

mod data_dir;

mod fault;

mod host;

pub use data_dir::{DataDir, Keys, PlacementKey};
pub use fault::Fault;
