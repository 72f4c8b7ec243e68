//! `redstart capacity`: how much a deployment needs, from measured costs.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use comfy_table::{ContentArrangement, Table, presets::UTF8_HORIZONTAL_ONLY};
use redstart_load::capacity::{
    CostTable, Limits, Plan, Wanted, measure, naive_reports, page, plan, quantity, simulate,
};

use crate::Failure;

/// Arguments of `redstart capacity`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Users, as in 100M
    #[arg(long)]
    users: Option<String>,
    /// Days of check-ins of every user, as in 31d
    #[arg(long, value_name = "DAYS")]
    checkins: Option<String>,
    /// Unique visitors, as in daily:90d: one count per day, kept for so long
    #[arg(long, value_name = "daily:DAYS")]
    uniques: Option<String>,
    /// Exact daily active users, as in 90d
    #[arg(long, value_name = "DAYS")]
    activity: Option<String>,
    /// Sessions, as in 20M or 20M@50k/s
    #[arg(long, value_name = "COUNT")]
    sessions: Option<String>,
    /// Checks of a rate limiter, as in 50k/s
    #[arg(long, value_name = "RATE")]
    limiter: Option<String>,
    /// Rows of a cache, as in 5M@100k/s
    #[arg(long, value_name = "COUNT")]
    cache: Option<String>,
    /// Members of a leaderboard, as in 10M@20k/s
    #[arg(long, value_name = "COUNT")]
    leaderboard: Option<String>,
    /// Jobs of a queue, as in 2k/s
    #[arg(long, value_name = "RATE")]
    queue: Option<String>,
    /// Elements of a Bloom filter at 1 %
    #[arg(long, value_name = "COUNT")]
    bloom: Option<String>,
    /// Members of a map of places
    #[arg(long, value_name = "COUNT")]
    places: Option<String>,
    /// Edges of the social graph
    #[arg(long, value_name = "COUNT")]
    edges: Option<String>,
    /// Bytes of a session, a row or a job
    #[arg(long)]
    payload: Option<u64>,
    /// The same as TOML, with [[need]] for any pattern: pattern, entities, ops, parameter, one_key
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Plan for this server: redis, valkey, embedded; all of them if none is given
    #[arg(long)]
    server: Option<String>,
    /// Memory of a node in GiB
    #[arg(long, default_value_t = 16.0)]
    node_memory: f64,
    /// Replicas of each master
    #[arg(long, default_value_t = 1)]
    replicas: u64,
    /// The exponent of Zipf's law that the traffic of entities follows; 0 is uniform
    #[arg(long, default_value_t = 0.0)]
    skew: f64,
    /// Simulate how evenly users are spread over nodes: number of users and of nodes, as in 1G,1000
    #[arg(long, value_name = "USERS,NODES")]
    simulate: Option<String>,
    /// Measure the costs on the server of --url, and put them into --table. It must be one server of this machine without keys in
    /// any database; the database of the URL is flushed
    #[arg(long)]
    measure: bool,
    /// Measure only this pattern or kind of entity; may be given several times
    #[arg(long, value_name = "NAME", requires = "measure")]
    only: Vec<String>,
    /// The server to measure on
    #[arg(
        long,
        default_value = "memory://",
        env = "REDSTART_URL",
        hide_env_values = true,
        requires = "measure"
    )]
    url: String,
    /// A table of costs instead of the one of this version
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// How long each pattern is put under load while it is measured
    #[arg(long, default_value_t = 2.0, requires = "measure")]
    seconds: f64,
    /// Write the page "Scale" of the documentation
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// One JSON object per server and line, for programs
    #[arg(long)]
    json: bool,
}

