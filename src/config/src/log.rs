//! `log.*`: lines on standard error.

use tracing_subscriber::filter::Targets;

use super::key::settings;
use super::{parse, words};

settings! {
    /// `log.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Log as LOG at [log] {
        pub level: Targets = "log.level" [live], "info",
            "error, warn, info, debug, trace or off, or directives as info,murre::clients=debug",
            "Level of the log on standard error. debug adds the events of each client.",
            |raw| words::targets(raw.text()?);
        pub format: LogFormat = "log.format", "text",
            "text, or json for one object a line",
            "Form of a log line.",
            parse::word([("text", LogFormat::Text), ("json", LogFormat::Json)]);
        pub color: bool = "log.color", "false",
            "true or false",
            "Colours the log.",
            parse::flag;
    }
}

/// `log.format`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}
