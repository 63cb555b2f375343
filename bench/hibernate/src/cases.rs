//! Single cases beside the race.
