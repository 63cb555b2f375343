//! Everything that knows io_uring.
