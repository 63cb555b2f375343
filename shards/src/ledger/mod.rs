//! The mapped ledger log: accepted directs that survive `kill -9`.
