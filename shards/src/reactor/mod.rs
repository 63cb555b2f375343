//! The loop of one shard: reap, step, carry out, submit, park.
