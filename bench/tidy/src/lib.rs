//! The repository's own rules, as tests (docs/STYLE.md, rule 22).
//!
//! Each check is a function from files to complaints, and each has a test that feeds it a bad sample: a check
//! that cannot fail is a defect. `cargo test -p tidy` runs them all.

#![cfg(test)]

mod deploy;
mod docs;
mod manifests;
mod protocol;
mod rust;
mod tree;

use tree::Tree;

/// Fails with every complaint, one a line.
fn refuse(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{} complaints:\n{}\n", complaints.len(), complaints.join("\n"));
}

#[test]
fn files_are_short_enough_to_read_in_a_sitting() {
    refuse(rust::file_lengths(&Tree::load()));
}

#[test]
fn lines_fit_and_sources_are_ascii() {
    refuse(rust::lines(&Tree::load()));
}

#[test]
fn no_banned_word_is_left_behind() {
    refuse(rust::banned_words(&Tree::load()));
}

#[test]
fn tests_that_are_left_out_name_what_they_need() {
    refuse(rust::ignored_tests(&Tree::load()));
}

#[test]
fn lints_of_the_workspace_are_switched_off_in_their_homes_only() {
    refuse(rust::lint_exceptions(&Tree::load()));
}

#[test]
fn every_source_file_belongs_to_a_crate() {
    refuse(rust::orphans(&Tree::load()));
}

#[test]
fn commands_reach_the_machine_through_one_admission() {
    refuse(rust::admissions(&Tree::load()));
}

#[test]
fn unwraps_name_their_invariant() {
    refuse(rust::unwraps(&Tree::load()));
}

#[test]
fn public_items_and_files_are_documented() {
    refuse(rust::documented(&Tree::load()));
}

#[test]
fn every_mail_says_what_happens_when_it_is_dropped() {
    refuse(rust::mail_recoverers(&Tree::load()));
}

#[test]
fn the_machine_is_pure_and_walls_within_crates_stand() {
    refuse(rust::walls(&Tree::load()));
}

#[test]
fn every_limit_is_explained() {
    refuse(docs::limits(&Tree::load()));
}

#[test]
fn every_document_has_one_title() {
    refuse(docs::titles(&Tree::load()));
}

#[test]
fn every_relative_link_resolves() {
    refuse(docs::links(&Tree::load()));
}

#[test]
fn every_row_of_the_protocol_table_names_code_and_tests_that_exist() {
    refuse(protocol::table(&Tree::load()));
}

#[test]
fn every_fact_of_the_contract_has_a_row() {
    refuse(protocol::required(&Tree::load()));
}

#[test]
fn numbers_have_one_name_each_and_operators_are_sent_to_those_that_exist() {
    refuse(docs::numbers(&Tree::load()));
}

#[test]
fn no_path_of_somebodys_machine_is_written_down() {
    refuse(docs::machine_paths(&Tree::load()));
}

#[test]
fn the_image_can_be_built_from_this_tree() {
    refuse(deploy::dockerfile(&Tree::load()));
}

#[test]
fn the_seccomp_profile_is_valid_and_allows_io_uring() {
    refuse(deploy::seccomp(&Tree::load()));
}

#[test]
fn the_manifests_run_nodes_that_murre_and_kubernetes_take() {
    refuse(manifests::manifests(&Tree::load()));
}

#[test]
fn commands_in_documents_use_flags_that_exist() {
    refuse(deploy::flags(&Tree::load()));
}

#[test]
fn variables_in_documents_are_those_of_keys() {
    refuse(deploy::variables(&Tree::load()));
}

#[test]
fn readme_and_ci_run_the_same_check() {
    refuse(deploy::one_check(&Tree::load()));
}
