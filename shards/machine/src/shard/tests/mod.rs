//! Scenarios: each race of ARCHITECTURE.md 3 and 4 by name, on a [`mesh`] of two or three machines with a fake clock, a
//! scripted store, and sockets that are only lists of messages.

mod mesh;
mod script;

mod attempts;
mod awake;
mod cancels;
mod cluster;
mod conversation;
mod delivery;
mod fingerprints;
mod departure;
mod hello;
mod idle_user;
mod late;
mod liveness;
mod pace;
mod rates;
mod bridge;
mod registration;
mod receipts;
mod refresh;
mod relay;
mod reset;
mod scarce;
mod simple;
mod slow_reader;
mod times;
mod topics;
mod urgency;
mod wrap;

use std::sync::Arc;

use super::*;
use crate::ids::{Chid, Clock, Origin, ShardId, Stamp, StoreTicket, Uaid};
use crate::limits;
use crate::message::{Message, Urgency};
use crate::simplepush::{Mode as Reach, WakeData};
use crate::time::{Instant, TimeSpan, UnixSeconds};
use mesh::{CHANNEL, Line, Mesh, OTHER, Said, Socket, lasting, message, node_id, notify, topical};
use script::Mode;
