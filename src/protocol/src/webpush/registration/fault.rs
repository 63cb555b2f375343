//! Refusals of the registration API: their part of the table of refusals.

/// Reason to refuse a request of the registration API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegistrationFault {
    /// No type of users that this server registers.
    Type,
    /// The body of a registration cannot be read.
    Body,
    Token,
    Channel,
    /// The key of a channel is no point on P-256.
    Key,
    Aps,
    /// No profile of this name is configured.
    App,
    /// The secret of a registered user is missing or wrong.
    Secret,
    /// The user or the channel is registered in another way: another kind of device, or another key.
    Conflict,
    /// The user has `limits::CHANNELS_MAX` channels.
    Full,
    /// No call of the registration API has this path.
    Path,
    /// A known path of the registration API, another method.
    Method,
    /// More users or channels than the address of the caller may make (`strangers.*`).
    TooMany,
}

impl RegistrationFault {
    /// Returns status, errno and message of the response.
    pub fn row(self) -> (u16, Option<u16>, &'static str) {
        match self {
            RegistrationFault::Type => (400, Some(108), "Unknown type of registration"),
            RegistrationFault::Body => (400, Some(108), "Invalid body of a registration"),
            RegistrationFault::Token => (400, Some(108), "Invalid token"),
            RegistrationFault::Channel => (400, Some(108), "Invalid channelID"),
            RegistrationFault::Key => (400, Some(108), "Invalid key"),
            RegistrationFault::Aps => (400, Some(108), "Invalid aps"),
            RegistrationFault::App => (400, Some(106), "Unknown app"),
            RegistrationFault::Secret => (401, Some(109), "Missing or wrong secret"),
            RegistrationFault::Conflict => (409, Some(108), "Already registered in another way"),
            RegistrationFault::Full => (400, Some(108), "Too many channels"),
            RegistrationFault::Path => (404, Some(102), "Not found"),
            RegistrationFault::Method => (405, Some(108), "Method not allowed"),
            RegistrationFault::TooMany => (429, Some(203), "Too many registrations, retry later"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RegistrationFault::*;

    #[test]
    fn every_refusal_has_its_status_and_errno() {
        let rows = [
            (400, 108, &[Type, Body, Token, Channel, Key, Aps, Full][..]),
            (400, 106, &[App]),
            (401, 109, &[Secret]),
            (404, 102, &[Path]),
            (405, 108, &[Method]),
            (409, 108, &[Conflict]),
            (429, 203, &[TooMany]),
        ];
        for (status, errno, faults) in rows {
            for fault in faults {
                let row = fault.row();
                assert_eq!((row.0, row.1), (status, Some(errno)), "{fault:?}");
            }
        }
    }
}
