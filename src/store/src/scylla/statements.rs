//! The text of every statement, and rows as bound values.

use std::time::Duration;

use scylla::serialize::SerializationError;
use scylla::serialize::row::{RowSerializationContext, SerializeRow};
use scylla::serialize::writers::RowWriter;

use super::rows::RowLocation;
use super::stats::Statement;
use crate::shared::schema::family::{
    BRIDGE, CHANNEL, CONTACT, DELETED, LOW_WATER, MESSAGE, RECORD, SAVED, TOPIC, USER_CLOCK,
};

/// Change of one row of `user` or `message`.
pub(super) enum Change {
    UserPut {
        family: i8,
        key: Vec<u8>,
        value: Vec<u8>,
        at: i64,
        ttl: i32,
    },
    UserDelete {
        family: i8,
        key: Vec<u8>,
        at: i64,
    },
    /// Every channel row up to this timestamp.
    ChannelSweep {
        at: i64,
    },
    MessagePut {
        place: RowLocation,
        value: Vec<u8>,
        at: i64,
        ttl: i32,
    },
    MessageDelete {
        place: RowLocation,
        at: i64,
    },
}

impl Change {
    pub(super) fn statement(&self) -> Statement {
        match self {
            Change::UserPut { .. } => Statement::UserPut,
            Change::UserDelete { .. } => Statement::UserDelete,
            Change::ChannelSweep { .. } => Statement::ChannelSweep,
            Change::MessagePut { .. } => Statement::MessagePut,
            Change::MessageDelete { .. } => Statement::MessageDelete,
        }
    }

    /// Returns true if the change is one of `message`.
    pub(super) fn of_messages(&self) -> bool {
        matches!(self, Change::MessagePut { .. } | Change::MessageDelete { .. })
    }

    /// Number of bound values.
    pub(super) fn values(&self) -> usize {
        match self {
            Change::UserPut { .. } => 6,
            Change::UserDelete { .. } => 4,
            Change::ChannelSweep { .. } => 2,
            Change::MessagePut { .. } => 8,
            Change::MessageDelete { .. } => 6,
        }
    }

    /// Approximate size of the change in a batch.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Change::UserPut { value, .. } | Change::MessagePut { value, .. } => value.len() + CHANGE_BYTES,
            Change::UserDelete { .. } | Change::ChannelSweep { .. } | Change::MessageDelete { .. } => CHANGE_BYTES,
        }
    }
}

/// Approximate size of a change in a batch beside its value, bytes.
const CHANGE_BYTES: usize = 100;
/// A change of one user's row as bound values.
pub(super) struct Bound<'a>(pub(super) &'a [u8], pub(super) &'a Change);

impl SerializeRow for Bound<'_> {
    fn serialize(&self, ctx: &RowSerializationContext<'_>, writer: &mut RowWriter) -> Result<(), SerializationError> {
        let uaid = self.0;
        match self.1 {
            Change::UserPut { family, key, value, at, ttl } => {
                (at, ttl, value, uaid, family, key).serialize(ctx, writer)
            }
            Change::UserDelete { family, key, at } => (at, uaid, family, key).serialize(ctx, writer),
            Change::ChannelSweep { at } => (at, uaid).serialize(ctx, writer),
            Change::MessagePut { place, value, at, ttl } => {
                (at, ttl, value, uaid, place.family, place.clock, place.origin, &place.key).serialize(ctx, writer)
            }
            Change::MessageDelete { place, at } => {
                (at, uaid, place.family, place.clock, place.origin, &place.key).serialize(ctx, writer)
            }
        }
    }

    fn is_empty(&self) -> bool {
        false
    }
}

/// Returns true if a statement is sent at the consistency of reads.
pub(super) fn reads(statement: Statement) -> bool {
    matches!(
        statement,
        Statement::UserRead
            | Statement::UserCheck
            | Statement::UserTimes
            | Statement::TopicsRead
            | Statement::TopicRead
            | Statement::UpdatesRead
            | Statement::MessagesRead
            | Statement::RowRead
            | Statement::KeysRead
            | Statement::KeysBefore
            | Statement::KeysBehind
            | Statement::UsersFirst
            | Statement::UsersBehind
            | Statement::NodeRead
            | Statement::LeaseRead
            | Statement::DebtsRead
    )
}

/// Returns true if a statement may be sent to another node too when the first is late: short reads that a user agent or
/// a sender waits for.
pub(super) fn hastens(statement: Statement) -> bool {
    matches!(
        statement,
        Statement::UserRead
            | Statement::UserCheck
            | Statement::TopicsRead
            | Statement::TopicRead
            | Statement::UpdatesRead
            | Statement::MessagesRead
            | Statement::RowRead
    )
}

