//! A session with the database as `store.scylla.*` describes it: contact points, login, TLS, time limits.
//!
//! One session serves the whole process, as the maintainers of the driver advise: it keeps one connection to every
//! shard of every node, and a session for each shard of murre would multiply them. Lives on: the control plane's
//! runtime.

use std::sync::Arc;
use std::time::Duration;

use scylla::client::SelfIdentity;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind as Setup, DbError, MetadataError,
    NewSessionError,
};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::statement::Consistency;

use super::access::Access;
use crate::shared::error::DatabaseError;
use crate::shared::options::{Level, Options};

/// Connects with the login and the TLS files of this configuration, as [`connect_with`].
///
/// # Errors
/// As [`connect_with`], and a file of `store.scylla.tls_*` cannot be used.
pub(crate) async fn connect(config: &Options) -> Result<Session, DatabaseError> {
    connect_with(config, &Access::read(config)?).await
}

/// Connects. Each connection of the session takes the login and the certificates that `access` has when the connection
/// is made. By default statements are at `read_consistency`, within `request_timeout`, and not retried: the caller
/// knows the budget and may retry.
///
/// # Errors
/// No node of `store.scylla.nodes` accepts a session with this configuration.
pub(super) async fn connect_with(config: &Options, access: &Access) -> Result<Session, DatabaseError> {
    let builder = SessionBuilder::new()
        .known_nodes(&config.nodes)
        .connection_timeout(config.connect_timeout)
        .metadata_request_clientside_timeout(config.request_timeout.max(config.connect_timeout))
        .hostname_resolution_timeout(Some(config.connect_timeout))
        // The driver's limit ends with the TCP handshake; these two find peers that are silent after it.
        .keepalive_interval(config.connect_timeout)
        .keepalive_timeout(config.connect_timeout)
        .keyspaces_to_fetch([&config.keyspace])
        .custom_identity(identity())
        .default_execution_profile_handle(profile(config).into_handle())
        .authenticator_provider(access.login())
        .tls_context(access.client_config()?);
    // Neither finds a peer that takes the connection and not its TLS. One contact point after the other is tried.
    let patience = config.connect_timeout * (3 * config.nodes.len() as u32 + 3);
    match tokio::time::timeout(patience, builder.build()).await {
        Ok(built) => built.map_err(|error| explain(config, &error)),
        Err(_) => {
            let nodes = config.nodes.join(",");
            Err(DatabaseError::passing(format!("store.scylla.nodes = {nodes}: {}", silent(patience))))
        }
    }
}

fn silent(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    format!("no answer within {seconds} s; is it the right address, and is TLS on or off at both ends?")
}

/// Entry of murre in the database's list of clients.
fn identity() -> SelfIdentity<'static> {
    SelfIdentity::new().with_application_name("murre").with_application_version(env!("CARGO_PKG_VERSION"))
}

/// Defaults of every statement.
fn profile(config: &Options) -> ExecutionProfile {
    let mut policy = DefaultPolicy::builder().token_aware(true);
    if let Some(datacenter) = &config.datacenter {
        // Levels that count replicas of one datacenter must not ask another: it would count its own.
        let local = config.read_consistency.is_local() || config.write_consistency.is_local();
        policy = policy.prefer_datacenter(datacenter.clone()).permit_dc_failover(!local);
    }
    ExecutionProfile::builder()
        .consistency(consistency(config.read_consistency))
        .request_timeout(Some(config.request_timeout))
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .load_balancing_policy(policy.build())
        .build()
}

/// The level as the driver spells it.
pub(super) fn consistency(level: Level) -> Consistency {
    match level {
        Level::One => Consistency::One,
        Level::LocalOne => Consistency::LocalOne,
        Level::Quorum => Consistency::Quorum,
        Level::LocalQuorum => Consistency::LocalQuorum,
        Level::All => Consistency::All,
    }
}

/// Cause and remedy. Never shows the password: the database may repeat it in its own words, so for a refused login the
/// text has only the refusal.
fn explain(config: &Options, error: &NewSessionError) -> DatabaseError {
    let nodes = config.nodes.join(",");
    let NewSessionError::MetadataError(MetadataError::ConnectionPoolError(ConnectionPoolError::Broken {
        last_connection_error,
    })) = error
    else {
        let (hint, passes) = match error {
            NewSessionError::FailedToResolveAnyHostname(_) => ("no name in it resolves", true),
            NewSessionError::MetadataError(_) => ("the database answers, and not as expected", true),
            _ => ("the database answers, and not as expected", false),
        };
        return DatabaseError::new(format!("store.scylla.nodes = {nodes}: {hint}: {error}"), passes);
    };
    let mut lasts = false;
    let said = match last_connection_error {
        ConnectionError::ConnectTimeout => silent(config.connect_timeout),
        ConnectionError::IoError(error) => {
            let tls = if config.tls.enabled { ", or the TLS of one end is not that of the other" } else { "" };
            format!("{error}; it does not run there{tls}")
        }
        ConnectionError::ConnectionSetupRequestError(request) => match request.get_error() {
            Setup::MissingAuthentication | Setup::StartAuthSessionError(_) => {
                lasts = true;
                "it requires a user name and a password; set store.scylla.user and store.scylla.password".to_owned()
            }
            Setup::DbError(DbError::AuthenticationError, _) => {
                lasts = true;
                "it does not take store.scylla.user with store.scylla.password".to_owned()
            }
            Setup::BrokenConnection(error) => {
                format!("{error}; is it a database, and is TLS on or off at both ends?")
            }
            other => other.to_string(),
        },
        other => other.to_string(),
    };
    DatabaseError::new(format!("store.scylla.nodes = {nodes}: {said}"), !lasts)
}
