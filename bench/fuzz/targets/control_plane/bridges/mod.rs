//! The files of the server that read answers of services, without the rest of the server.

#![allow(dead_code, reason = "the server uses the rest")]

#[path = "../../../../../src/control_plane/bridges/apns/judge.rs"]
mod apns;
#[path = "../../../../../src/control_plane/bridges/breaker.rs"]
mod breaker;
#[path = "../../../../../src/control_plane/bridges/fcm/judge.rs"]
mod fcm;
#[path = "../../../../../src/control_plane/bridges/judgement.rs"]
mod judgement;
#[path = "../../../../../src/control_plane/bridges/recent.rs"]
mod recent;
#[path = "../../../../../src/control_plane/bridges/request.rs"]
mod request;

use std::time::SystemTime;

use hyper::body::Bytes;
use hyper::{HeaderMap, StatusCode};
use machine::ids::Clock;
use machine::upstream::BridgeOutcome;

/// Consequences of an answer.
pub struct Told {
    pub outcome: BridgeOutcome,
    pub alarm: Option<String>,
}

/// The answer of FCM with this body.
pub fn of_fcm(status: u16, body: &[u8]) -> Told {
    let body = Bytes::copy_from_slice(body);
    let answer = request::Answer { status: StatusCode::from_u16(status).unwrap(), headers: HeaderMap::new(), body };
    told(fcm::judge(&answer, SystemTime::UNIX_EPOCH))
}

/// The answer of APNs with this body, about a token that was registered then.
pub fn of_apns(status: u16, body: &[u8], registered: u64) -> Told {
    told(apns::judge(status, body, Clock(registered)).judgement)
}

fn told(judgement: judgement::Judgement) -> Told {
    Told { outcome: judgement.outcome, alarm: judgement.alarm }
}
