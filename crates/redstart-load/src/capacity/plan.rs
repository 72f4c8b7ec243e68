//! Memory, nodes, network, hot spots and the cost of a failover, from the table of costs.

use serde::Serialize;

use super::{
    Alternative, Balance, Need,
    alternative::alternatives,
    character::{Spreading, character},
    cost::ServerCosts,
    simulate,
};

/// What a node may carry.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// Memory of a node in bytes.
    pub node_memory: f64,
    /// The share of it that data may take: a fork for a snapshot, buffers and fragmentation need the rest.
    pub memory: f64,
    /// The share of one core that commands may take at the peak.
    pub cpu: f64,
    /// Network of a node in bits per second.
    pub network: f64,
    /// Replicas of each master.
    pub replicas: u64,
    /// The exponent of Zipf's law that the traffic of entities follows; 0 is uniform.
    pub skew: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            node_memory: 16.0 * (1u64 << 30) as f64,
            memory: 0.6,
            cpu: 0.5,
            network: 1e9,
            replicas: 1,
            skew: 0.0,
        }
    }
}

impl Limits {
    pub(super) fn usable_memory(&self) -> f64 {
        self.node_memory * self.memory
    }
}

/// What one need takes.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NeedCost {
    /// The need.
    #[serde(flatten)]
    pub need: Need,
    /// Bytes of one entity; on each of the servers of Redlock.
    pub bytes_per_entity: f64,
    /// Bytes of all, on all servers.
    pub bytes: f64,
    /// CPU of the server per operation in microseconds; of each of the servers of Redlock.
    pub us_per_op: f64,
    /// Cores of all servers together.
    pub cores: f64,
    /// Bits per second.
    pub network: f64,
    /// Requests per operation.
    pub round_trips: f64,
    /// Messages per second that are published; each goes to every process that listens.
    pub messages: f64,
    /// Operations per second that one node carries.
    pub ops_per_node: f64,
    /// The hottest key.
    pub hottest: String,
    /// How the load is spread over nodes.
    pub spread: String,
    /// What limits it first.
    pub limit: String,
    /// Connections beyond the shared ones.
    pub connections: String,
    /// Why more nodes do not help, if they do not.
    pub hot_spot: Option<String>,
}

/// What a deployment needs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// The server and version whose costs were used.
    pub server: String,
    /// When they were measured.
    pub measured: String,
    /// What each need takes.
    pub needs: Vec<NeedCost>,
    /// Bytes of all data.
    pub bytes: f64,
    /// Operations per second.
    pub ops: f64,
    /// Cores.
    pub cores: f64,
    /// Bits per second.
    pub network: f64,
    /// Masters that memory asks for.
    pub masters_by_memory: u64,
    /// Masters that CPU asks for.
    pub masters_by_cpu: u64,
    /// Masters that the network asks for.
    pub masters_by_network: u64,
    /// Masters: one, or at least the three that a Cluster has. None if all that is wanted has servers of its own.
    pub masters: u64,
    /// Nodes, replicas and servers of their own included.
    pub nodes: u64,
    /// The servers of Redlock, which are no nodes of the Cluster.
    pub quorum: Option<Quorum>,
    /// How evenly they are loaded, by simulation.
    pub balance: Balance,
    /// What happens when a master fails.
    pub failover: Failover,
    /// Other ways to the same answers.
    pub alternatives: Vec<Alternative>,
    /// What no number of nodes mends.
    pub hot_spots: Vec<String>,
}

/// Independent servers that together grant a lock. Each of them has every key and carries every operation, so more of them do
/// not carry more.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Quorum {
    /// How many.
    pub servers: u64,
    /// Bytes on each.
    pub bytes: f64,
    /// Cores of each.
    pub cores: f64,
    /// Bits per second of each.
    pub network: f64,
}

/// Servers of Redlock: five, of which two may fail.
const QUORUM: u64 = 5;

/// Masters of the smallest Cluster.
const SMALLEST_CLUSTER: u64 = 3;

/// What the loss of a master costs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Failover {
    /// The share of the keys that is unavailable meanwhile.
    pub share: f64,
    /// Seconds until a replica has taken over, with the default node timeout of 15 seconds.
    pub seconds: f64,
    /// Bytes that the next replica must copy.
    pub resync_bytes: f64,
    /// Seconds for that over the network of a node.
    pub resync_seconds: f64,
    /// Acknowledged operations that a replication lag of 100 milliseconds loses.
    pub lost_operations: f64,
}

