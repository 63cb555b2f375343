//! The messages of several users, a page of each at a time.

use std::sync::Arc;

use machine::ids::{Chid, Stamp, Uaid};
use machine::message::{Message, Topic};
use machine::time::UnixSeconds;
use machine::{StoreOp, StoreReply};

use super::port::{Transfer, TransferFault};
use crate::fault::FaultKind;

/// Users whose pages are requested at once.
pub const USERS_AT_ONCE_MAX: usize = 32;
/// Messages of a page: with those of the others 32 x 32 of at most 8 KiB and their heads, 9 MB.
const PAGE_ROWS: u16 = 32;

/// Read position in the messages of one user.
#[derive(Clone, Copy)]
enum ReadCursor {
    Topics(Option<(Chid, Topic)>),
    Messages(Stamp),
    End,
}

/// Hands every unexpired message of these users to `take`, with the user's place in the list.
///
/// # Errors
/// The store cannot be read, or `take` fails.
pub fn each_row(
    store: &mut dyn Transfer,
    uaids: &[Uaid],
    now: UnixSeconds,
    take: &mut dyn FnMut(usize, Arc<Message>) -> Result<(), TransferFault>,
) -> Result<(), TransferFault> {
    for (nth, some) in uaids.chunks(USERS_AT_ONCE_MAX).enumerate() {
        let mut places = vec![ReadCursor::Topics(None); some.len()];
        loop {
            let open: Vec<usize> = (0..some.len()).filter(|at| !matches!(places[*at], ReadCursor::End)).collect();
            if open.is_empty() {
                break;
            }
            let ops = open.iter().filter_map(|at| next_page(some[*at], places[*at], now)).collect();
            for (at, reply) in open.into_iter().zip(store.ask(ops)?) {
                let StoreReply::Page(page) = reply else {
                    let said = "the store answered a read with something else: report this";
                    return Err(TransferFault::new(said, FaultKind::Lasting));
                };
                places[at] = behind(places[at], page.messages.last(), page.exhausted);
                for message in page.messages {
                    take(nth * USERS_AT_ONCE_MAX + at, message)?;
                }
            }
        }
    }
    Ok(())
}

fn next_page(uaid: Uaid, place: ReadCursor, now: UnixSeconds) -> Option<StoreOp> {
    match place {
        ReadCursor::Topics(after) => Some(StoreOp::Topics { uaid, after, limit: PAGE_ROWS, now }),
        ReadCursor::Messages(after) => Some(StoreOp::Messages { uaid, after, limit: PAGE_ROWS, now }),
        ReadCursor::End => None,
    }
}

fn behind(place: ReadCursor, last: Option<&Arc<Message>>, exhausted: bool) -> ReadCursor {
    let last = last.filter(|_| !exhausted);
    match place {
        ReadCursor::Topics(_) => match last.and_then(|last| Some((last.chid, last.topic?))) {
            Some(after) => ReadCursor::Topics(Some(after)),
            None => ReadCursor::Messages(Stamp::default()),
        },
        ReadCursor::Messages(_) => last.map_or(ReadCursor::End, |last| ReadCursor::Messages(last.stamp)),
        ReadCursor::End => ReadCursor::End,
    }
}
