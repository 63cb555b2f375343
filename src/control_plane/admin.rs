//! The admin server: health routes (PROTOCOL.md 7.1), metrics, broadcasts, and a page to look at.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, put};
use machine::stats::{Board, Kind, Meaning};
use machine::upstream::BridgeKind;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use crate::version;

use super::bridges::ProfileSnapshot;
use super::broadcasts::{BROADCASTS_BODY_BYTES_MAX, Values};
use super::own::Own;
use super::peer_client::{PeerSnapshot, PeerSnapshots, PeerStatus};
use super::process::Process;
use super::{Health, Host, MetricSources, broadcast_poller, metrics};

/// Everything a handler needs. Lives on the control plane.
pub(super) struct AdminState {
    sources: Arc<MetricSources>,
    host: Arc<dyn Host>,
    metrics: metrics::Metrics,
    started: Instant,
    at_start: Process,
    own: Own,
    /// One permit: one backup at a time.
    backups: Arc<Semaphore>,
}

impl AdminState {
    /// `started` is when the process was; memory use is compared with that of now.
    pub(super) fn new(sources: MetricSources, host: Arc<dyn Host>, own: Own, started: Instant) -> AdminState {
        let sources = Arc::new(sources);
        let metrics = metrics::Metrics::new(Arc::clone(&sources), &own);
        AdminState {
            sources,
            host,
            metrics,
            started,
            at_start: Process::read(),
            own,
            backups: Arc::new(Semaphore::new(1)),
        }
    }

    /// Sum over the shards of one number.
    fn sum(&self, name: &str) -> u64 {
        let numbers = self.sources.shards.iter().flat_map(|board| board.read());
        numbers.filter(|(meaning, _)| meaning.name == name).map(|(_, value)| value).sum()
    }
}

/// Every route of the admin listener.
pub(super) fn router(view: Arc<AdminState>) -> Router {
    Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/status", get(status))
        .route("/health", get(health))
        .route("/__heartbeat__", get(health))
        .route("/__lbheartbeat__", get(load_balancer))
        .route("/__version__", get(version_info))
        .route("/metrics", get(prometheus))
        .route("/stats", get(stats))
        .route("/broadcasts", get(list_broadcasts).put(set_broadcasts))
        .route("/backups/{name}", put(backup))
        .layer(DefaultBodyLimit::max(BROADCASTS_BODY_BYTES_MAX))
        .layer(axum::middleware::from_fn(refuse_pages))
        .with_state(view)
}

/// Refuses changes from pages in an operator's browser. A browser sends the origin of a page with every PUT (Fetch
/// standard, section 3.2), under any name of this host; operators' tools send none.
async fn refuse_pages(request: axum::extract::Request, next: axum::middleware::Next) -> axum::response::Response {
    let changes = !matches!(*request.method(), axum::http::Method::GET | axum::http::Method::HEAD);
    if changes && request.headers().contains_key(axum::http::header::ORIGIN) {
        return (StatusCode::FORBIDDEN, "not from a browser\n").into_response();
    }
    next.run(request).await
}

const PAGE: &str = include_str!("page.html");

/// The status code stays 200 for every status word, as the services before us do it (PROTOCOL.md 7.1).
async fn status(State(view): State<Arc<AdminState>>) -> Json<Value> {
    let mut body = json!({ "status": word(view.host.health()), "version": version::VERSION });
    if let Some(error) = trouble(view.host.health()) {
        body["error"] = error.into();
    }
    Json(body)
}

async fn health(State(view): State<Arc<AdminState>>) -> Json<Value> {
    let health = view.host.health();
    let table = match health {
        Health::Serving | Health::Draining => json!({ "status": "OK" }),
        Health::StoreDown => json!({ "status": "NOT OK", "cause": trouble(health) }),
    };
    let profiles = view.own.profiles.as_ref();
    let is_of = |profile: &ProfileSnapshot, kind| profile.name.kind == kind && !profile.name.app.is_empty();
    let has = |kind| profiles.is_some_and(|profiles| profiles.look().iter().any(|profile| is_of(profile, kind)));
    let mut body = json!({
        "status": word(health),
        "version": version::VERSION,
        "connections": view.sum("sessions"),
        "router_table": table,
        "message_table": table,
        "routers": { "apns": has(BridgeKind::Apns), "fcm": has(BridgeKind::Fcm) },
    });
    if let Some(awaited) = view.own.orders.as_ref().and_then(|orders| orders.waits_for()) {
        body["waits_for"] = awaited.into();
    }
    Json(body)
}

fn word(health: Health) -> &'static str {
    match health {
        Health::Serving => "OK",
        Health::StoreDown | Health::Draining => "ERROR",
    }
}

fn trouble(health: Health) -> Option<&'static str> {
    match health {
        Health::Serving => None,
        Health::StoreDown => Some("storage takes nothing"),
        Health::Draining => Some("draining"),
    }
}

