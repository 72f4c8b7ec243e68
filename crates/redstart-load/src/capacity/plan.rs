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
    /// What of it is in one key, and so on one node.
    pub in_one_key: InOneKey,
}

/// What is in one key, and so on one node, however many there are. Zero where each entity has a key of its own.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct InOneKey {
    /// Bytes.
    pub bytes: f64,
    /// Cores.
    pub cores: f64,
    /// Bits per second.
    pub network: f64,
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
    let load = Load::of(&shared, limits);
    // The fullest node of several has more than the mean, so the mean must be lower.
    let users = needs
        .iter()
        .map(|need| need.need.entities)
        .fold(1.0, f64::max) as u64;
    let rough = load.memory.masters(1.0).max(load.cpu.masters(1.0));
    let balance = simulate(users, rough, limits.skew, 1);
    let by = load.masters(&balance);
    let masters = match by.memory.max(by.cpu).max(by.network) {
        _ if shared.is_empty() => 0,
        _ if embedded => 1,
        1 => 1,
        more => more.max(SMALLEST_CLUSTER),
    };
    let share = 1.0 / masters.max(1) as f64;
    let mut balance = simulate(users, masters, limits.skew, 1);
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
    if !embedded && masters > 0 {
        let memory = |need: &NeedCost| need.in_one_key.bytes;
        let cores = |need: &NeedCost| need.in_one_key.cores;
        hot_spots.extend(crowded(&shared, masters, memory, &load.memory, by.uneven));
        hot_spots.extend(crowded(&shared, masters, cores, &load.cpu, by.traffic));
        balance.memory = load.memory.fullest(masters, balance.memory);
        balance.traffic = balance
            .traffic
            .max(load.cpu.fullest(masters, balance.traffic));
    }
    let alternatives = needs
        .iter()
        .flat_map(|need| alternatives(costs, &need.need, limits))
        .collect();
    let resync = load.memory.all * share * balance.memory;
    Plan {
        server: costs.server.clone(),
        measured: costs.measured.clone(),
        bytes,
        ops,
        cores,
        network,
        masters_by_memory: by.memory,
        masters_by_cpu: by.cpu,
        masters_by_network: by.network,
        masters,
        nodes: match embedded {
            true => 1,
            false => {
                masters * (1 + limits.replicas) + quorum.as_ref().map_or(0, |quorum| quorum.servers)
            }
        },
        quorum,
        failover: Failover::of_master(share, resync, load.ops, limits),
        balance,
        alternatives,
        hot_spots,
        needs,
    }
}

impl Failover {
    /// If a master has this share of all operations, and its replica copies so many bytes.
    fn of_master(share: f64, resync: f64, ops: f64, limits: &Limits) -> Self {
        Self {
            share,
            // The timeout, the election, and the clients' next look at the slots.
            seconds: if limits.replicas > 0 {
                17.0
            } else {
                f64::INFINITY
            },
            resync_bytes: resync,
            resync_seconds: resync * 8.0 / limits.network,
            lost_operations: ops * share * 0.1,
        }
    }
}

/// What the masters carry together.
struct Load {
    memory: Part,
    cpu: Part,
    network: Part,
    /// Operations per second.
    ops: f64,
}

impl Load {
    fn of(needs: &[&NeedCost], limits: &Limits) -> Self {
        let sum = |of: fn(&NeedCost) -> f64| needs.iter().map(|need| of(need)).sum::<f64>();
        // One key stays on one node; the others are taken to be on others.
        let part = |of: fn(&NeedCost) -> f64, one_key: fn(&NeedCost) -> f64, most: f64| Part {
            fixed: needs.iter().map(|need| one_key(need)).fold(0.0, f64::max),
            all: sum(of),
            most,
        };
        Self {
            memory: part(
                |need| need.bytes,
                |need| need.in_one_key.bytes,
                limits.usable_memory(),
            ),
            cpu: part(|need| need.cores, |need| need.in_one_key.cores, limits.cpu),
            network: part(
                |need| need.network,
                |need| need.in_one_key.network,
                limits.network * 0.5,
            ),
            ops: sum(|need| need.need.ops),
        }
    }

    /// The masters that it takes if they are loaded as unevenly as this.
    fn masters(&self, balance: &Balance) -> MastersBy {
        // One user's traffic stays on one node, however many there are; that is a hot spot and not a reason for nodes.
        let (uneven, traffic) = (balance.memory, balance.traffic.min(2.0));
        MastersBy {
            memory: self.memory.masters(uneven),
            cpu: self.cpu.masters(traffic),
            network: self.network.masters(traffic),
            uneven,
            traffic,
        }
    }
}

/// How many masters each resource asks for.
struct MastersBy {
    memory: u64,
    cpu: u64,
    network: u64,
    /// The memory of the fullest master, relative to the mean.
    uneven: f64,
    /// The traffic of the busiest one, relative to the mean.
    traffic: f64,
}

