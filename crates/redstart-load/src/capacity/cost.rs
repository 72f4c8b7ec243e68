//! The table of costs. It is made by `redstart capacity --measure`, never by hand.

use serde::{Deserialize, Serialize};

use super::fill::SAME;
use crate::error::{Error, Result};

/// Costs on several servers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CostTable {
    /// One entry for each server and version.
    pub servers: Vec<ServerCosts>,
}

/// Costs on one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerCosts {
    /// The server and its version, as in `redis 7.0.15`.
    pub server: String,
    /// The version of this library.
    pub redstart: String,
    /// The day of the measurement.
    pub measured: String,
    /// The machine: processor architecture and number of cores.
    pub machine: String,
    /// How the client was built; on the embedded engine that is the server too.
    pub build: String,
    /// How busy the machine was before the measurement began: the load average of a minute, if the system tells. Other
    /// programs make operations dearer, because they share caches and cores.
    #[serde(default)]
    pub load: Option<f64>,
    /// What an operation of each pattern costs.
    pub patterns: Vec<PatternCost>,
    /// What an entity of each kind takes.
    pub entities: Vec<EntityCost>,
}

/// What an operation of a pattern costs, with the mix of reads and writes of its workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PatternCost {
    /// The pattern.
    pub pattern: String,
    /// CPU of the server in microseconds: of Redlock, which has several, that of each of them. On the embedded engine it is that
    /// of the whole process, with its caller and, for Redlock, all five engines.
    pub server_us_per_op: f64,
    /// Requests; `null` where there is no network.
    pub round_trips_per_op: Option<f64>,
    /// Bytes in both directions; `null` where there is no network.
    pub network_bytes_per_op: Option<f64>,
    /// Messages that are published; each goes to every process that listens.
    #[serde(default)]
    pub messages_per_op: Option<f64>,
    /// The share of writes.
    pub writes: f64,
}

/// What an entity takes, at several values of its parameter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EntityCost {
    /// The kind: a pattern, or an alternative to one, such as `visitor_set`.
    pub kind: String,
    /// What one entity is.
    pub entity: String,
    /// What the parameter is, if there is one.
    pub parameter: Option<String>,
    /// Measured values.
    pub points: Vec<Point>,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The value of the parameter; 0 without one.
    pub at: f64,
    /// Bytes per entity.
    pub bytes: f64,
    /// How many entities were filled in.
    pub entities: u64,
}

impl CostTable {
    /// The table that this version was released with.
    ///
    /// # Errors
    ///
    /// Never in a release; a test reads it.
    pub fn built_in() -> Result<Self> {
        Self::parse(include_str!("../../data/costs.json"))
    }

    /// Reads a table.
    ///
    /// # Errors
    ///
    /// If it is not one.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| Error::config(format!("the table of costs cannot be read: {error}")))
    }

    /// The costs of the first server whose name begins with `name`.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn server(&self, name: &str) -> Result<&ServerCosts> {
        let found = self
            .servers
            .iter()
            .find(|costs| costs.server.starts_with(name));
        found.ok_or_else(|| {
            let names: Vec<_> = self
                .servers
                .iter()
                .map(|costs| costs.server.as_str())
                .collect();
            Error::config(format!(
                "no costs were measured on {name:?}; there are {}",
                names.join(", ")
            ))
        })
    }

    /// Puts the costs of a server into the table, instead of those that it had. What was not measured again stays, if
    /// the version is the same; then the day, the build and the load stay too, since most figures are of that day.
    pub fn replace(&mut self, mut costs: ServerCosts) {
        let kind = |name: &str| name.split(' ').next().unwrap_or_default().to_owned();
        let same = |old: &ServerCosts| kind(&old.server) == kind(&costs.server);
        if let Some(old) = self
            .servers
            .iter()
            .find(|old| same(old) && old.server == costs.server)
        {
            let patterns = old
                .patterns
                .iter()
                .filter(|old| costs.pattern(&old.pattern).is_none());
            let patterns: Vec<_> = patterns.cloned().collect();
            let entities = old
                .entities
                .iter()
                .filter(|old| costs.entity(&old.kind).is_none());
            let entities: Vec<_> = entities.cloned().collect();
            if !patterns.is_empty() || !entities.is_empty() {
                costs.measured.clone_from(&old.measured);
                costs.build.clone_from(&old.build);
                costs.load = old.load;
            }
            costs.patterns.extend(patterns);
            costs.entities.extend(entities);
        }
        costs.patterns.sort_by(|a, b| a.pattern.cmp(&b.pattern));
        costs.entities.sort_by(|a, b| a.kind.cmp(&b.kind));
        self.servers
            .retain(|old| kind(&old.server) != kind(&costs.server));
        self.servers.push(costs);
        self.servers.sort_by(|a, b| a.server.cmp(&b.server));
    }
}

