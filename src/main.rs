//! The binary `murre`: parse arguments, run one command, exit with its status.

fn main() {}
