//! `murre probe --quick`: whether the server of this configuration is alive, for health checks that may restart it.
//!
//! The health route of `admin.listen` or `metrics.listen` judges the conditions of the node and lists the listeners of
//! its shards. Each listener without TLS is then asked as user agents ask (an upgrade, closed before hello), and as app
//! servers ask (a POST to an endpoint that does not exist). The server makes no user, no row and no message of it.
//!
//! 503 of a listener is the answer of a server that is alive and at a limit: a restart would make it worse. A restart
//! mends no certificate either, so listeners over TLS, which the same shards serve, are left to
//! `murre probe https://NAME`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use serde_json::Value;

use super::public::Row;
use super::{Failure, Report, Step};
use crate::ConfigArgs;
use client::agent::{Agent, NotUpgraded};
use client::http::{Client, Request, Response};
use client::stream::Stream;
use host::Verdict;

/// A listener of the shards, as the health route shows it.
#[derive(Debug, PartialEq, Eq)]
struct Listener {
    port: String,
    address: SocketAddr,
}

/// Asks the health route, and then each listener without TLS.
pub(super) fn all_steps(config: &ConfigArgs, end: Instant, report: &mut Report) -> Result<(), (Step, Failure)> {
    let listeners = report.time(Step::Health, || health(config, end))?;
    for Listener { port, address } in listeners {
        // 401: the server takes user agents with a token of `access.*` only.
        let asks: [(&[&str], Step, &[u16], Ask); 2] = [
            (&["websocket", "public"], Step::Connect, &[101, 401], upgrade),
            (&["endpoint", "public"], Step::Post, &[404], post),
        ];
        for (_, step, wanted, ask) in asks.into_iter().filter(|(ports, ..)| ports.contains(&port.as_str())) {
            let status = report.time(step, || {
                let status = ask(address, end).map_err(|error| at(address, Failure::from(error)))?;
                let is_alive = wanted.contains(&status) || status == AT_A_LIMIT;
                is_alive.then_some(status).ok_or_else(|| {
                    let wanted = wanted[0];
                    Failure::new(format!("{address} answered {status} instead of {wanted}; it may be another server"))
                })
            })?;
            if status == AT_A_LIMIT {
                let found = format!("{address} answered 503: the server is alive, and at a limit or stopping");
                report.rows.push(Row { name: step.name(), verdict: Verdict::Warn, found });
            }
        }
    }
    Ok(())
}

/// Asks one thing, and returns the status of the answer.
type Ask = fn(SocketAddr, Instant) -> io::Result<u16>;

/// Status of a server that is alive and at a limit.
const AT_A_LIMIT: u16 = 503;

/// Asks the health route of the server of this configuration. Returns the listeners that speak HTTP at once.
fn health(config: &ConfigArgs, end: Instant) -> Result<Vec<Listener>, Failure> {
    let config = config.load().map_err(|error| Failure::new(error.to_string()))?;
    let address = config.admin.listen.iter().chain(&config.metrics.listen).next().copied().map(reachable);
    let address = address.ok_or_else(|| {
        Failure::new("neither admin.listen nor metrics.listen has an address to ask; set one on 127.0.0.1")
    })?;
    let response = get(address, end).map_err(|error| at(address, Failure::from(error)))?;
    let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    match (response.status, listeners(&body)) {
        (200, Some(listeners)) => Ok(listeners),
        (status, _) => Err(Failure::new(format!("{address} answered {status}{}", troubles(&body)))),
    }
}

/// Reads the listeners without TLS and without PROXY headers; `None` for a body without a list.
fn listeners(body: &Value) -> Option<Vec<Listener>> {
    let speaks_http = |shown: &&Value| shown["tls"] == false && shown["proxied"] == false;
    let read = |shown: &Value| {
        let address = shown["address"].as_str()?.parse().ok()?;
        Some(Listener { port: shown["port"].as_str()?.to_owned(), address: reachable(address) })
    };
    body["listeners"].as_array()?.iter().filter(speaks_http).map(read).collect()
}

/// The conditions in trouble, to follow a status.
fn troubles(body: &Value) -> String {
    let conditions = body["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let troubles = conditions.iter().filter_map(|condition| condition["trouble"].as_str());
    troubles.map(|trouble| format!("; {trouble}")).collect()
}

fn get(address: SocketAddr, end: Instant) -> io::Result<Response> {
    exchange(address, end, Request::new("GET", "/health"))
}

/// As an app server whose endpoint does not exist. No key opens its token, so the server asks neither a shard nor the
/// store.
fn post(address: SocketAddr, end: Instant) -> io::Result<u16> {
    let request = Request::new("POST", "/wpush/v1/murre-probe-quick").header("TTL", "0");
    Ok(exchange(address, end, request)?.status)
}

fn exchange(address: SocketAddr, end: Instant, request: Request) -> io::Result<Response> {
    let request = request.header("Host", &address.to_string()).header("Connection", "close");
    Client::over(Stream::connect_until(address, end)?).exchange(&request)
}

/// As a user agent that goes before its hello. It waits for the end of the connection, so that no session is left.
fn upgrade(address: SocketAddr, end: Instant) -> io::Result<u16> {
    let stream = Stream::connect_until(address, end)?;
    match Agent::upgrade(&format!("ws://{address}/"), stream) {
        Ok(agent) => agent.close().map(|()| 101),
        Err(error) => match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(NotUpgraded(status)) => Ok(status.as_u16()),
            None => Err(error),
        },
    }
}

/// Returns the address by which this host reaches a listener.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn at(address: SocketAddr, why: Failure) -> Failure {
    Failure::new(format!("{address}: {why}"))
}
