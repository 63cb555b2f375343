//! Tests of the bridges.
