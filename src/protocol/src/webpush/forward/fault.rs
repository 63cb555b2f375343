//! Refusals of forward endpoints: their part of the table of refusals.

/// Reason to refuse a request of a forward endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardFault {
    /// A request for a forward endpoint without `forward.create_token`.
    Creator,
    /// More requests for forward endpoints than `forward.create_rate`.
    TooManyCreated,
    /// A request for a forward endpoint that is no JSON object of the known members.
    Json,
    /// A URL that may not be the target of a forward endpoint.
    Target,
    /// `server_pubkey` is no point on P-256.
    PublicKey,
    /// `forward_privkey` is no key that may sign the calls of a forward endpoint.
    PrivateKey,
    /// A message to a forward endpoint that is not encrypted as aes128gcm.
    Encoding,
    /// The target of a forward endpoint answered 400.
    Refused,
    /// The target answered 404.
    NotFound,
    /// The target answered 410.
    Gone,
    /// The target answered 413.
    TooLarge,
    /// The target answered 429.
    TooMany,
    /// The target answered 401 or 403.
    Authentication,
    /// There is no connection to the target, or its answer is none of the expected ones.
    Unreachable,
    /// The target did not answer in time.
    NoAnswer,
    /// The target is down, or too many calls are under way.
    Unavailable,
}

impl ForwardFault {
    /// Returns status, errno and message of the response.
    pub fn row(self) -> (u16, Option<u16>, &'static str) {
        match self {
            ForwardFault::Creator => (401, Some(109), "This server needs a token to create forward endpoints"),
            ForwardFault::TooManyCreated => (429, Some(203), "Too many forward endpoints are created, retry later"),
            ForwardFault::Json => (400, Some(108), "The body must be a JSON object with the member url"),
            ForwardFault::Target => (400, Some(108), "url is no target that this server forwards to"),
            ForwardFault::PublicKey => (400, Some(108), "server_pubkey must be a P-256 key in base64url"),
            ForwardFault::PrivateKey => {
                (400, Some(108), "forward_privkey must be a P-256 key in PEM, beside another server_pubkey")
            }
            ForwardFault::Encoding => (400, Some(110), "Content-Encoding must be aes128gcm"),
            ForwardFault::Refused => (400, None, "The target of this endpoint refused the request"),
            ForwardFault::NotFound => (404, Some(102), "The target of this endpoint does not exist"),
            ForwardFault::Gone => (410, Some(106), "The target of this endpoint has ended"),
            ForwardFault::TooLarge => (413, Some(104), "Payload too large for the target of this endpoint"),
            ForwardFault::TooMany => (429, Some(201), "The target of this endpoint takes no more messages now"),
            ForwardFault::Authentication => (502, Some(901), "The target of this endpoint does not accept this server"),
            ForwardFault::Unreachable => (502, Some(902), "Cannot reach the target of this endpoint"),
            ForwardFault::NoAnswer => (502, Some(903), "The target of this endpoint did not answer in time"),
            ForwardFault::Unavailable => (503, Some(201), "The target of this endpoint is unavailable, retry later"),
        }
    }
}
