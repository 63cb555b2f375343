//! The edge fed with bytes, without any socket.