impl Args {
    fn wanted(&self) -> Result<Wanted, Failure> {
        let mut wanted = match &self.file {
            Some(path) => Wanted::parse(&read(path)?)?,
            None => Wanted::default(),
        };
        // What is given here wins over the file.
        for (flag, field) in [
            (&self.users, &mut wanted.users),
            (&self.checkins, &mut wanted.checkins),
            (&self.uniques, &mut wanted.uniques),
            (&self.activity, &mut wanted.activity),
            (&self.sessions, &mut wanted.sessions),
            (&self.limiter, &mut wanted.limiter),
            (&self.cache, &mut wanted.cache),
            (&self.leaderboard, &mut wanted.leaderboard),
            (&self.queue, &mut wanted.queue),
            (&self.bloom, &mut wanted.bloom),
            (&self.places, &mut wanted.places),
            (&self.edges, &mut wanted.edges),
        ] {
            if let Some(text) = flag {
                *field = Some(text.clone());
            }
        }
        wanted.payload = self.payload.or(wanted.payload);
        Ok(wanted)
    }

    fn limits(&self) -> Result<Limits, Failure> {
        if !(self.node_memory.is_finite() && self.node_memory > 0.0) {
            return Err(Failure::Usage("--node-memory must be above 0".to_owned()));
        }
        if !(0.0..=3.0).contains(&self.skew) {
            return Err(Failure::Usage("--skew must be from 0 to 3".to_owned()));
        }
        Ok(Limits {
            node_memory: self.node_memory * (1u64 << 30) as f64,
            replicas: self.replicas,
            skew: self.skew,
            ..Limits::default()
        })
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::Other(format!("{}: {error}", path.display())))
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if args.measure {
        return measured(&args).await;
    }
    if let Some(text) = &args.simulate {
        return simulated(&args, text);
    }
    let table = match &args.table {
        Some(path) => CostTable::parse(&read(path)?)?,
        None => CostTable::built_in()?,
    };
    if let Some(path) = &args.page {
        return write(path, &page(&table, &naive_reports()?)?);
    }
    let (wanted, limits) = (args.wanted()?, args.limits()?);
    let servers = match &args.server {
        Some(name) => vec![table.server(name)?],
        None => table.servers.iter().collect(),
    };
    for costs in servers {
        let plan = plan(costs, &wanted.needs(costs)?, &limits);
        if args.json {
            let line = serde_json::to_string(&plan);
            say!(
                "{}",
                line.map_err(|error| Failure::Other(error.to_string()))?
            );
        } else {
            show(&plan, &limits);
        }
    }
    Ok(())
}

async fn measured(args: &Args) -> Result<(), Failure> {
    let Some(path) = &args.table else {
        return Err(Failure::Usage(
            "--measure needs --table, the file to write".to_owned(),
        ));
    };
    let mut table = match path.exists() {
        true => CostTable::parse(&read(path)?)?,
        false => CostTable::default(),
    };
    let each = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Failure::Usage("--seconds must be a positive number".to_owned()))?;
    let costs = measure(&args.url, each, &args.only, |what| {
        anstream::eprintln!("  {what}");
    })
    .await?;
    table.replace(costs);
    let text = serde_json::to_string_pretty(&table);
    let text = text.map_err(|error| Failure::Other(error.to_string()))?;
    write(path, &(text + "\n"))
}

fn simulated(args: &Args, text: &str) -> Result<(), Failure> {
    let usage = || Failure::Usage("--simulate needs users and nodes, as in 1G,1000".to_owned());
    let (users, nodes) = text.split_once(',').ok_or_else(usage)?;
    let (users, nodes) = (quantity(users)? as u64, quantity(nodes)? as u64);
    let limits = args.limits()?;
    let balance = simulate(users, nodes, limits.skew, 1);
    if args.json {
        let line = serde_json::to_string(&balance);
        say!(
            "{}",
            line.map_err(|error| Failure::Other(error.to_string()))?
        );
        return Ok(());
    }
    say!(
        "{} users on {} nodes, exponent {}",
        thousands(users as f64),
        balance.nodes,
        balance.exponent
    );
    say!(
        "  the fullest node has {:.2} times the mean memory",
        balance.memory
    );
    say!(
        "  the busiest node has {:.2} times the mean traffic",
        balance.traffic
    );
    say!(
        "  the busiest slot has {:.2} times the mean traffic",
        balance.slot_traffic
    );
    say!(
        "  the busiest user has {:.4} % of all traffic, {:.1} % of its node's",
        balance.hottest_user * 100.0,
        balance.of_its_node * 100.0
    );
    Ok(())
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    let width = table.width().unwrap_or(100);
    table.set_width(width.clamp(40, 160));
    table
}

