//! Assembly: keys, store, shards, island; orderly start and stop.
