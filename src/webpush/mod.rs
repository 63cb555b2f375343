//! The application-server side of WebPush, sans-IO: tokens, ids, headers, VAPID.