/// Plans a deployment.
pub fn plan(costs: &ServerCosts, needs: &[Need], limits: &Limits) -> Plan {
    let needs: Vec<NeedCost> = needs.iter().map(|need| cost(costs, need, limits)).collect();
    let sum = |of: fn(&NeedCost) -> f64| needs.iter().map(of).sum::<f64>();
    let (bytes, ops) = (sum(|need| need.bytes), sum(|need| need.need.ops));
    let (cores, network) = (sum(|need| need.cores), sum(|need| need.network));
    let embedded = costs.server.starts_with("embedded");
    let (apart, shared): (Vec<&NeedCost>, Vec<&NeedCost>) = needs
        .iter()
        .partition(|need| !embedded && has_quorum(&need.need));
    let quorum = quorum(&apart);
    let sum = |of: fn(&NeedCost) -> f64| shared.iter().map(|need| of(need)).sum::<f64>();
    let on_masters = (
        sum(|need| need.bytes),
        sum(|need| need.cores),
        sum(|need| need.network),
        sum(|need| need.need.ops),
    );
    let any_shared = !shared.is_empty();
    let ceil = |amount: f64, of: f64| (amount / of.max(1e-9)).ceil().max(1.0) as u64;
    // The fullest node of several has more than the mean, so the mean must be lower.
    let users = needs
        .iter()
        .map(|need| need.need.entities)
        .fold(1.0, f64::max) as u64;
    let rough = ceil(on_masters.0, limits.usable_memory()).max(ceil(on_masters.1, limits.cpu));
    let balance = simulate(users, rough, limits.skew, 1);
    let by_memory = ceil(on_masters.0 * balance.memory, limits.usable_memory());
    // One user's traffic stays on one node, however many there are; that is a hot spot and not a reason for nodes.
    let by_cpu = ceil(on_masters.1 * balance.traffic.min(2.0), limits.cpu);
    let by_network = ceil(
        on_masters.2 * balance.traffic.min(2.0),
        limits.network * 0.5,
    );
    let masters = match by_memory.max(by_cpu).max(by_network) {
        _ if !any_shared => 0,
        _ if embedded => 1,
        1 => 1,
        more => more.max(SMALLEST_CLUSTER),
    };
    let share = 1.0 / masters.max(1) as f64;
    let balance = simulate(users, masters, limits.skew, 1);
    let mut hot_spots: Vec<String> = needs
        .iter()
        .filter_map(|need| need.hot_spot.clone())
        .collect();
    if embedded && (bytes > limits.usable_memory() || cores > limits.cpu) {
        hot_spots.push("the embedded engine is one process: this needs Redis or Valkey".to_owned());
    }
    if balance.traffic > 2.0 {
        hot_spots.push(format!(
            "the busiest node has {:.1} times the mean traffic, of which {:.0} % is one entity: keep it in a first level in the process, or shard it",
            balance.traffic,
            balance.of_its_node * 100.0
        ));
    }
    let alternatives = needs
        .iter()
        .flat_map(|need| alternatives(costs, &need.need, limits))
        .collect();
    let resync = on_masters.0 * share * balance.memory;
    Plan {
        server: costs.server.clone(),
        measured: costs.measured.clone(),
        bytes,
        ops,
        cores,
        network,
        masters_by_memory: by_memory,
        masters_by_cpu: by_cpu,
        masters_by_network: by_network,
        masters,
        nodes: match embedded {
            true => 1,
            false => {
                masters * (1 + limits.replicas) + quorum.as_ref().map_or(0, |quorum| quorum.servers)
            }
        },
        quorum,
        failover: Failover {
            share,
            // The timeout, the election, and the clients' next look at the slots.
            seconds: if limits.replicas > 0 {
                17.0
            } else {
                f64::INFINITY
            },
            resync_bytes: resync,
            resync_seconds: resync * 8.0 / limits.network,
            lost_operations: on_masters.3 * share * 0.1,
        },
        balance,
        alternatives,
        hot_spots,
        needs,
    }
}

