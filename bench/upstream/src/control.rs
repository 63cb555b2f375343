//! The control port: a test that is not written in Rust chooses answers and reads what arrived, as JSON.
//!
//! `PUT /script` sets the next answers (`Script`), `GET /state` and `GET /calls` read, `DELETE /` forgets everything.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::record::State;

/// Serves until the task is dropped.
pub(crate) async fn listen(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(|request| answer(Arc::clone(&state), request));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let (status, value) = match (head.method, head.uri.path()) {
        (Method::PUT, "/script") => match serde_json::from_slice(&body) {
            Ok(script) => {
                state.set(script);
                (StatusCode::OK, Value::Null)
            }
            Err(error) => (StatusCode::BAD_REQUEST, error.to_string().into()),
        },
        (Method::GET, "/state") => (StatusCode::OK, state.summary()),
        (Method::GET, "/calls") => (StatusCode::OK, serde_json::to_value(state.calls()).unwrap_or_default()),
        (Method::DELETE, "/") => {
            state.reset();
            (StatusCode::OK, Value::Null)
        }
        (method, path) => (StatusCode::NOT_FOUND, format!("no {method} {path}").into()),
    };
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())));
    *response.status_mut() = status;
    Ok(response)
}
