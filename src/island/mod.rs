//! The one async runtime: admin HTTP and whatever is not hot.