fn show(plan: &Plan, limits: &Limits) {
    let bold = anstyle::Style::new().bold();
    say!(
        "{bold}{}{bold:#} (costs measured on {})\n",
        plan.server,
        plan.measured
    );
    let mut needs = table(&[
        "pattern",
        "entities",
        "bytes each",
        "memory",
        "op/s",
        "cores",
        "op/s per node",
    ]);
    for cost in &plan.needs {
        needs.add_row([
            cost.need.pattern.clone(),
            thousands(cost.need.entities),
            thousands(cost.bytes_per_entity),
            bytes(cost.bytes),
            thousands(cost.need.ops),
            format!("{:.2}", cost.cores),
            thousands(cost.ops_per_node),
        ]);
    }
    say!("{needs}\n");
    let mut spots = table(&["pattern", "hottest key", "how it is spread", "limited by"]);
    for cost in &plan.needs {
        spots.add_row([&cost.need.pattern, &cost.hottest, &cost.spread, &cost.limit]);
    }
    say!("{spots}\n");
    show_deployment(plan, limits);
    for cost in &plan.needs {
        if let Some(assumed) = &cost.need.assumed {
            say!("  assumed    {}: {assumed}", cost.need.pattern);
        }
    }
    for spot in &plan.hot_spots {
        let red = anstyle::AnsiColor::Red.on_default();
        say!("  {red}hot spot{red:#}   {spot}");
    }
    if !plan.alternatives.is_empty() {
        let mut others = table(&["instead of", "form", "memory", "right"]);
        for other in &plan.alternatives {
            others.add_row([
                other.instead_of.clone(),
                other.form.clone(),
                bytes(other.bytes),
                other.right.clone(),
            ]);
        }
        say!("\n{others}");
    }
    say!();
}

/// The sums, and the nodes that they need.
fn show_deployment(plan: &Plan, limits: &Limits) {
    let embedded = plan.server.starts_with("embedded");
    say!("  memory     {} of data", bytes(plan.bytes));
    say!(
        "  traffic    {} op/s, {:.1} cores, {:.0} Mbit/s",
        thousands(plan.ops),
        plan.cores,
        plan.network / 1e6
    );
    if let Some(quorum) = &plan.quorum {
        say!(
            "  quorum     {} servers of their own, each with {}, {:.2} cores and {:.0} Mbit/s",
            quorum.servers,
            bytes(quorum.bytes),
            quorum.cores,
            quorum.network / 1e6
        );
    }
    if !embedded && plan.masters > 0 {
        say!(
            "  nodes      {} masters of {} (memory asks for {}, CPU for {}, network for {}), {} with replicas",
            plan.masters,
            bytes(limits.node_memory),
            plan.masters_by_memory,
            plan.masters_by_cpu,
            plan.masters_by_network,
            plan.nodes
        );
        say!(
            "  balance    the fullest node has {:.2} times the mean memory, the busiest {:.2} times the mean traffic",
            plan.balance.memory,
            plan.balance.traffic
        );
        let failover = &plan.failover;
        if failover.seconds.is_finite() {
            say!(
                "  failover   {:.1} % of the keys for about {:.0} s; up to {} acknowledged operations lost; {} to copy, {:.0} s",
                failover.share * 100.0,
                failover.seconds,
                thousands(failover.lost_operations),
                bytes(failover.resync_bytes),
                failover.resync_seconds
            );
        } else {
            say!(
                "  failover   none: without replicas {:.1} % of the keys are lost",
                failover.share * 100.0
            );
        }
    }
}

fn bytes(value: f64) -> String {
    match value {
        value if value >= 1e12 => format!("{:.2} TB", value / 1e12),
        value if value >= 1e9 => format!("{:.2} GB", value / 1e9),
        value if value >= 1e6 => format!("{:.1} MB", value / 1e6),
        value if value >= 1e3 => format!("{:.1} KB", value / 1e3),
        value => format!("{value:.0} B"),
    }
}

fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