/// An amount that is spread over masters but for the part that one of them has to itself.
struct Part {
    /// The largest part that is in one key.
    fixed: f64,
    all: f64,
    /// What a master may have.
    most: f64,
}

impl Part {
    /// What a master has beside the key if the rest is even, where its fullest part is so many times the mean.
    fn beside(&self, masters: u64, uneven: f64) -> f64 {
        (self.all - self.fixed) * uneven / masters as f64
    }

    /// How many masters it takes: so many that the one with the key has room for its share of the rest. If that is more than twice
    /// what it takes to let one of them have little but the key, it is that, and the key [is apart](Self::is_apart).
    fn masters(&self, uneven: f64) -> u64 {
        match self.is_apart(uneven) {
            true => self.with_a_node_apart(uneven),
            false => self.even(uneven).unwrap_or(1),
        }
    }

    fn is_apart(&self, uneven: f64) -> bool {
        let even = self.even(uneven);
        self.fixed > 0.0 && even.is_none_or(|even| even > 2 * self.with_a_node_apart(uneven))
    }

    /// Masters if the rest is even; none if there is no room for it beside the key.
    fn even(&self, uneven: f64) -> Option<u64> {
        let (rest, room) = (self.beside(1, uneven), self.most - self.fixed);
        match rest <= 0.0 {
            true => Some(1),
            false => (room > 0.0).then(|| whole(rest, room)),
        }
    }

    fn with_a_node_apart(&self, uneven: f64) -> u64 {
        whole(self.beside(1, uneven), self.most) + 1
    }

    /// What the fullest master has, relative to the mean.
    fn fullest(&self, masters: u64, uneven: f64) -> f64 {
        if self.all <= 0.0 {
            return uneven;
        }
        let even = self.fixed + self.beside(masters, uneven);
        let fullest = match even > self.most && masters > 1 {
            // The rest is on the others.
            true => self.beside(masters - 1, uneven).max(self.fixed),
            false => even,
        };
        fullest * masters as f64 / self.all
    }
}

/// How many of these it takes, at least one.
fn whole(amount: f64, of: f64) -> u64 {
    (amount / of.max(1e-9)).ceil().max(1.0) as u64
}

