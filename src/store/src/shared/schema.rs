//! The tables of the shared store as text. Reasons are in docs/decisions/0015-wide-rows.md.
//!
//! Everything is keyed by UAID. Rows of a user are one partition in `user`, messages that wait for it one in `message`;
//! families of rows live beside each other inside a partition, in the order of their numbers:
//!
//! ```text
//! user     ((uaid), family, key) -> value                 key is empty, but for
//!              4 presence: boot 8 (big-endian), node url      5 channel: chid 16
//! message  ((uaid), family, clock, origin, key) -> value  key is the chid 16, but for
//!              0 topic: clock 0, origin 0, chid 16, topic    -1 late: clock 0, origin 0, zero
//! node     (url) -> boot, started_at, left_at             a node that leaves says so once, not for each of its users
//! lease    ((url), boot) -> seen_at                       each run renews its own, with a TTL
//! debt     ((url), id) -> said_at                         the node is owed notifications, by a run that says so again
//! ```
//!
//! There is no static column: a read of a part of a partition that has only statics returns no row, and a user that is
//! there would look unknown. There is no conditional update: conditions are settled by client timestamps,
//! and the two must not be mixed.

use super::options;
use crate::IDLE_SECONDS_MAX;

/// The version that this build writes and reads. It also reads tables of a later version, as long as their least
/// version ([`Step::least`]) is not above this one.
pub const VERSION: i32 = 1;

/// Numbers of the families: the column `family`.
pub mod family {
    /// `user`: the clock of the latest message row that was deleted alone, above low water, of a user with many such
    /// rows: the next check of its messages raises low water past their tombstones.
    pub const DELETED: i8 = -2;
    /// `user`: the record of a bridged user. It stands before the others, so that a short page has it.
    pub const BRIDGE: i8 = -1;
    /// `user`: that the user exists. The rest of its TTL gives the time at which it was last seen.
    pub const RECORD: i8 = 0;
    /// `user`: every message row at or below it is settled.
    pub const LOW_WATER: i8 = 1;
    /// `user`: at least the clock of everything written to the user.
    pub const USER_CLOCK: i8 = 2;
    /// `user`: mode and wake data.
    pub const CONTACT: i8 = 3;
    /// `user`: nodes with a session of the user; one row for each node and boot.
    pub const PRESENCE: i8 = 4;
    /// `user`: one row for each channel; last, because there may be thousands.
    pub const CHANNEL: i8 = 5;

    /// `message`: that there are, or were, rows of `SAVED`. It stands before the topics, whose read finds it.
    pub const LATE: i8 = -1;
    /// `message`: the message of a topic, replaced in its place.
    pub const TOPIC: i8 = 0;
    /// `message`: from a ledger, and later than low water waits for: `LOW_WATER` does not cover it.
    pub const SAVED: i8 = 1;
    /// `message`: in the order of stamps, also from a ledger within `WRITE_SECONDS_MAX` of its stamp.
    pub const MESSAGE: i8 = 2;
}

/// Kind of the database. Options of one kind are sent to that kind only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// Apache Cassandra of this major version.
    Cassandra(u32),
    Scylla {
        /// It has the incremental compaction strategy: since 2025.1.
        incremental: bool,
    },
}

/// Keyspace, replication and database of the tables.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The keyspace: lower case letters, digits and `_`.
    pub keyspace: String,
    /// Number of nodes of a datacenter that have each row.
    pub replication_factor: u16,
    /// The only datacenter that has them; `None`: each has.
    pub datacenter: Option<String>,
    pub server: Server,
}

/// Table of the shared store.
pub struct Table {
    pub name: &'static str,
    pub comment: &'static str,
    /// In the order of the key.
    pub columns: &'static [Column],
    options: Option<Options>,
}

/// Column of a table.
pub struct Column {
    pub name: &'static str,
    /// Type as the database spells it.
    pub cql: &'static str,
    pub role: Role,
}

/// The place of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Decides which nodes have the row.
    Partition,
    /// Orders rows in a partition.
    Clustering,
    Value,
}

