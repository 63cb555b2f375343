//! The server's own counters, read from its admin listener in the Prometheus text format.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use client::http::{Request, exchange};

/// One reading: sample name with its labels as printed -> value.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// Reads `/metrics`.
    pub fn read(admin: SocketAddr) -> io::Result<Metrics> {
        let response = exchange(admin, &Request::new("GET", "/metrics").header("Host", &admin.to_string()))?;
        if response.status != 200 {
            return Err(io::Error::other(format!("/metrics answered {}", response.status)));
        }
        Ok(Metrics::parse(&String::from_utf8_lossy(&response.body)))
    }

    /// Reads that text; comments are skipped.
    pub fn parse(text: &str) -> Metrics {
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Metrics { samples: text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect() }
    }

    /// The sum of all samples whose name (before labels) contains `part`.
    pub fn sum(&self, part: &str) -> f64 {
        self.matching(part).map(|(_, value)| value).sum()
    }

    /// All samples whose name (before labels) contains `part`.
    pub fn matching<'a>(&'a self, part: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let wanted = move |name: &str| name.split('{').next().unwrap_or(name).contains(part);
        self.samples.iter().filter(move |(name, _)| wanted(name)).map(|(name, value)| (name.as_str(), *value))
    }

    /// The samples of exactly this metric, one for each set of labels.
    pub fn named<'a>(&'a self, metric: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.matching(metric).filter(move |(name, _)| name.split('{').next() == Some(metric))
    }

    /// Difference from `earlier`, by sample.
    pub fn since(&self, earlier: &Metrics) -> Metrics {
        let change = |(name, value): (&String, &f64)| {
            let change = value - earlier.samples.get(name).copied().unwrap_or(0.0);
            (change != 0.0).then(|| (name.clone(), change))
        };
        Metrics { samples: self.samples.iter().filter_map(change).collect() }
    }

    /// Shard and value of a metric that has one line for each shard, by shard.
    pub fn by_shard(&self, metric: &str) -> Vec<[f64; 2]> {
        let shard = |labels: &str| labels.split("shard=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
        let mut found: Vec<[f64; 2]> =
            self.named(metric).filter_map(|(name, value)| Some([shard(name)?, value])).collect();
        found.sort_by(|a, b| a[0].total_cmp(&b[0]));
        found
    }

    /// Bytes of each table of the shards, all shards together: gauges whose name ends in `_bytes`.
    pub fn tables(&self) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for (sample, value) in &self.samples {
            if let Some((name, _)) = sample.split_once("{shard=").filter(|(name, _)| name.ends_with("_bytes")) {
                *sums.entry(name.to_owned()).or_default() += value;
            }
        }
        sums
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!(self.samples)
    }
}

/// Sets a broadcast value, so that there is one to subscribe to. `token`: the content of `keys/admin` of the data
/// directory of the server.
pub fn set_broadcast(admin: SocketAddr, token: &str, id: &str, version: &str) -> io::Result<()> {
    let body = serde_json::json!({ id: version }).to_string();
    let request = Request::new("PUT", "/broadcasts").header("Host", &admin.to_string());
    let request = request.header("Authorization", &format!("Bearer {}", token.trim()));
    match exchange(admin, &request.header("Content-Type", "application/json").body(body))?.status {
        200..300 => Ok(()),
        other => Err(io::Error::other(format!("PUT /broadcasts answered {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_and_compared() {
        let text = "# HELP x y\nmoves_total{shard=\"0\"} 3\nmoves_total{shard=\"1\"} 4\nother 1\n";
        let first = Metrics::parse(text);
        assert_eq!(first.sum("moves"), 7.0);
        assert_eq!((first.named("moves_total").count(), first.named("moves").count()), (2, 0));
        let second = Metrics::parse("moves_total{shard=\"0\"} 5\nmoves_total{shard=\"1\"} 4\n");
        let change: Vec<_> = Metrics::matching(&second.since(&first), "moves").map(|(_, value)| value).collect();
        assert_eq!(change, [2.0]);
    }
}