/// What has to be placed by hand: a key that has no room for an even share of the rest beside it, or two of which a node has
/// no room for both. A key that is too much by itself is a hot spot anyway.
fn crowded(
    needs: &[&NeedCost],
    masters: u64,
    one_key: fn(&NeedCost) -> f64,
    part: &Part,
    uneven: f64,
) -> Option<String> {
    let mut keys: Vec<(f64, &str)> = needs
        .iter()
        .map(|need| (one_key(need), need.need.pattern.as_str()))
        .filter(|(amount, _)| *amount > 0.0)
        .collect();
    keys.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (first, others) = keys.split_first()?;
    // With one master all of it is on that one, and fits.
    if masters == 1 || first.0 > part.most {
        return None;
    }
    if part.is_apart(uneven) && first.0 + part.beside(masters, uneven) > part.most {
        return Some(format!(
            "{}: its key and an even share of the rest are more than a node has: give the node of its slot few other slots",
            first.1
        ));
    }
    let second = others.first()?;
    let beside = (part.all - first.0 - second.0) * uneven / masters as f64;
    (first.0 + second.0 + beside > part.most).then(|| {
        format!(
            "{} and {}: each is one key, and together they are more than a node has: see that their slots are on different nodes",
            first.1, second.1
        )
    })
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
    let one_key = need.one_key || known.is_some_and(|known| known.spreading == Spreading::OneKey);
    // A day's bitmap, sketch or filter is one key of many; the whole need is not.
    let largest = match need.pattern.as_str() {
        "activity" | "bloom" | "array" => bytes_per_entity,
        _ if need.one_key => bytes_per_entity,
        _ => bytes,
    };
    let cores = need.ops * us_per_op * servers / 1e6;
    let network = need.ops * moved * 8.0 * servers;
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
        cores,
        network,
        round_trips: operation.map_or(0.0, |cost| of(cost.round_trips_per_op)) * servers,
        messages: need.ops * operation.map_or(0.0, |cost| of(cost.messages_per_op)),
        ops_per_node,
        hottest: match need.one_key {
            true => "the key of now",
            false => known.map_or("", |known| known.hottest),
        }
        .to_owned(),
        spread: match one_key {
            true => Spreading::OneKey.text(),
            false => known.map_or("", |known| known.spreading.text()),
        }
        .to_owned(),
        limit: known.map_or("", |known| known.limit).to_owned(),
        connections: known.map_or("", |known| known.connections).to_owned(),
        hot_spot,
        in_one_key: match one_key {
            true => InOneKey {
                bytes: largest,
                cores,
                network,
            },
            false => InOneKey::default(),
        },
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
                pattern("unique_visitors", 10.0),
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
            one_key: false,
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
    fn a_board_of_many_shards_pays_for_its_ranks_on_each_of_them() {
        let limits = Limits::default();
        let mut costs = costs();
        // 16 shards cost 32 µs more than one board of 10 µs: 2 µs on each for every operation.
        let mut sharded = costs.pattern("leaderboard").unwrap().clone();
        sharded.pattern = "sharded_leaderboard".to_owned();
        sharded.server_us_per_op = 42.0;
        costs.patterns.push(sharded);
        let board = |ops: f64| {
            let mut plan = plan(&costs, &[need("leaderboard", 1e6, ops)], &limits);
            plan.alternatives.swap_remove(0)
        };
        // (10 / shards + 2) µs × 120,000 of 500,000 µs; without the ranks 3 shards would do.
        assert_eq!(board(120_000.0).shards, Some(5));
        assert_eq!(board(240_000.0).shards, Some(120));
        let too_many = board(250_000.0);
        assert_eq!(too_many.shards, None);
        assert!(
            too_many.right.contains("no number of shards"),
            "{too_many:?}"
        );
        assert!(too_many.right.contains("250000 operations"), "{too_many:?}");
        // Members need shards whatever is asked.
        assert_eq!(board(0.0).shards, Some(1));
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

    /// What the node with the key has if the rest is even, of what it may have.
    fn with_the_key(plan: &Plan, fixed: f64, all: f64, most: f64) -> f64 {
        (fixed + (all - fixed) / plan.masters as f64) / most
    }

    #[test]
    fn the_node_of_one_key_has_its_share_of_the_rest_too() {
        let limits = Limits::default();
        let usable = limits.usable_memory();
        // A board of 5 GB and 32 GB of sessions on nodes that hold 10.3 GB.
        let (board, sessions) = (need("leaderboard", 50e6, 10.0), need("session", 64e6, 10.0));
        let both = plan(&costs(), &[board, sessions.clone()], &limits);
        assert_eq!((both.masters, both.masters_by_memory), (7, 7), "{both:?}");
        assert!(both.hot_spots.is_empty(), "{:?}", both.hot_spots);
        assert!(with_the_key(&both, 5e9, 37e9, usable) <= 1.0);
        // The fullest node has the board and its share, and the mean is a seventh.
        assert!(
            (1.7..2.0).contains(&both.balance.memory),
            "{:?}",
            both.balance
        );
        // A board of 9 GB leaves so little that it needs a node of its own.
        let board = need("leaderboard", 90e6, 10.0);
        let own = plan(&costs(), &[board.clone(), sessions.clone()], &limits);
        assert_eq!(own.masters, 5, "{own:?}");
        assert!(
            own.hot_spots[0].contains("few other slots"),
            "{:?}",
            own.hot_spots
        );
        // Two boards that together are too much may be in slots of one node.
        let two = [
            need("leaderboard", 60e6, 10.0),
            need("leaderboard", 55e6, 10.0),
        ];
        let two = plan(&costs(), &two, &limits);
        assert!(two.masters >= 2, "{two:?}");
        assert!(
            two.hot_spots[0].contains("different nodes"),
            "{:?}",
            two.hot_spots
        );
        // What fits on one node needs no other.
        let small = [need("leaderboard", 1e6, 10.0), need("session", 1e6, 10.0)];
        let small = plan(&costs(), &small, &limits);
        assert_eq!((small.masters, small.hot_spots.len()), (1, 0), "{small:?}");
    }

    #[test]
    fn the_cores_of_one_key_are_those_of_one_node() {
        let limits = Limits::default();
        // A board with 0.3 cores beside 1 core of sessions, of which a node has a half.
        let board = need("leaderboard", 1e6, 30_000.0);
        let both = [board.clone(), need("session", 1e6, 100_000.0)];
        let both = plan(&costs(), &both, &limits);
        let share = with_the_key(&both, 0.3, 1.3, limits.cpu);
        assert!(share <= 1.0 && both.hot_spots.is_empty(), "{both:?}");
        assert_eq!(both.masters, both.masters_by_cpu, "{both:?}");
        assert!(both.masters >= 5, "{both:?}");
    }

    #[test]
    fn a_count_per_day_is_one_key_of_today() {
        let limits = Limits::default();
        let uniques = Need {
            one_key: true,
            ..need("unique_visitors", 90.0, 70_000.0)
        };
        let hot = plan(&costs(), std::slice::from_ref(&uniques), &limits);
        assert!(hot.hot_spots[0].contains("one key"), "{:?}", hot.hot_spots);
        assert!(hot.needs[0].spread.contains("one key"), "{hot:?}");
        // Many pages have a key each.
        let pages = Need {
            one_key: false,
            ..uniques
        };
        let pages = plan(&costs(), &[pages], &limits);
        assert!(pages.hot_spots.is_empty(), "{:?}", pages.hot_spots);
    }
}