/// The servers of what runs on independent ones.
fn quorum(needs: &[&NeedCost]) -> Option<Quorum> {
    let each =
        |of: fn(&NeedCost) -> f64| needs.iter().map(|need| of(need)).sum::<f64>() / QUORUM as f64;
    (!needs.is_empty()).then(|| Quorum {
        servers: QUORUM,
        bytes: each(|need| need.bytes),
        cores: each(|need| need.cores),
        network: each(|need| need.network),
    })
}

/// Whether the pattern runs on independent servers.
fn has_quorum(need: &Need) -> bool {
    character(&need.pattern).is_some_and(|known| known.spreading == Spreading::Everywhere)
}

fn cost(costs: &ServerCosts, need: &Need, limits: &Limits) -> NeedCost {
    let entity = costs.entity_of(&need.pattern);
    // What is measured on the embedded engine are all servers of a quorum together.
    let servers = match has_quorum(need) && !costs.server.starts_with("embedded") {
        true => QUORUM as f64,
        false => 1.0,
    };
    let bytes_per_entity = entity.map_or(0.0, |cost| {
        let default = cost.points.first().map_or(0.0, |point| point.at);
        cost.bytes(need.parameter.unwrap_or(default))
    });
    let operation = costs.pattern(&need.pattern);
    let us_per_op = operation.map_or(0.0, |cost| cost.server_us_per_op);
    let of = |value: Option<f64>| value.unwrap_or(0.0);
    let moved = operation.map_or(0.0, |cost| of(cost.network_bytes_per_op));
    let known = character(&need.pattern);
    let ops_per_node = 1e6 * limits.cpu / us_per_op.max(1e-9);
    let bytes = need.entities * bytes_per_entity * servers;
    let one_key = known.is_some_and(|known| known.spreading == Spreading::OneKey);
    // A day's bitmap or a filter is one key of many; the whole need is not.
    let largest = match need.pattern.as_str() {
        "activity" | "bloom" | "array" => bytes_per_entity,
        _ => bytes,
    };
    let hot_spot = if one_key && need.ops > ops_per_node {
        Some(format!(
            "{}: {:.0} operations per second go to one key, and a node carries {ops_per_node:.0}",
            need.pattern, need.ops
        ))
    } else if servers > 1.0 && need.ops > ops_per_node {
        Some(format!(
            "{}: each of its {QUORUM} servers carries all {:.0} operations per second, and one carries {ops_per_node:.0}",
            need.pattern, need.ops
        ))
    } else if one_key && largest > limits.usable_memory() {
        Some(format!("{}: one key is larger than a node", need.pattern))
    } else {
        None
    };
    NeedCost {
        need: need.clone(),
        bytes_per_entity,
        bytes,
        us_per_op,
        cores: need.ops * us_per_op * servers / 1e6,
        network: need.ops * moved * 8.0 * servers,
        round_trips: operation.map_or(0.0, |cost| of(cost.round_trips_per_op)) * servers,
        messages: need.ops * operation.map_or(0.0, |cost| of(cost.messages_per_op)),
        ops_per_node,
        hottest: known.map_or("", |known| known.hottest).to_owned(),
        spread: known.map_or("", |known| known.spreading.text()).to_owned(),
        limit: known.map_or("", |known| known.limit).to_owned(),
        connections: known.map_or("", |known| known.connections).to_owned(),
        hot_spot,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::cost::*, *};

    fn costs() -> ServerCosts {
        let pattern = |pattern: &str, us: f64| PatternCost {
            pattern: pattern.to_owned(),
            server_us_per_op: us,
            round_trips_per_op: Some(1.0),
            network_bytes_per_op: Some(500.0),
            messages_per_op: None,
            writes: 0.5,
        };
        let entity = |kind: &str, bytes: f64| EntityCost {
            kind: kind.to_owned(),
            entity: "one".to_owned(),
            parameter: None,
            points: vec![Point {
                at: 0.0,
                bytes,
                entities: 1,
            }],
        };
        ServerCosts {
            server: "redis 7.0.0".to_owned(),
            redstart: "0".to_owned(),
            measured: "2027-01-01".to_owned(),
            machine: "test".to_owned(),
            build: "optimised".to_owned(),
            load: None,
            patterns: vec![
                pattern("session", 10.0),
                pattern("leaderboard", 10.0),
                pattern("redlock", 20.0),
            ],
            entities: vec![
                entity("session", 500.0),
                entity("mutex", 300.0),
                entity("leaderboard", 100.0),
                entity("sharded_leaderboard", 101.0),
            ],
        }
    }

    fn need(pattern: &str, entities: f64, ops: f64) -> Need {
        Need {
            pattern: pattern.to_owned(),
            entities,
            ops,
            parameter: None,
            assumed: None,
        }
    }

    #[test]
    fn nodes_follow_from_what_is_scarcest() {
        let limits = Limits::default();
        let memory = plan(&costs(), &[need("session", 1e9, 1000.0)], &limits);
        // 500 GB on 60 % of 16 GiB.
        assert!((49..=52).contains(&memory.masters), "{memory:?}");
        assert_eq!(memory.masters, memory.masters_by_memory);
        assert_eq!(memory.nodes, 2 * memory.masters);
        let cpu = plan(&costs(), &[need("session", 1e6, 1e6)], &limits);
        // 10 cores at half a core per node.
        assert!((20..=22).contains(&cpu.masters), "{cpu:?}");
        assert_eq!(cpu.masters, cpu.masters_by_cpu);
    }

    #[test]
    fn a_cluster_has_at_least_three_masters() {
        let limits = Limits::default();
        // What one node holds is 60 % of 16 GiB.
        let masters = |bytes: f64| {
            let plan = plan(&costs(), &[need("session", bytes / 500.0, 10.0)], &limits);
            (plan.masters_by_memory, plan.masters, plan.nodes)
        };
        assert_eq!(masters(5e9), (1, 1, 2));
        assert_eq!(masters(15e9), (2, 3, 6));
        assert_eq!(masters(35e9), (4, 4, 8));
    }

    #[test]
    fn redlock_takes_five_servers_of_its_own() {
        let limits = Limits::default();
        let locks = need("redlock", 1e6, 10_000.0);
        let alone = plan(&costs(), std::slice::from_ref(&locks), &limits);
        let quorum = alone.quorum.clone().unwrap();
        assert_eq!((quorum.servers, alone.masters, alone.nodes), (5, 0, 5));
        // A lock is that of `mutex` on each of them; 20 µs of each for an operation.
        assert_eq!((quorum.bytes, quorum.cores), (300e6, 0.2));
        assert_eq!((alone.bytes, alone.needs[0].cores), (1.5e9, 1.0));
        assert!(alone.hot_spots.is_empty(), "{:?}", alone.hot_spots);
        let beside = plan(&costs(), &[locks, need("session", 1e6, 100.0)], &limits);
        assert_eq!((beside.masters, beside.nodes), (1, 7));
        let busy = plan(&costs(), &[need("redlock", 10.0, 50_000.0)], &limits);
        assert!(
            busy.hot_spots[0].contains("each of its 5 servers"),
            "{busy:?}"
        );
        // The engine's cost is that of the whole process.
        let embedded = ServerCosts {
            server: "embedded 0.1.0".to_owned(),
            ..costs()
        };
        let embedded = plan(&embedded, &[need("redlock", 10.0, 10_000.0)], &limits);
        assert_eq!((embedded.nodes, embedded.cores), (1, 0.2));
        assert!(embedded.quorum.is_none());
    }

    #[test]
    fn a_plan_says_how_many_shards_a_board_needs() {
        let limits = Limits::default();
        // A node carries 50,000 operations of 10 µs, or 103 million members of 100 bytes.
        let shards = |members: f64, ops: f64| {
            let plan = plan(&costs(), &[need("leaderboard", members, ops)], &limits);
            plan.alternatives[0].shards
        };
        assert_eq!(shards(1e6, 120_000.0), Some(3));
        assert_eq!(shards(500e6, 100.0), Some(5));
        assert_eq!(shards(1e6, 100.0), Some(1));
    }

    #[test]
    fn one_key_is_a_hot_spot_that_nodes_do_not_mend() {
        let limits = Limits::default();
        let hot = plan(&costs(), &[need("leaderboard", 1e6, 100_000.0)], &limits);
        assert!(hot.hot_spots[0].contains("one key"), "{:?}", hot.hot_spots);
        assert_eq!(hot.alternatives[0].form, "sharded_leaderboard");
        let fine = plan(&costs(), &[need("leaderboard", 1e6, 1000.0)], &limits);
        assert!(fine.hot_spots.is_empty(), "{:?}", fine.hot_spots);
    }
}