/// The statement with a time after which ScyllaDB gives it up. Cassandra refuses the clause.
pub(super) fn timed(text: &str, time: Duration) -> String {
    let time = format!("USING TIMEOUT {}ms", time.as_millis().max(1));
    if text.starts_with("SELECT ") {
        format!("{text} {time}")
    } else {
        text.replacen("USING TIMESTAMP ?", &format!("{time} AND TIMESTAMP ?"), 1)
    }
}

/// The statement's text. Batches have no text of their own; theirs is that of a put.
pub(super) fn text(statement: Statement, keyspace: &str) -> String {
    let user = format!("{keyspace}.user");
    let message = format!("{keyspace}.message");
    let row = "uaid = ? AND family = ? AND clock = ? AND origin = ? AND key = ?";
    match statement {
        Statement::UserRead => format!("SELECT family, key, value FROM {user} WHERE uaid = ?"),
        // Deleted, bridge, record, low water, user clock, contact and one channel.
        Statement::UserCheck => format!(
            "SELECT family, key, value FROM {user} WHERE uaid = ? AND (family, key) IN \
             (({DELETED}, 0x), ({BRIDGE}, 0x), ({RECORD}, 0x), ({LOW_WATER}, 0x), ({USER_CLOCK}, 0x), ({CONTACT}, 0x), \
             ({CHANNEL}, ?))"
        ),
        Statement::UserTimes => {
            format!("SELECT family, key, value, WRITETIME(value) FROM {user} WHERE uaid = ?")
        }
        Statement::UserPut | Statement::UserBatch => {
            format!("UPDATE {user} USING TIMESTAMP ? AND TTL ? SET value = ? WHERE uaid = ? AND family = ? AND key = ?")
        }
        Statement::UserDelete => {
            format!("DELETE FROM {user} USING TIMESTAMP ? WHERE uaid = ? AND family = ? AND key = ?")
        }
        Statement::UserDrop => format!("DELETE FROM {user} USING TIMESTAMP ? WHERE uaid = ?"),
        // From the late row on, or from a topic: saved rows are read only of a user who has that row.
        Statement::TopicsRead => format!(
            "SELECT family, key, value FROM {message} WHERE uaid = ? AND (family, clock, origin, key) > (?, 0, 0, ?) \
             AND (family, clock, origin, key) < ({SAVED}, 0, 0, 0x)"
        ),
        Statement::TopicRead => format!(
            "SELECT value FROM {message} WHERE uaid = ? AND family = {TOPIC} AND clock = 0 AND origin = 0 AND key = ?"
        ),
        Statement::UpdatesRead => format!(
            "SELECT key, value FROM {message} WHERE uaid = ? AND family = {TOPIC} AND clock = 0 AND origin = 0 AND key > ? \
             AND key < ?"
        ),
        // The whole prefix in both bounds: ScyllaDB takes a relation of several columns from the first one on only,
        // and none of single columns beside it.
        Statement::MessagesRead => format!(
            "SELECT clock, origin, key, value FROM {message} WHERE uaid = ? AND (family, clock, origin) > (?, ?, ?) \
             AND (family, clock, origin) <= (?, ?, ?)"
        ),
        Statement::RowRead => format!(
            "SELECT family, value FROM {message} WHERE uaid = ? AND family IN ({SAVED}, {MESSAGE}) AND clock = ? AND origin = ? AND \
             key = ?"
        ),
        Statement::KeysRead | Statement::KeysBefore | Statement::KeysBehind => keys_text(statement, &message),
        Statement::MessagePut | Statement::MessageBatch => {
            format!("UPDATE {message} USING TIMESTAMP ? AND TTL ? SET value = ? WHERE {row}")
        }
        Statement::MessageDelete => format!("DELETE FROM {message} USING TIMESTAMP ? WHERE {row}"),
        Statement::MessageDrop => format!("DELETE FROM {message} USING TIMESTAMP ? WHERE uaid = ?"),
        Statement::MessageReclaim => {
            format!("DELETE FROM {message} USING TIMESTAMP ? WHERE uaid = ? AND family = {MESSAGE} AND clock <= ?")
        }
        Statement::ChannelSweep => {
            format!("DELETE FROM {user} USING TIMESTAMP ? WHERE uaid = ? AND family = {CHANNEL}")
        }
        Statement::UsersFirst => format!("SELECT uaid, family, key, value FROM {user}"),
        Statement::UsersBehind => {
            format!("SELECT uaid, family, key, value FROM {user} WHERE token(uaid) > token(?)")
        }
        Statement::NodeRead
        | Statement::NodeEnter
        | Statement::NodeLeave
        | Statement::LeaseRead
        | Statement::LeaseRenew
        | Statement::DebtWrite
        | Statement::DebtClear
        | Statement::DebtsRead => node_text(statement, keyspace),
        Statement::Probe => format!(
            "UPDATE {user} USING TIMESTAMP ? AND TTL ? SET value = ? WHERE uaid = ? AND family = {USER_CLOCK} AND key = 0x"
        ),
    }
}

