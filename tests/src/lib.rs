//! End to end, with real peers: all of it is in `tests/it`. Nothing depends on this crate.
