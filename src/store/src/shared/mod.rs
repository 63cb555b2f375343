//! What is said of a shared store without its driver: [`options`], the tables as text ([`schema`]), the [`census`] of
//! its users, and its [`error`]s.

pub mod census;

pub mod error;

pub mod options;

pub mod schema;
