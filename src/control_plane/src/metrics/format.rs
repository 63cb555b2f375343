//! The two formats of `/metrics`: Prometheus text 0.0.4, and OpenMetrics 1.0 for scrapers that ask for it.

use protocol::wire::list;

/// A format and its media type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// Prometheus text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    Open,
}

impl Format {
    /// The format that a scraper prefers, by its `Accept` fields (RFC 9110 section 12.5.1). Without a preference for
    /// OpenMetrics 1.0 it is the text format, which every scraper reads.
    pub fn negotiate<'a>(accept: impl Iterator<Item = &'a str>) -> Format {
        let (mut open, mut text) = (0, 0);
        for range in accept.flat_map(|field| list::elements(field.as_bytes())) {
            let mut parts = list::split(b';', range).filter_map(|part| std::str::from_utf8(part).ok()).map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
            let named = |name: &str| parameters.iter().find(|(is, _)| is.trim().eq_ignore_ascii_case(name));
            let weight = named("q").map_or(1_000, |(_, value)| weight(value.trim()));
            let version = named("version").map(|(_, value)| value.trim().trim_matches('"'));
            match media.as_str() {
                "application/openmetrics-text" if version.is_none_or(|version| version == "1.0.0") => {
                    open = weight.max(open);
                }
                "text/plain" | "text/*" | "*/*" => text = weight.max(text),
                _ => {}
            }
        }
        if open > 0 && open >= text { Format::Open } else { Format::Text }
    }

    /// The value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The exposition in this format, of one in OpenMetrics.
    pub fn of(self, open: String) -> String {
        match self {
            Format::Text => text(&open),
            Format::Open => open,
        }
    }
}

/// A weight in thousandths; a weight that cannot be read is none.
fn weight(text: &str) -> u32 {
    let weight = text.parse::<f64>().unwrap_or(0.0);
    (weight.clamp(0.0, 1.0) * 1_000.0) as u32
}

/// Spells an OpenMetrics exposition as Prometheus text: there a family of counters has the name of its samples, and no
/// comment but HELP and TYPE means anything.
fn text(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, sentence)) = help.take() {
                text += &format!("# HELP {name}{suffix} {sentence}\n");
            }
            text += &format!("# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with('#') {
            text += line;
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_given_to_scrapers_that_prefer_it() {
        let format = |accept: &[&str]| Format::negotiate(accept.iter().copied());
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;\
                          q=0.5,text/plain;version=0.0.4;q=0.25,*/*;q=0.1";
        assert_eq!(format(&[prometheus]), Format::Open);
        assert_eq!(format(&["application/openmetrics-text"]), Format::Open);
        assert_eq!(format(&["text/plain", "Application/OpenMetrics-Text; Version=\"1.0.0\""]), Format::Open);
        for text in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "text/plain;version=0.0.4",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=loud",
            "application/openmetrics-text;q=0.2,text/plain;q=0.3",
            ";;;=,q=",
        ] {
            assert_eq!(format(&[text]), Format::Text, "{text}");
        }
        assert_eq!(format(&[]), Format::Text);
    }

    #[test]
    fn a_family_of_counters_has_the_name_of_its_samples_in_the_text_format() {
        let open = "# HELP a Words of a.\n# TYPE a counter\na_total{x=\"1 # 2\"} 3\n# HELP b Words.\n# TYPE b gauge\n\
                    # UNIT b bytes\nb 1\n# TYPE c histogram\nc_bucket{le=\"+Inf\"} 0\n# EOF\n";
        assert_eq!(Format::Open.of(open.to_owned()), open);
        assert_eq!(
            Format::Text.of(open.to_owned()),
            "# HELP a_total Words of a.\n# TYPE a_total counter\na_total{x=\"1 # 2\"} 3\n# HELP b Words.\n\
             # TYPE b gauge\nb 1\n# TYPE c histogram\nc_bucket{le=\"+Inf\"} 0\n"
        );
    }
}