impl ServerCosts {
    /// What an operation of a pattern costs.
    pub fn pattern(&self, name: &str) -> Option<&PatternCost> {
        self.patterns.iter().find(|cost| cost.pattern == name)
    }

    /// What an entity of a pattern takes, also if it is one of another kind: a lease of a cache has the rows of `cache_aside`.
    pub fn entity_of(&self, pattern: &str) -> Option<&EntityCost> {
        let same = SAME.iter().find(|(name, _)| *name == pattern);
        self.entity(same.map_or(pattern, |(_, kind)| kind))
    }

    /// What an entity of a kind takes.
    pub fn entity(&self, kind: &str) -> Option<&EntityCost> {
        self.entities.iter().find(|cost| cost.kind == kind)
    }
}

impl EntityCost {
    /// Bytes per entity at a value of the parameter: on the line between the two nearest measurements, or on that
    /// through the last two beyond them.
    pub fn bytes(&self, at: f64) -> f64 {
        let points = &self.points;
        match points.len() {
            0 => 0.0,
            1 => points[0].bytes,
            n => {
                let upper = points
                    .partition_point(|point| point.at < at)
                    .clamp(1, n - 1);
                let (a, b) = (points[upper - 1], points[upper]);
                // What has stopped growing, like a HyperLogLog, stays as it is, whatever the noise of the last points.
                if at > b.at && b.bytes < a.bytes * 1.05 {
                    return b.bytes;
                }
                let slope = (b.bytes - a.bytes) / (b.at - a.at).max(1e-9);
                (a.bytes + slope * (at - a.at)).max(0.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_on_the_lines_between_measurements() {
        let point = |at, bytes| Point {
            at,
            bytes,
            entities: 1,
        };
        let cost = EntityCost {
            kind: "uniques".to_owned(),
            entity: "page and day".to_owned(),
            parameter: Some("visitors".to_owned()),
            points: vec![
                point(100.0, 400.0),
                point(1000.0, 3100.0),
                point(10_000.0, 12_400.0),
                point(50_000.0, 12_390.0),
            ],
        };
        assert_eq!(cost.bytes(100.0), 400.0);
        assert_eq!(cost.bytes(550.0), 1750.0);
        assert_eq!(cost.bytes(0.0), 100.0);
        assert_eq!(cost.bytes(1e9), 12_390.0);
    }

    #[test]
    fn figures_that_stay_keep_their_day() {
        let costs = |day: &str, patterns: &[&str]| ServerCosts {
            server: "redis 7.0.15".to_owned(),
            redstart: "0".to_owned(),
            measured: day.to_owned(),
            machine: "test".to_owned(),
            build: "optimised".to_owned(),
            load: None,
            patterns: patterns
                .iter()
                .map(|pattern| PatternCost {
                    pattern: (*pattern).to_owned(),
                    server_us_per_op: 1.0,
                    round_trips_per_op: None,
                    network_bytes_per_op: None,
                    messages_per_op: None,
                    writes: 1.0,
                })
                .collect(),
            entities: Vec::new(),
        };
        let mut table = CostTable::default();
        table.replace(costs("2027-01-01", &["mutex", "session"]));
        table.replace(costs("2027-02-02", &["mutex"]));
        assert_eq!(table.servers[0].measured, "2027-01-01");
        assert_eq!(table.servers[0].patterns.len(), 2);
        table.replace(costs("2027-03-03", &["mutex", "session"]));
        assert_eq!(table.servers[0].measured, "2027-03-03");
    }

    #[test]
    fn the_table_of_this_version_has_every_pattern_on_every_server() {
        let table = CostTable::built_in().unwrap();
        for server in ["redis", "valkey", "embedded"] {
            let costs = table.server(server).unwrap();
            for pattern in crate::all() {
                let cost = costs.pattern(pattern.name());
                let cost = cost.unwrap_or_else(|| panic!("{server} lacks {}", pattern.name()));
                assert!(cost.server_us_per_op > 0.0, "{server} {}", pattern.name());
                let trips = cost.round_trips_per_op;
                assert!(
                    server == "embedded" || trips.is_some(),
                    "{server} {}",
                    pattern.name()
                );
            }
            for filling in super::super::fillings() {
                let cost = costs.entity(filling.kind());
                let cost = cost.unwrap_or_else(|| panic!("{server} lacks {}", filling.kind()));
                assert_eq!(cost.points.len(), filling.values().len());
                assert!(
                    cost.points.iter().all(|point| point.bytes > 0.0),
                    "{cost:?}"
                );
            }
        }
    }
}
