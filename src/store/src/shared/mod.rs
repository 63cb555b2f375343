//! A shared store without its driver: its [`options`], its tables as text ([`schema`]), the [`census`] of its users,
//! its [`opening`], and its [`error`]s.

pub mod census;

pub mod error;

pub mod opening;

pub mod options;

pub mod schema;
