//! Sans-IO codecs: bytes <-> values.
