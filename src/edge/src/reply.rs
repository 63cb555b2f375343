//! Answers of the edge itself.

use protocol::webpush::errno::ApiError;

/// Answer that needs no machine.
pub(super) enum Reply {
    Fault(ApiError),
    /// A refusal with `Retry-After` in seconds.
    FaultUntil(ApiError, u32),
    /// 405 with the allowed methods.
    WrongMethod(ApiError, &'static str),
    /// Answer to OPTIONS: the requested headers, and the methods of the path.
    Options(Option<Box<[u8]>>, &'static str),
    /// Answer to HEAD of a path that only takes POST or DELETE.
    Empty,
    Page(Box<str>),
    /// The page of `/`; true for HTML.
    Front(bool),
    /// Boot of this node.
    Boot,
    /// Answer to GET of an endpoint.
    Discovery,
}

impl Reply {
    /// Returns the status of the response.
    pub(super) fn status(&self) -> u16 {
        match self {
            Reply::Fault(fault) | Reply::FaultUntil(fault, _) => fault.row().status,
            Reply::WrongMethod(..) => 405,
            Reply::Options(..) | Reply::Empty | Reply::Page(_) | Reply::Front(_) | Reply::Boot | Reply::Discovery => {
                200
            }
        }
    }
}
