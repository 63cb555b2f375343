//! The statements of each operation of the port.
//!
//! Timestamps (ARCHITECTURE.md 8.8): a message at its clock, deleted at exactly that, a presence at the time of its
//! session and cleared at exactly that, low water at its own value. Rows of the user itself are later than everything
//! read of it, and their clock goes into the user clock.
//!
//! Lives on: the store's runtime, inside the task of one operation.

pub(super) mod bridges;

pub(super) mod changes;

mod idle_users;
pub(super) mod low_water;

mod pages;

pub(super) mod read;

mod settle;

mod store;

mod tried;

pub(super) mod updates;

pub(super) mod users;

use machine::StoreOp;

use super::client::StatementContext;
use super::port::Answer;
use super::user_cache::UserCache;

/// Does one operation.
pub(super) async fn carry_out(context: &StatementContext<'_>, known: &UserCache, op: &StoreOp) -> Answer {
    match op {
        StoreOp::LoadUser { uaid } => users::load(context, known, *uaid).await,
        StoreOp::Locate { uaid, chid } => users::locate(context, known, *uaid, *chid).await,
        StoreOp::Touch { uaid, seen } => users::touch(context, *uaid, *seen).await,
        StoreOp::Register { .. } => users::register(context, known, op).await,
        StoreOp::Subscribe { uaid, chid, key, at } => users::subscribe(context, known, *uaid, (*chid, *key), *at).await,
        StoreOp::SetContact { uaid, contact, durable: _ } => users::set_contact(context, known, *uaid, contact).await,
        StoreOp::SetPresence { uaid, presence } => users::set_presence(context, *uaid, presence).await,
        StoreOp::ClearPresence { uaid, presence } => users::clear_presence(context, *uaid, presence).await,
        StoreOp::Unregister { uaid, chid, at } => users::unregister(context, known, *uaid, *chid, *at).await,
        StoreOp::DropUser { uaid } => users::drop(context, known, *uaid).await,
        StoreOp::DropIdle { uaid } => idle_users::drop(context, known, *uaid).await,
        StoreOp::SetBridge { uaid, bridge } => bridges::set(context, known, *uaid, bridge).await,
        StoreOp::MarkRefused { uaid, registered, at } => bridges::mark(context, *uaid, *registered, Some(*at)).await,
        StoreOp::ClearRefused { uaid, registered } => bridges::mark(context, *uaid, *registered, None).await,
        StoreOp::DropBridged { uaid, registered } => bridges::drop(context, known, *uaid, *registered).await,
        StoreOp::Publish { message, checked } => store::publish(context, known, message, *checked).await,
        StoreOp::Save { messages } => store::save(context, known, messages).await,
        StoreOp::Topics { uaid, after, limit, now } => pages::topics(context, known, *uaid, *after, *limit, *now).await,
        StoreOp::Messages { uaid, after, limit, now } => {
            pages::messages(context, known, *uaid, *after, *limit, *now).await
        }
        StoreOp::Read { row, now } => pages::read(context, known, row, *now).await,
        StoreOp::Settle { rows, low_water, durable: _ } => settle::settle(context, known, rows, *low_water).await,
        StoreOp::Tried { rows } => tried::tried(context, rows).await,
    }
}
