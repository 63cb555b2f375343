//! The scenarios, one module each with `Options` and `run`. Each prints a table and returns true if its checks held.
//! Shared parts are beside them: `traffic` posts and keeps count, `arrivals` makes agents try again, `ramp` connects
//! sessions.

mod driver;

pub mod traffic;

mod arrivals;

pub mod ramp;

pub mod hold;

pub mod hibernate;

pub mod push;

pub mod bridged;

pub mod store;

pub mod statements;

pub mod storm;

pub mod restart;

pub mod churn;

pub mod mixed;

pub mod ping;

pub mod backlog;

pub mod flood;

pub mod crash;

pub mod kills;

pub mod sim;

pub mod drill;

pub use driver::Driver;
