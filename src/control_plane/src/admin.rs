//! The servers for operators and for metrics: health routes (PROTOCOL.md 7.1), metrics, broadcasts, backups, and a page
//! to look at.

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
use protocol::webpush::key::BearerKeys;
use runtime::ports::Port;
use serde_json::{Map, Value, json};
use store::fault::FaultKind;
use tokio::sync::Semaphore;

use super::admin_server::Counted;
use super::bridges::ProfileSnapshot;
use super::broadcasts::{BROADCASTS_BODY_BYTES_MAX, Values};
use super::conditions::{ConditionState, worst, worst_trouble};
use super::own::Own;
use super::peer_client::{PeerSnapshot, PeerSnapshots, PeerStatus};
use super::process::Process;
use super::{Address, BackupFault, Host, MetricSources, broadcast_poller, metrics};
use config::Secret;
use edge::Health;

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
    /// The token of the data directory. Without one, nothing that needs it is allowed.
    operators: BearerKeys,
    counted: Arc<Counted>,
}

impl AdminState {
    /// Made at the start of the process; memory use is compared with that of now.
    pub(super) fn new(
        sources: MetricSources,
        host: Arc<dyn Host>,
        own: Own,
        (token, counted): (&Secret, Arc<Counted>),
    ) -> AdminState {
        let sources = Arc::new(sources);
        let metrics = metrics::Metrics::new(Arc::clone(&sources), &own);
        AdminState {
            sources,
            host,
            metrics,
            started: Instant::now(),
            at_start: Process::read(),
            own,
            backups: Arc::new(Semaphore::new(1)),
            operators: BearerKeys::new(&[token.reveal().to_owned()]),
            counted,
        }
    }

    /// Sum over the shards of one number.
    fn sum(&self, name: &str) -> u64 {
        let numbers = self.sources.shards.iter().flat_map(|board| board.read());
        numbers.filter(|(meaning, _)| meaning.name == name).map(|(_, value)| value).sum()
    }
}

/// Every route of the listener for operators.
pub(super) fn router(view: Arc<AdminState>) -> Router {
    let pages = Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/stats", get(stats))
        .route("/broadcasts", get(list_broadcasts));
    // Every user of the host can call: changes, and all that concerns one user, message or sender, belong here.
    let guarded = Router::new()
        .route("/broadcasts", put(set_broadcasts))
        .route("/backups/{name}", put(backup))
        .route_layer(axum::middleware::from_fn_with_state(Arc::clone(&view), require_token));
    numbers_and_health()
        .merge(pages)
        .merge(guarded)
        .layer(DefaultBodyLimit::max(BROADCASTS_BODY_BYTES_MAX))
        .layer(axum::middleware::from_fn(refuse_pages))
        .with_state(view)
}

/// Every route of `metrics.listen`: all of them are only read, and none concerns one user, message or sender.
pub(super) fn read_only(view: Arc<AdminState>) -> Router {
    numbers_and_health().with_state(view)
}

fn numbers_and_health() -> Router<Arc<AdminState>> {
    Router::new()
        .route("/status", get(status))
        .route("/health", get(health))
        .route("/__heartbeat__", get(health))
        .route("/__lbheartbeat__", get(load_balancer))
        .route("/__version__", get(version_info))
        .route("/metrics", get(prometheus))
}

/// Refuses requests without the token of the data directory.
async fn require_token(
    State(view): State<Arc<AdminState>>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    let field = request.headers().get(header::AUTHORIZATION).map(header::HeaderValue::as_bytes);
    if !view.operators.allow(field) {
        view.counted.count(|stats| stats.admin_unauthorized += 1);
        let error = json!({ "error": "show the token in keys/admin of data_dir: Authorization: Bearer TOKEN" });
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], Json(error)).into_response();
    }
    next.run(request).await
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

/// Liveness, in short (PROTOCOL.md 7.1).
async fn status(State(view): State<Arc<AdminState>>) -> (StatusCode, Json<Value>) {
    let states = view.sources.conditions.look();
    let mut body = json!({ "status": worst(&states).word(), "version": version::VERSION });
    if let Some(error) = worst_trouble(&states) {
        body["error"] = error.into();
    }
    if let Some(plane) = plane(&view) {
        body["plane"] = plane;
    }
    (liveness(&states), Json(body))
}

