//! The laws of storage, written against the port and run against every backend.
//!
//! A law is a function of a [`BlockingStore`]. [`laws!`] makes those of [`bridges`], [`rows`], [`simplepush`] and
//! [`users`] tests of every backend; [`random`] compares backends with the model on random operations. The model is two
//! backends: alone, and as several nodes share it. They differ in the laws of [`conflicts`].

mod blocking_store;

mod bridges;
mod conflicts;
mod rows;
mod simplepush;
mod users;

mod random;

use std::sync::Arc;

use machine::model::Model as State;

use super::embedded::Embedded;
use super::model::Model;
use super::testing::patient;
use bridges::*;
use conflicts::*;
use rows::*;
use simplepush::*;
use users::*;

pub(crate) use super::testing::sample::{NOW, chid, contact, message, register, stamp, topical, uaid, update};
pub(crate) use blocking_store::BlockingStore;

fn on_model(law: fn(&mut BlockingStore)) {
    law(&mut BlockingStore::new(Model::new(u64::MAX).port(Arc::new(|| {}))));
}

/// The model as several nodes share it: its deletes stand, and a checked publish reads nothing.
fn on_shared(law: fn(&mut BlockingStore)) {
    law(&mut BlockingStore::new(Model::of(State::shared()).port(Arc::new(|| {}))));
}

fn on_embedded(law: fn(&mut BlockingStore)) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), patient()).expect("it opens");
    law(&mut BlockingStore::new(store.port(Arc::new(|| {}))));
    store.close();
}

fn on_scylla(law: fn(&mut BlockingStore)) {
    let store = super::testing::database::open();
    let mut port = BlockingStore::new(Box::new(super::scylla::tests::Apart::new(&store)));
    law(&mut port);
    drop(port);
    store.close();
}

fn on_replicas(law: fn(&mut BlockingStore)) {
    super::scylla::tests::replicas::with_port(|port| law(&mut BlockingStore::new(port)));
}

/// Each law as a test of every backend; `on_model` and the others like it stand beside the laws.
macro_rules! laws {
    ($($law:ident),+ $(,)?) => {
        mod model { $(#[test] fn $law() { super::on_model(super::$law); })+ }
        mod shared { $(#[test] fn $law() { super::on_shared(super::$law); })+ }
        mod embedded { $(#[test] fn $law() { super::on_embedded(super::$law); })+ }
        mod scylla {
            $(#[test] #[ignore = "needs Cassandra: bench/check test"] fn $law() { super::on_scylla(super::$law); })+
        }
        mod replicas {
            $(#[test] #[ignore = "needs Cassandra: bench/check test"] fn $law() { super::on_replicas(super::$law); })+
        }
    };
}

pub(crate) use laws;

laws! {
    acknowledged_is_read_back,
    publish_checks_user_and_channel,
    topics_and_versions,
    contacts_are_replaced_whole,
    the_minimum_urgency_stands,
    publish_checks_the_mode,
    only_a_higher_version_overwrites,
    pages_are_merged_in_order,
    low_water_covers_message_rows,
    unregister_and_drop_remove_every_row,
    only_a_user_without_a_channel_is_idle,
    what_comes_again_begins_empty,
    expired_rows_do_not_block,
    tries_stay_with_their_version,
    one_users_operations_keep_their_order,
    channels_are_bounded,
    a_subscription_makes_no_user_and_replaces_no_key,
    a_user_is_located_with_one_channel,
    what_is_saved_between_two_pages_is_seen,
    a_bridged_user_is_read_back_and_stores_nothing,
    a_bridge_is_replaced_by_a_newer_one_only,
    a_refusal_is_noted_once_for_its_token,
    only_the_user_of_this_token_is_dropped,
}

#[test]
fn the_model_clears_presence_exactly() {
    on_model(presence_is_cleared_exactly);
}

#[test]
fn the_shared_model_clears_presence_exactly() {
    on_shared(presence_is_cleared_exactly);
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn scylla_clears_presence_exactly() {
    on_scylla(presence_is_cleared_exactly);
}

#[test]
fn what_is_deleted_on_the_shared_model_stays_dead() {
    on_shared(what_was_deleted_stays_dead);
}

#[test]
fn a_cleared_presence_stays_cleared_on_the_shared_model() {
    on_shared(a_cleared_presence_stays_cleared);
}

#[test]
fn a_presence_row_waits_for_its_user_on_the_shared_model() {
    on_shared(a_presence_row_waits_for_its_user);
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_presence_row_waits_for_its_user_on_scylla() {
    on_scylla(a_presence_row_waits_for_its_user);
}

#[test]
fn the_shared_model_hides_a_checked_publish_below_low_water() {
    on_shared(a_checked_publish_reads_nothing);
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn replicas_clear_presence_exactly() {
    on_replicas(presence_is_cleared_exactly);
}
