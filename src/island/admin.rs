//! The admin server: health routes (BEHAVIOUR.md 7.1), metrics, broadcasts, and a page to look at.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, put};
use prometheus_client::registry::Registry;
use serde_json::{Map, Value, json};
use shards::limits::BROADCAST_IDS_MAX;
use shards::machine::BroadcastVersion;
use shards::stats::{Board, Kind, Meaning};

use super::process::Process;
use super::{Exhibits, Health, Host, metrics};

/// Everything a handler needs. Lives on the island.
pub(super) struct View {
    exhibits: Arc<Exhibits>,
    host: Arc<dyn Host>,
    registry: Registry,
    started: Instant,
    at_start: Process,
    broadcasts: Mutex<BTreeMap<String, String>>,
}

impl View {
    /// `started` is when the process was; memory use is compared with that of now.
    pub(super) fn new(exhibits: Exhibits, host: Arc<dyn Host>, started: Instant) -> View {
        let exhibits = Arc::new(exhibits);
        let registry = metrics::registry(Arc::clone(&exhibits));
        View { exhibits, host, registry, started, at_start: Process::read(), broadcasts: Mutex::default() }
    }

    /// Sum over the shards of one number.
    fn sum(&self, name: &str) -> u64 {
        let numbers = self.exhibits.shards.iter().flat_map(|board| board.read());
        numbers.filter(|(meaning, _)| meaning.name == name).map(|(_, value)| value).sum()
    }
}

/// Every route of the admin listener.
pub(super) fn router(view: Arc<View>) -> Router {
    Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/status", get(status))
        .route("/health", get(health))
        .route("/__heartbeat__", get(health))
        .route("/__lbheartbeat__", get(load_balancer))
        .route("/__version__", get(version))
        .route("/metrics", get(prometheus))
        .route("/stats", get(stats))
        .route("/broadcasts", get(list_broadcasts).put(set_broadcasts))
        .route("/backups/{name}", put(backup))
        .layer(DefaultBodyLimit::max(BROADCASTS_BODY_BYTES_MAX))
        .with_state(view)
}

const PAGE: &str = include_str!("page.html");

/// 1,024 ids of 128 bytes with versions of 128 bytes fit. Refuse: 413.
const BROADCASTS_BODY_BYTES_MAX: usize = 320 * 1024;
/// Bytes of one broadcast id or version. Refuse: 400.
const BROADCAST_TEXT_BYTES_MAX: usize = 128;

/// The status code stays 200 whatever the word is, as the services before us do it (BEHAVIOUR.md 7.1).
async fn status(State(view): State<Arc<View>>) -> Json<Value> {
    let mut body = json!({ "status": word(view.host.health()), "version": VERSION });
    if let Some(error) = trouble(view.host.health()) {
        body["error"] = error.into();
    }
    Json(body)
}

async fn health(State(view): State<Arc<View>>) -> Json<Value> {
    let health = view.host.health();
    let table = match health {
        Health::Serving | Health::Draining => json!({ "status": "OK" }),
        Health::StoreDown => json!({ "status": "NOT OK", "cause": trouble(health) }),
    };
    Json(json!({
        "status": word(health),
        "version": VERSION,
        "connections": view.sum("sessions"),
        "router_table": table,
        "message_table": table,
        "routers": { "apns": false, "fcm": false },
    }))
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

/// What a load balancer asks: may it send more here?
async fn load_balancer(State(view): State<Arc<View>>) -> StatusCode {
    match view.host.health() {
        Health::Serving | Health::StoreDown => StatusCode::OK,
        Health::Draining => StatusCode::SERVICE_UNAVAILABLE,
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit and build are known when the build sets `GIT_COMMIT` and `GIT_BUILD`, as the Dockerfile does.
async fn version() -> Json<Value> {
    Json(json!({
        "source": env!("CARGO_PKG_NAME"),
        "version": VERSION,
        "commit": option_env!("GIT_COMMIT").unwrap_or("unknown"),
        "build": option_env!("GIT_BUILD").unwrap_or("unknown"),
    }))
}

async fn prometheus(State(view): State<Arc<View>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &view.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The same numbers for the page, per shard, with what it needs to make rates and sizes of them.
async fn stats(State(view): State<Arc<View>>) -> Json<Value> {
    let process = Process::read();
    Json(json!({
        "version": VERSION,
        "health": word(view.host.health()),
        "trouble": trouble(view.host.health()),
        "uptime_seconds": view.started.elapsed().as_secs_f64(),
        "shards": view.exhibits.shards.iter().map(|board| numbers(board)).collect::<Vec<_>>(),
        "shard_meanings": view.exhibits.shards.first().map(|board| meanings(board)).unwrap_or_default(),
        "store_meanings": view.exhibits.store.as_ref().map(|board| meanings(board)).unwrap_or_default(),
        "store": view.exhibits.store.as_ref().map(|board| numbers(board)),
        "broadcasts": lock(&view.broadcasts).len(),
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

async fn list_broadcasts(State(view): State<Arc<View>>) -> Json<BTreeMap<String, String>> {
    Json(lock(&view.broadcasts).clone())
}

/// `{id: version}`: sets these and keeps the others (DESIGN.md 11).
async fn set_broadcasts(State(view): State<Arc<View>>, body: Bytes) -> Response {
    let wanted: BTreeMap<String, String> = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(_) => return refused("the body must be a JSON object of texts: {\"id\": \"version\"}"),
    };
    let fits = |text: &String| (1..=BROADCAST_TEXT_BYTES_MAX).contains(&text.len());
    if !wanted.iter().all(|(id, version)| fits(id) && fits(version)) {
        return refused("an id or version is empty or longer than 128 bytes");
    }
    {
        let mut known = lock(&view.broadcasts);
        let new = wanted.keys().filter(|id| !known.contains_key(*id)).count();
        if known.len() + new > BROADCAST_IDS_MAX {
            return refused("a node knows at most 1024 broadcast ids");
        }
        known.extend(wanted.clone());
    }
    let value = |(id, version): (String, String)| BroadcastVersion { id: id.into(), version: version.into() };
    let values: Arc<[BroadcastVersion]> = wanted.into_iter().map(value).collect();
    tracing::info!(count = values.len(), "broadcasts set");
    view.host.set_broadcasts(values);
    StatusCode::NO_CONTENT.into_response()
}

/// Copies keys and store to `backups/{name}` of the data directory. 409 when that cannot be, with the reason.
async fn backup(State(view): State<Arc<View>>, Path(name): Path<String>) -> Response {
    let host = Arc::clone(&view.host);
    let made = tokio::task::spawn_blocking(move || host.backup(&name)).await;
    match made {
        Ok(Ok(made)) => {
            tracing::info!(path = %made.path.display(), users = made.users, "backup made");
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

/// A handler that panicked while it held the lock left the map as it was: each change is one call.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