/// The text of a statement that reads the keys of messages.
fn keys_text(statement: Statement, message: &str) -> String {
    match statement {
        Statement::KeysRead => {
            format!("SELECT family, clock, origin, key, WRITETIME(value) FROM {message} WHERE uaid = ?")
        }
        // What stands before the messages, and the messages behind low water: not the tombstones below it.
        Statement::KeysBefore => format!(
            "SELECT family, clock, origin, key, WRITETIME(value) FROM {message} WHERE uaid = ? AND \
             (family, clock, origin) < ({MESSAGE}, 0, 0)"
        ),
        Statement::KeysBehind => format!(
            "SELECT family, clock, origin, key, WRITETIME(value) FROM {message} WHERE uaid = ? AND \
             (family, clock, origin) > ({MESSAGE}, ?, ?)"
        ),
        _ => unreachable!("reads no keys of messages: {statement:?}"),
    }
}

/// The text of a statement of the tables of nodes.
fn node_text(statement: Statement, keyspace: &str) -> String {
    match statement {
        Statement::NodeRead => format!("SELECT boot, left_at, WRITETIME(boot) FROM {keyspace}.node WHERE url = ?"),
        Statement::NodeEnter => format!(
            "INSERT INTO {keyspace}.node (url, boot, started_at, left_at) VALUES (?, ?, ?, null) USING TIMESTAMP ?"
        ),
        Statement::NodeLeave => format!("UPDATE {keyspace}.node USING TIMESTAMP ? SET left_at = ? WHERE url = ?"),
        Statement::LeaseRead => format!("SELECT seen_at FROM {keyspace}.lease WHERE url = ? AND boot = ?"),
        Statement::LeaseRenew => {
            format!("UPDATE {keyspace}.lease USING TIMESTAMP ? AND TTL ? SET seen_at = ? WHERE url = ? AND boot = ?")
        }
        Statement::DebtWrite => {
            format!("UPDATE {keyspace}.debt USING TIMESTAMP ? AND TTL ? SET said_at = ? WHERE url = ? AND id = ?")
        }
        Statement::DebtClear => format!("DELETE FROM {keyspace}.debt USING TIMESTAMP ? WHERE url = ? AND id = ?"),
        Statement::DebtsRead => format!("SELECT id, said_at, WRITETIME(said_at) FROM {keyspace}.debt WHERE url = ?"),
        _ => unreachable!("not of the tables of nodes: {statement:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stats::STATEMENTS;
    use super::*;

    /// The clustering columns that a statement compares together, and those that it compares alone.
    fn relations(text: &str) -> (Vec<&str>, Vec<&str>) {
        let behind = text.split(" WHERE ").nth(1).unwrap_or_default();
        let clustering = ["family", "clock", "origin", "key"];
        let (together, alone): (Vec<&str>, Vec<&str>) = behind.split(" AND ").partition(|one| one.starts_with('('));
        let alone = alone.into_iter().filter(|one| clustering.iter().any(|column| one.starts_with(column))).collect();
        (together, alone)
    }

    /// Not tried on ScyllaDB: no server of it is at hand. Its grammar has the words in this order.
    #[test]
    fn every_statement_has_its_time_once_and_binds_as_before() {
        for statement in STATEMENTS {
            let text = text(*statement, "k");
            let timed = timed(&text, Duration::from_millis(2_500));
            assert_eq!(timed.matches("USING TIMEOUT 2500ms").count(), 1, "{timed}");
            assert_eq!(timed.matches("USING").count(), 1, "{timed}");
            assert_eq!(timed.matches('?').count(), text.matches('?').count(), "{timed}");
            let without = timed.replace("TIMEOUT 2500ms AND ", "").replace(" USING TIMEOUT 2500ms", "");
            assert_eq!(without, text);
        }
    }

    #[test]
    fn columns_are_compared_together_only_as_scylla_takes_it() {
        let mixed = relations("SELECT x FROM t WHERE uaid = ? AND family = ? AND (clock, origin) > (?, ?)");
        assert_eq!(mixed, (vec!["(clock, origin) > (?, ?)"], vec!["family = ?"]), "what it does not take is seen");
        for statement in STATEMENTS {
            let text = text(*statement, "k");
            let (together, alone) = relations(&text);
            assert!(together.is_empty() || alone.is_empty(), "{text}");
            assert!(together.iter().all(|one| one.starts_with("(family, ")), "{text}");
        }
    }
}