/// Liveness, with every condition.
async fn health(State(view): State<Arc<AdminState>>) -> (StatusCode, Json<Value>) {
    let states = view.sources.conditions.look();
    // The tables of the services before us are in the store.
    let store = states.iter().filter(|state| state.name.starts_with("store_"));
    let table = match store.filter_map(|state| state.trouble.as_deref()).next() {
        None => json!({ "status": "OK" }),
        Some(cause) => json!({ "status": "NOT OK", "cause": cause }),
    };
    let profiles = view.own.profiles.as_ref();
    let is_of = |profile: &ProfileSnapshot, kind| profile.name.kind == kind && !profile.name.app.is_empty();
    let has = |kind| profiles.is_some_and(|profiles| profiles.look().iter().any(|profile| is_of(profile, kind)));
    let mut body = json!({
        "status": worst(&states).word(),
        "version": version::VERSION,
        "conditions": states.iter().map(condition).collect::<Vec<_>>(),
        "connections": view.sum("sessions"),
        "listeners": view.sources.listeners.iter().map(listener).collect::<Vec<_>>(),
        "router_table": table,
        "message_table": table,
        "routers": { "apns": has(BridgeKind::Apns), "fcm": has(BridgeKind::Fcm) },
    });
    if let Some(plane) = plane(&view) {
        body["plane"] = plane;
    }
    if let Some(awaited) = view.own.orders.as_ref().and_then(|orders| orders.waits_for()) {
        body["waits_for"] = awaited.into();
    }
    (liveness(&states), Json(body))
}

/// Returns the plane of the shards, the reason, and the state of the fence of rings.
fn plane(view: &AdminState) -> Option<Value> {
    let plane = view.sources.plane.as_ref()?;
    Some(json!({ "kind": plane.kind.word(), "why": plane.why, "fence": view.sources.fence }))
}

/// One listener of the shards.
fn listener(bound: &Address) -> Value {
    let port = match bound.port {
        Port::WebSocket => "websocket",
        Port::Endpoint => "endpoint",
        Port::Node => "node",
        Port::Public => "public",
    };
    json!({ "port": port, "address": bound.address, "tls": bound.tls, "proxied": bound.proxied })
}

/// One condition.
fn condition(state: &ConditionState) -> Value {
    json!({
        "name": state.name,
        "status": state.health.word(),
        "turns": state.turns(),
        "since": state.since_unix(),
        "trouble": state.trouble,
    })
}

/// The status code of liveness: 503 only for what a restart heals.
fn liveness(states: &[ConditionState]) -> StatusCode {
    match worst(states) {
        Health::Good | Health::Degraded | Health::Unready => StatusCode::OK,
        Health::Broken => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Answers a load balancer: may it send more here?
async fn load_balancer(State(view): State<Arc<AdminState>>) -> StatusCode {
    match view.sources.conditions.health() {
        Health::Good | Health::Degraded => StatusCode::OK,
        Health::Unready | Health::Broken => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn version_info() -> Json<Value> {
    Json(json!({
        "source": "murre",
        "version": version::VERSION,
        "commit": version::build().commit,
        "tree": version::build().tree,
        "build": version::build().name,
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
    let states = view.sources.conditions.look();
    Json(json!({
        "version": version::VERSION,
        "health": worst(&states).word(),
        "conditions": states.iter().map(condition).collect::<Vec<_>>(),
        "plane": plane(&view),
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

/// Copies keys and store to `backups/{name}` of the data directory, one at a time. 409 when that cannot be, 507
/// when the disk is full and 500 when it fails, with the reason.
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
        Ok(Err(BackupFault { said, kind })) => {
            let code = match kind {
                FaultKind::Lasting => StatusCode::CONFLICT,
                FaultKind::Full => StatusCode::INSUFFICIENT_STORAGE,
                FaultKind::Denied | FaultKind::Damaged | FaultKind::Passing => StatusCode::INTERNAL_SERVER_ERROR,
            };
            tracing::error!(reason = said, "backup not made");
            (code, Json(json!({ "error": said }))).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn refused(reason: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": reason }))).into_response()
}