/// Options for the rows of a large table.
struct Options {
    /// Rows that are read far more often than written need few files, others few rewrites.
    read_mostly: bool,
    /// Seconds that tombstones stay: at least the hint window (3 h), within which a node that was away gets the missed
    /// writes.
    gc_grace_seconds: u32,
    /// ScyllaDB's rule for the removal of tombstones.
    tombstone_gc: &'static str,
}

/// Every table.
pub const TABLES: &[Table] = &[
    Table {
        name: "user",
        comment: "murre: users, their channels and where they are connected; families of rows by number",
        columns: &[
            Column { name: "uaid", cql: "blob", role: Role::Partition },
            Column { name: "family", cql: "tinyint", role: Role::Clustering },
            Column { name: "key", cql: "blob", role: Role::Clustering },
            Column { name: "value", cql: "blob", role: Role::Value },
        ],
        // A channel that comes back after its unregister is wrong for weeks, so its tombstone waits for repair.
        options: Some(Options { read_mostly: true, gc_grace_seconds: 864_000, tombstone_gc: "repair" }),
    },
    Table {
        name: "message",
        comment: "murre: messages that wait; each row has the TTL of its message",
        columns: &[
            Column { name: "uaid", cql: "blob", role: Role::Partition },
            Column { name: "family", cql: "tinyint", role: Role::Clustering },
            Column { name: "clock", cql: "bigint", role: Role::Clustering },
            Column { name: "origin", cql: "bigint", role: Role::Clustering },
            Column { name: "key", cql: "blob", role: Role::Clustering },
            Column { name: "value", cql: "blob", role: Role::Value },
        ],
        // A message that comes back after its ack is a second delivery, which a user agent must bear anyway.
        options: Some(Options { read_mostly: false, gc_grace_seconds: 86_400, tombstone_gc: "timeout" }),
    },
    Table {
        name: "node",
        comment: "murre: the last boot of every node; left_at is set when it went in order",
        columns: &[
            Column { name: "url", cql: "text", role: Role::Partition },
            Column { name: "boot", cql: "bigint", role: Role::Value },
            Column { name: "started_at", cql: "timestamp", role: Role::Value },
            Column { name: "left_at", cql: "timestamp", role: Role::Value },
        ],
        options: None,
    },
    Table {
        name: "lease",
        comment: "murre: when each run of a node was last seen; renewed every 30 s",
        columns: &[
            Column { name: "url", cql: "text", role: Role::Partition },
            Column { name: "boot", cql: "bigint", role: Role::Clustering },
            Column { name: "seen_at", cql: "timestamp", role: Role::Value },
        ],
        options: None,
    },
    Table {
        name: "debt",
        comment: "murre: notifications that a node is owed; written while it does not answer",
        columns: &[
            Column { name: "url", cql: "text", role: Role::Partition },
            Column { name: "id", cql: "bigint", role: Role::Clustering },
            Column { name: "said_at", cql: "timestamp", role: Role::Value },
        ],
        options: None,
    },
    Table {
        name: "schema_version",
        comment: "murre: the versions of these tables (part murre) and the least that may read them (part least); of \
                  each part the greatest counts",
        columns: &[
            Column { name: "part", cql: "text", role: Role::Partition },
            Column { name: "version", cql: "int", role: Role::Clustering },
            Column { name: "applied_at", cql: "timestamp", role: Role::Value },
        ],
        options: None,
    },
];

/// Statements that lead to one version from the one before; every statement may be repeated.
///
/// A step that only adds (a table, a column, a family of rows) keeps `least`: earlier builds go on, start again, and
/// leave alone what they do not know. A step that changes the meaning of what is there raises `least` to its own
/// version: earlier builds do not start any more.
pub struct Step {
    pub version: i32,
    /// The least version of a build that may read and write the tables behind this step.
    pub least: i32,
    pub statements: fn(&Layout) -> Vec<String>,
}

/// Steps from nothing to [`VERSION`].
pub const STEPS: &[Step] =
    &[Step { version: 1, least: 1, statements: |layout| TABLES.iter().map(|table| table.create(layout)).collect() }];

impl Layout {
    /// The layout for this configuration and this database.
    pub fn of(config: &options::Options, server: Server) -> Layout {
        Layout {
            keyspace: config.keyspace.clone(),
            replication_factor: config.replication_factor,
            datacenter: config.datacenter.clone(),
            server,
        }
    }

