//! Tests of FCM.
