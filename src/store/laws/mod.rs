//! The laws of storage, written against the port and run against every backend.
//!
//! A law is a function of a [`Hand`]. [`laws!`] makes those of [`rows`], [`simple`] and [`users`] tests of
//! every backend; [`random`] compares backends with the model on operations that nobody thought of.

mod hand;
mod sample;

mod rows;
mod simple;
mod users;

mod random;

use std::sync::Arc;
use std::time::Duration;

use super::embedded::{Embedded, Options};
use super::model::Model;
use rows::*;
use simple::*;
use users::*;

pub(crate) use hand::Hand;
pub(crate) use sample::{NOW, chid, contact, message, register, topical, uaid, update};

fn on_model(law: fn(&mut Hand)) {
    law(&mut Hand::new(Model::new(u64::MAX).port(Arc::new(|| {}))));
}

/// A disk that other tests keep busy is no stall.
fn patient() -> Options {
    Options { stall_after: Duration::from_secs(60), ..Options::default() }
}

fn on_embedded(law: fn(&mut Hand)) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), patient()).expect("it opens");
    law(&mut Hand::new(store.port(Arc::new(|| {}))));
    store.close();
}

fn on_scylla(law: fn(&mut Hand)) {
    let store = super::scylla::tests::open();
    let mut hand = Hand::new(Box::new(super::scylla::tests::Apart::new(&store)));
    law(&mut hand);
    drop(hand);
    store.close();
}

/// Each law as a test of every backend; `on_model`, `on_embedded` and `on_scylla` stand beside the laws.
macro_rules! laws {
    ($($law:ident),+ $(,)?) => {
        mod model { $(#[test] fn $law() { super::on_model(super::$law); })+ }
        mod embedded { $(#[test] fn $law() { super::on_embedded(super::$law); })+ }
        mod scylla { $(#[test] fn $law() { super::on_scylla(super::$law); })+ }
    };
}

pub(crate) use laws;

laws! {
    acknowledged_is_read_back,
    publish_checks_user_and_channel,
    topics_and_versions,
    contacts_are_replaced_whole,
    publish_checks_the_mode,
    only_a_higher_version_overwrites,
    pages_are_merged_in_order,
    low_water_covers_message_rows,
    unregister_and_drop_remove_every_row,
    what_comes_again_begins_empty,
    expired_rows_do_not_block,
    tries_stay_with_their_version,
    one_users_operations_keep_their_order,
    channels_are_bounded,
    a_user_is_located_with_one_channel,
    what_is_saved_between_two_pages_is_seen,
}

#[test]
fn the_model_clears_presence_exactly() {
    on_model(presence_is_cleared_exactly);
}

#[test]
fn scylla_clears_presence_exactly() {
    on_scylla(presence_is_cleared_exactly);
}