/// Answers a load balancer: may it send more here?
async fn load_balancer(State(view): State<Arc<AdminState>>) -> StatusCode {
    match view.host.health() {
        Health::Serving | Health::StoreDown => StatusCode::OK,
        Health::Draining => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn version_info() -> Json<Value> {
    Json(json!({
        "source": env!("CARGO_PKG_NAME"),
        "version": version::VERSION,
        "commit": version::COMMIT,
        "tree": version::TREE,
        "build": version::BUILD,
    }))
}

async fn prometheus(State(view): State<Arc<AdminState>>, head: HeaderMap) -> Response {
    let accept = head.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = metrics::Format::negotiate(accept);
    match view.metrics.encode(format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "Accept")], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The same numbers for the page, per shard, with what it needs to make rates and sizes of them.
async fn stats(State(view): State<Arc<AdminState>>) -> Json<Value> {
    let process = Process::read();
    Json(json!({
        "version": version::VERSION,
        "health": word(view.host.health()),
        "trouble": trouble(view.host.health()),
        "uptime_seconds": view.started.elapsed().as_secs_f64(),
        "shards": view.sources.shards.iter().map(|board| numbers(board)).collect::<Vec<_>>(),
        "shard_meanings": view.sources.shards.first().map(|board| meanings(board)).unwrap_or_default(),
        "store_meanings": view.sources.store.as_ref().map(|board| meanings(board)).unwrap_or_default(),
        "store": view.sources.store.as_ref().map(|board| numbers(board)),
        "island": view.own.boards.iter().flat_map(|board| numbers(board)).collect::<Map<_, _>>(),
        "island_meanings": view.own.boards.iter().flat_map(|board| meanings(board)).collect::<Vec<_>>(),
        "broadcasts": view.own.broadcasts.count(),
        "broadcast_source": view.own.source.as_ref().map(|state| source(&broadcast_poller::lock(state))),
        "nodes": view.own.nodes.as_ref().map(nodes),
        "nodes_known": view.own.nodes.as_ref().map(|nodes| nodes.look().len()),
        "process": {
            "resident_bytes": process.resident_bytes,
            "private_bytes": process.private_bytes,
            "private_bytes_at_start": view.at_start.private_bytes,
            "cpu_seconds": process.cpu_seconds,
            "threads": process.threads,
            "open_fds": process.open_fds,
        },
    }))
}

fn numbers(board: &Board) -> Map<String, Value> {
    board.read().map(|(meaning, value)| (meaning.name.to_owned(), value.into())).collect()
}

fn meanings(board: &Board) -> Vec<Value> {
    let kind = |kind| match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    let shown = |(meaning, _): (Meaning, u64)| {
        let kind = kind(meaning.kind);
        json!({ "name": meaning.name, "kind": kind, "help": meaning.help })
    };
    board.read().map(shown).collect()
}

/// The other nodes of the cluster, as many as are shown.
fn nodes(nodes: &Arc<PeerSnapshots>) -> Vec<Value> {
    nodes.look().iter().take(NODES_SHOWN_MAX).map(node).collect()
}

/// One of them.
fn node(shown: &PeerSnapshot) -> Value {
    let PeerSnapshot { url, state, connections, in_flight, waiting, owed, ends, quantiles: (half, most) } = shown;
    json!({
        "url": url,
        "state": match state {
            PeerStatus::Open => "open",
            PeerStatus::BackingOff => "backing off",
            PeerStatus::Closed => "closed",
        },
        "connections": connections,
        "under_way": in_flight,
        "waiting": waiting,
        "owed": owed,
        "calls": {
            "200": ends.ok,
            "202": ends.noted,
            "404": ends.not_here,
            "503": ends.busy,
            "other": ends.other,
            "unreachable": ends.unreachable,
            "no_answer": ends.no_answer,
        },
        "p50_microseconds": half.as_micros() as u64,
        "p99_microseconds": most.as_micros() as u64,
    })
}

/// Other nodes that are shown, those that do not answer first. The others are counted.
const NODES_SHOWN_MAX: usize = 64;

/// Returns the URL of the source, the result of its last poll, and the age of that state.
fn source(state: &broadcast_poller::State) -> Value {
    let (word, why) = match &state.last {
        None => ("not asked yet", None),
        Some(Ok(())) => ("answers", None),
        Some(Err(why)) => ("fails", Some(why.to_string())),
    };
    json!({ "url": state.url, "state": word, "why": why, "seconds": state.since.elapsed().as_secs() })
}

async fn list_broadcasts(State(view): State<Arc<AdminState>>) -> Json<Values> {
    Json(view.own.broadcasts.list())
}

/// `{id: version}`: sets these and keeps the others (PROTOCOL.md 7.9).
async fn set_broadcasts(State(view): State<Arc<AdminState>>, body: Bytes) -> Response {
    let wanted: Values = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(_) => return refused("the body must be a JSON object of texts: {\"id\": \"version\"}"),
    };
    match view.own.broadcasts.set(wanted) {
        Ok(news) => {
            tracing::info!(news, "broadcasts set by the operator");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(reason) => refused(reason),
    }
}

/// Copies keys and store to `backups/{name}` of the data directory, one at a time. 409 when that cannot be, with the
/// reason.
async fn backup(State(view): State<Arc<AdminState>>, Path(name): Path<String>) -> Response {
    let Ok(alone) = Arc::clone(&view.backups).try_acquire_owned() else {
        let reason = "another backup is being made; try again when it is done";
        return (StatusCode::CONFLICT, Json(json!({ "error": reason }))).into_response();
    };
    let host = Arc::clone(&view.host);
    let make = move || {
        // A caller that goes away does not end the copy.
        let _alone = alone;
        host.backup(&name)
    };
    let made = tokio::task::spawn_blocking(make).await;
    match made {
        Ok(Ok(made)) => {
            tracing::info!(path = %made.path.display(), users = made.users, "backup written");
            let body = json!({
                "path": made.path.display().to_string(),
                "users": made.users,
                "messages": made.messages,
                "topics": made.topics,
            });
            (StatusCode::CREATED, Json(body)).into_response()
        }
        Ok(Err(reason)) => (StatusCode::CONFLICT, Json(json!({ "error": reason }))).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn refused(reason: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": reason }))).into_response()
}