    pub fn create_keyspace(&self) -> String {
        let Layout { keyspace, replication_factor, .. } = self;
        let place = self.datacenter.as_deref().unwrap_or("replication_factor").replace('\'', "''");
        format!(
            "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = \
             {{'class': 'NetworkTopologyStrategy', '{place}': {replication_factor}}}"
        )
    }

    /// Statement that records the version of the tables.
    pub fn record_version(&self, version: i32) -> String {
        self.record(PART, version)
    }

    /// Statement that records the least version that may read the tables.
    pub fn record_least(&self, least: i32) -> String {
        self.record(LEAST_PART, least)
    }

    fn record(&self, part: &str, version: i32) -> String {
        let keyspace = &self.keyspace;
        format!(
            "INSERT INTO {keyspace}.schema_version (part, version, applied_at) VALUES ('{part}', {version}, toTimestamp(now()))"
        )
    }

    /// All statements from nothing, as `murre schema print` shows them.
    pub fn script(&self) -> String {
        let mut statements = vec![self.create_keyspace()];
        for step in STEPS {
            statements.extend((step.statements)(self));
            statements.push(self.record_least(step.least));
            statements.push(self.record_version(step.version));
        }
        statements.iter().map(|statement| format!("{statement};\n")).collect::<Vec<_>>().join("\n")
    }
}

/// The `part` of `schema_version` that has the versions of the tables.
pub const PART: &str = "murre";
/// The `part` that has the least versions that may read them.
pub const LEAST_PART: &str = "least";

impl Table {
    fn create(&self, layout: &Layout) -> String {
        let columns: String = self.columns.iter().map(|c| format!("    {} {},\n", c.name, c.cql)).collect();
        let of = |role: Role| {
            let names = self.columns.iter().filter(|c| c.role == role).map(|c| c.name);
            names.collect::<Vec<_>>()
        };
        let mut key = vec![format!("({})", of(Role::Partition).join(", "))];
        key.extend(of(Role::Clustering).iter().map(|name| (*name).to_owned()));
        let mut with = vec![format!("comment = '{}'", self.comment)];
        with.extend(self.options.as_ref().map(|options| options.spell(layout)).unwrap_or_default());
        format!(
            "CREATE TABLE IF NOT EXISTS {}.{} (\n{columns}    PRIMARY KEY ({})\n) WITH {}",
            layout.keyspace,
            self.name,
            key.join(", "),
            with.join("\n    AND ")
        )
    }
}

impl Options {
    fn spell(&self, layout: &Layout) -> Vec<String> {
        let mut with = vec![
            // A row that was written by hand without a TTL must not stay for ever.
            format!("default_time_to_live = {IDLE_SECONDS_MAX}"),
            format!("gc_grace_seconds = {}", self.gc_grace_seconds),
            format!("compaction = {}", self.compaction(layout.server)),
        ];
        match layout.server {
            // A hello reads some hundred bytes: it should not decompress 16 KiB for them. ScyllaDB's default is 4 KiB
            // anyway.
            Server::Cassandra(_) => {
                with.push("compression = {'class': 'LZ4Compressor', 'chunk_length_in_kb': 4}".to_owned());
            }
            // With one copy there is nothing to repair.
            Server::Scylla { .. } if layout.replication_factor > 1 => {
                with.push(format!("tombstone_gc = {{'mode': '{}'}}", self.tombstone_gc));
            }
            Server::Scylla { .. } => {}
        }
        with
    }

    fn compaction(&self, server: Server) -> &'static str {
        match (server, self.read_mostly) {
            (Server::Scylla { incremental: true }, true) => {
                "{'class': 'IncrementalCompactionStrategy', 'space_amplification_goal': '1.5'}"
            }
            (Server::Scylla { incremental: true }, false) => "{'class': 'IncrementalCompactionStrategy'}",
            (Server::Cassandra(5..), true) => "{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'L4'}",
            (Server::Cassandra(5..), false) => "{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'}",
            (_, true) => "{'class': 'LeveledCompactionStrategy'}",
            (_, false) => "{'class': 'SizeTieredCompactionStrategy'}",
        }
    }
}
