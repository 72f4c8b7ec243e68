//! The examination: stages in order, then the rules.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use crate::{
    aof,
    budget::{Budget, Limits},
    collect::{self, Blinds},
    cost::Cost,
    error::{Error, Result},
    node::{self, Nodes},
    observation::{Group, Kind, NodeFacts, Observations, Stage},
    progress::Progress,
    report::{PatternSummary, Report, Server, StageReport},
    rule, rules, snapshot,
    target::{Access, Target},
    text::{count, printable},
    wire::{Answer, words},
};

/// An examination of one server, Sentinel group, Cluster or file. It only reads.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redstart_doctor::Error> {
/// use redstart_doctor::{Doctor, Progress};
///
/// let store = redstart::Store::connect("memory://clinic").await.expect("the embedded engine");
/// store.query::<()>(redis::cmd("SETNX").arg("lock:report").arg("1")).await.expect("written");
///
/// let doctor = Doctor::builder("memory://clinic").sampled().build()?;
/// let report = doctor.examine(&Progress::default()).await?;
/// assert!(report.sure().any(|finding| finding.rule == "lock-without-ttl" && finding.subject == "lock:report"));
/// # Ok(()) }
/// ```
pub struct Doctor {
    target: Target,
    access: Access,
    name: String,
    stages: Stages,
    budget: Budget,
    limits: Limits,
}

#[derive(Clone, Copy, Default)]
struct Stages {
    sampled: bool,
    observed: bool,
}

/// Settings of a [`Doctor`].
#[must_use = "a builder does nothing until `build`"]
pub struct DoctorBuilder {
    url: String,
    stages: Stages,
    budget: Budget,
    limits: Limits,
}

impl DoctorBuilder {
    /// Looks at a sample of the keys, twice.
    pub fn sampled(mut self) -> Self {
        self.stages.sampled = true;
        self
    }

    /// Observes the commands of live traffic by MONITOR, for this long.
    pub fn observed(mut self, time: Duration) -> Self {
        self.stages.observed = true;
        self.budget.observe = time;
        self
    }

    /// How many names are walked at most.
    pub fn names(mut self, names: u64) -> Self {
        self.budget.names = names.max(1);
        self
    }

    /// The time between the two looks.
    pub fn gap(mut self, gap: Duration) -> Self {
        self.budget.gap = gap;
        self
    }

    /// How long one command may take before its connection is given up.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.budget.patience = patience;
        self
    }

    /// The share of a server's time that the examination may take, in percent from 1 to 100: 1 unless set. With more the walk
    /// over the names is faster, and clients of the server wait more often; a server that nobody else uses may give all of it. From 50 on MONITOR also goes on at a server that works at its limit.
    pub fn share(mut self, percent: u8) -> Self {
        self.budget.share = percent.clamp(1, 100);
        self
    }

    /// How long the walk over the names may take, and as long again each of the look at keys, the look at streams and the second
    /// look at keys: a minute unless set.
    pub fn walk(mut self, time: Duration) -> Self {
        self.budget.walk = time;
        self
    }

    /// From this uptime on, the settings of a server are taken to be meant: a day unless set. A younger server may be one of a
    /// test, and rules about its settings are not sure.
    pub fn settled(mut self, uptime: Duration) -> Self {
        self.limits.settled = uptime;
        self
    }

    /// A client or consumer that has asked for nothing for this long is idle: five minutes unless set.
    pub fn idle(mut self, time: Duration) -> Self {
        self.limits.idle = time;
        self
    }

    /// A replica that has acknowledged nothing for this long lags: five seconds unless set. Replicas acknowledge once a second.
    pub fn lag(mut self, time: Duration) -> Self {
        self.limits.lag = time;
        self
    }

    /// A key with this many commands a second is busy: 2,000 unless set.
    pub fn busy(mut self, rate: u64) -> Self {
        self.limits.busy = rate;
        self
    }

    /// The memory in bytes that the server may use, for a container that has less than its host.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.limits.memory = Some(bytes);
        self
    }

    /// Checks the URL. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a URL or file that cannot be examined.
    pub fn build(self) -> Result<Doctor> {
        let (target, access) = Target::parse(&self.url)?;
        let name = match &target {
            Target::Embedded(url) => url.clone(),
            Target::Single(address) => address.to_string(),
            Target::Sentinel { master, .. } => {
                format!("master {} of Sentinel", printable(master.as_bytes()))
            }
            Target::Cluster(seeds) => format!(
                "Cluster of {}",
                seeds.first().map(ToString::to_string).unwrap_or_default()
            ),
            Target::Log(path) | Target::Aof(path) | Target::Rdb(path) => path.display().to_string(),
        };
        Ok(Doctor {
            target,
            access,
            name,
            stages: self.stages,
            budget: self.budget,
            limits: self.limits,
        })
    }
}

impl Doctor {
    /// Starts from the URL of a store or the path of a file: an RDB file, an append-only file or a MONITOR log.
    pub fn builder(url: &str) -> DoctorBuilder {
        DoctorBuilder {
            url: url.to_owned(),
            stages: Stages::default(),
            budget: Budget::default(),
            limits: Limits::default(),
        }
    }

    /// Examines it.
    ///
    /// What cannot be seen is named in the report. When `progress` is stopped, the report holds what is known by then.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no server can be reached; [`Error::Usage`] or [`Error::File`] for a file.
    ///
    /// # Cancel safety
    ///
    /// Nothing is written, so nothing is left behind.
    pub async fn examine(&self, progress: &Progress) -> Result<Report> {
        let begun = Instant::now();
        let mut run = Run::default();
        run.facts.limits = self.limits;
        match &self.target {
            Target::Log(path) => {
                let (path, budget, progress) =
                    (path.clone(), self.budget.clone(), progress.clone());
                let read = blocking(move || collect::monitor::from_log(&path, &budget, &progress));
                let log = read.await?;
                run.cost.add(&log.cost);
                run.blinds = log.blinds;
                run.facts.trace = Some(log.trace);
                run.lost = !log.whole;
                run.facts.partial = run.lost;
                run.facts.fold();
                run.observed = true;
            }
            Target::Aof(path) => {
                let (from, watch) = (path.clone(), progress.clone());
                match blocking(move || aof::load(&from, &watch)).await? {
                    Some(loaded) => {
                        let (written, is_dated) = (loaded.written, loaded.is_dated);
                        self.data(&mut run, loaded.store.clone(), progress).await;
                        run.time_of_file(written, is_dated);
                    }
                    None => run.stopped_loading(),
                }
            }
            Target::Rdb(path) => {
                progress.step("loading the file", 0, 1);
                let (from, watch) = (path.clone(), progress.clone());
                let Some(loaded) = blocking(move || snapshot::load(&from, &watch)).await? else {
                    run.stopped_loading();
                    return Ok(run.report(self, begun.elapsed(), progress.is_stopped()));
                };
                let summary = loaded.summary;
                self.data(&mut run, loaded.store, progress).await;
                if !loaded.is_dated {
                    run.blinds.note(
                        "the time of the file",
                        "it does not say when it was written, and is taken to be as old as its last change",
                    );
                }
                if summary.expired > 0 {
                    run.blinds.note(
                        format!("{} keys", summary.expired),
                        "they had expired when the file was written, as far as its time is known",
                    );
                }
                for (kind, count) in &summary.left_out {
                    run.blinds.note(
                        format!("{count} values of {}", printable(kind.as_bytes())),
                        "the type belongs to a module that is not known here",
                    );
                }
            }
            target => {
                run.live = true;
                let nodes =
                    node::connect(target, &self.access, self.budget.patience, progress).await?;
                run.nodes(nodes, &self.access, self.stages, &self.budget, progress)
                    .await;
            }
        }
        Ok(run.report(self, begun.elapsed(), progress.is_stopped()))
    }
}

impl Doctor {
    /// Looks at the keys of a file, which are in an engine of their own.
    async fn data(&self, run: &mut Run, store: redstart::Store, progress: &Progress) {
        let mut wire = crate::wire::Wire::embedded(store);
        wire.progress = progress.clone();
        let nodes = Nodes::one(node::Node {
            address: self.name.clone(),
            at: None,
            replica: false,
            shard: 0,
            wire,
        });
        let stages = Stages {
            sampled: true,
            observed: false,
        };
        let budget = Budget {
            gap: Duration::ZERO,
            ..self.budget.clone()
        };
        run.file = true;
        run.nodes(nodes, &self.access, stages, &budget, progress)
            .await;
        // Its settings are those of the embedded engine, not of the server that wrote the file.
        run.facts.nodes.clear();
        run.free = false;
        run.blinds.note(
            "what changes",
            "a file is one moment: growth, traffic and clients need a live server",
        );
    }
}

/// The time and the commands that a part of an examination took.
#[derive(Clone, Copy, Default)]
struct Spent {
    took: Duration,
    commands: u64,
}

/// Says what was spent since it was last read.
struct Meter {
    since: Instant,
    commands: Option<u64>,
}

impl Meter {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            commands: None,
        }
    }

    /// What connections of their own cost is in `besides`.
    fn read(&mut self, nodes: &[node::Node], besides: &Cost) -> Spent {
        let own: u64 = nodes.iter().map(|node| node.wire.cost.commands).sum();
        let all = own + besides.commands;
        // The first reading has the commands by which the connections were opened.
        let before = self.commands.replace(all).unwrap_or(besides.commands);
        let since = std::mem::replace(&mut self.since, Instant::now());
        Spent {
            took: since.elapsed(),
            commands: all - before,
        }
    }
}

/// What an examination has gathered.
#[derive(Default)]
struct Run {
    facts: Observations,
    blinds: Blinds,
    /// What recognition asked on the way.
    asked: collect::recognition::Asked,
    cost: Cost,
    /// By stage.
    spent: [Spent; 3],
    free: bool,
    sampled: bool,
    observed: bool,
    /// What was asked for.
    stages: Stages,
    /// There are servers, and not only a file.
    live: bool,
    /// The keys are those of a file.
    file: bool,
    /// A server could not be reached, its connection was lost on the way, or its commands were not observed to the end.
    lost: bool,
}

impl Run {
    /// Says at which time the data of an append-only file is looked at.
    fn time_of_file(&mut self, written: Option<i64>, is_dated: bool) {
        let time = written.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        let time = time.map_or_else(|| "an unknown time".to_owned(), |time| time.to_string());
        let why = match is_dated {
            true => {
                format!("its last time stamp is {time}; what had expired by then is not looked at")
            }
            false => format!(
                "it has no time stamp and is taken to be as old as its last change, {time}; what had expired by then is not looked at"
            ),
        };
        self.blinds.note("the time of the file", why);
    }

    fn stopped_loading(&mut self) {
        self.file = true;
        self.blinds.note("the file", "it was not loaded to its end");
    }

    async fn nodes(
        &mut self,
        nodes: Nodes,
        access: &Access,
        stages: Stages,
        budget: &Budget,
        progress: &Progress,
    ) {
        let Nodes {
            mut nodes,
            cluster,
            slots,
            unreachable,
            spent,
        } = nodes;
        self.facts.cluster = cluster;
        self.stages = stages;
        self.cost.add(&spent);
        self.spend(
            Stage::Free,
            Spent {
                commands: spent.commands,
                ..Spent::default()
            },
        );
        self.lost |= !unreachable.is_empty();
        for (address, why) in unreachable {
            self.blinds.note(format!("server {address}"), why);
        }
        for node in &mut nodes {
            node.wire.throttle.share = budget.share;
        }
        let mut meter = Meter::new();
        let all = nodes.len() as u64;
        for (done, node) in nodes.iter_mut().enumerate() {
            progress.step("asking servers", done as u64, all);
            let facts = collect::server::facts(node, &mut self.blinds).await;
            self.facts.nodes.push(facts);
        }
        let asked = Instant::now();
        let told = |node: &NodeFacts| !node.info.is_empty();
        self.free = self.facts.nodes.iter().any(told);
        self.lost |= self.free && !self.facts.nodes.iter().all(told);
        let now = now(&mut nodes).await;
        self.spend(Stage::Free, meter.read(&nodes, &self.cost));

        // Replicas are asked for keys where there are any, so that masters keep their time.
        let readers = readers(&nodes, &self.facts.nodes, &mut self.blinds);
        let mut places = Places::new();
        let mut suspects = collect::library::Suspects::default();
        if stages.sampled && !progress.is_stopped() {
            self.other_databases(access);
            let found = collect::keys::names(
                &mut nodes,
                &readers,
                &slots,
                budget,
                progress,
                &mut self.blinds,
            )
            .await;
            self.facts.seen = found.seen;
            self.facts.keys = found.keys;
            within(&mut nodes, Some(budget.walk));
            self.facts.groups =
                collect::keys::look(&mut nodes, &found, progress, &mut self.blinds).await;
            within(&mut nodes, None);
            progress.step("recognising libraries", 0, 1);
            self.recognise(&mut nodes, &readers, &slots, &found, budget)
                .await;
            suspects = collect::library::look(
                &mut nodes,
                &mut self.facts.libraries,
                &self.facts.groups,
                &self.facts.nodes,
                &slots,
                now,
                &mut self.blinds,
            )
            .await;
            places = collect::keys::places(&found);
            self.sampled = found.answered > 0;
            self.lost |= self.sampled && found.answered < readers.len();
            self.facts.sampled = Some(access.db);
        }
        self.spend(Stage::Sampled, meter.read(&nodes, &self.cost));
        let streams = self
            .streams(&mut nodes, &readers, &places, budget, now)
            .await;
        self.spend(Stage::Free, meter.read(&nodes, &self.cost));

        let looked = Instant::now();
        if stages.observed && !progress.is_stopped() {
            let observed = collect::monitor::observe(
                &mut nodes,
                access,
                budget,
                progress,
                &mut self.cost,
                &mut self.blinds,
            )
            .await;
            self.observed = observed.is_some();
            self.lost |= observed.as_ref().is_some_and(|observed| !observed.whole);
            self.facts.trace = observed.map(|observed| observed.trace);
            // On a Cluster a key would have to be asked for at its owner; the sample has to do there.
            if let (Some(trace), true, false) = (&self.facts.trace, self.sampled, cluster)
                && let Some(node) = nodes.iter_mut().find(|node| !node.replica)
            {
                let groups = &mut self.facts.groups;
                collect::keys::look_at_traffic(node, trace, access.db, groups, &mut self.blinds)
                    .await;
            }
            self.facts.suspect_traffic();
            let libraries = &mut self.facts.libraries;
            collect::library::refute(&mut nodes, libraries, &mut self.blinds).await;
        }
        self.spend(Stage::Observed, meter.read(&nodes, &self.cost));
        if self.sampled {
            let left = budget.gap.saturating_sub(looked.elapsed());
            progress.sleep("waiting for the second look", left).await;
            // The wait asks nothing of anybody.
            meter.read(&nodes, &self.cost);
            within(&mut nodes, Some(budget.walk));
            let groups = &mut self.facts.groups;
            collect::keys::look_again(&mut nodes, groups, &places, &mut self.blinds).await;
            within(&mut nodes, None);
            collect::library::look_again(&mut nodes, &mut self.facts.libraries, &suspects).await;
            for (facts, (index, name)) in self.facts.streams.iter_mut().zip(&streams) {
                collect::stream::look_again(&mut nodes[*index], name, facts).await;
            }
            for (node, facts) in nodes.iter_mut().zip(&mut self.facts.nodes) {
                collect::server::look_again(node, facts).await;
            }
            self.facts.gap = looked.elapsed().as_secs_f64();
        } else {
            let again: Vec<bool> = self
                .facts
                .nodes
                .iter()
                .map(NodeFacts::counts_errors)
                .collect();
            if again.contains(&true) {
                let left = budget.gap.saturating_sub(asked.elapsed());
                progress.sleep("waiting for the second look", left).await;
                meter.read(&nodes, &self.cost);
            }
            for ((node, facts), _) in nodes
                .iter_mut()
                .zip(&mut self.facts.nodes)
                .zip(again)
                .filter(|(_, again)| *again)
            {
                collect::server::look_at_errors_again(node, facts).await;
            }
            self.spend(Stage::Free, meter.read(&nodes, &self.cost));
        }
        self.spend(Stage::Sampled, meter.read(&nodes, &self.cost));
        self.facts.partial = self.lost || nodes.iter().any(|node| node.wire.is_broken());
        self.facts.fold();
        for node in &nodes {
            self.cost.add(&node.wire.cost);
            for (command, why) in &node.wire.refused {
                let what = format!("{command} on {}", node.address);
                self.blinds.note(what, format!("refused: {why}"));
            }
            if node.wire.is_broken() {
                self.lost = true;
                self.blinds.note(
                    format!("server {}", node.address),
                    "the connection was lost on the way; what came until then counts",
                );
            }
        }
    }

    fn spend(&mut self, stage: Stage, spent: Spent) {
        let sum = &mut self.spent[stage as usize];
        sum.took += spent.took;
        sum.commands += spent.commands;
    }

    /// Which libraries keep what: by names first, then by what the keys hold.
    async fn recognise(
        &mut self,
        nodes: &mut [node::Node],
        readers: &[usize],
        slots: &node::Slots,
        found: &collect::keys::Names,
        budget: &Budget,
    ) {
        let libraries = &mut self.facts.libraries;
        libraries.suspect_all(found.signs.libraries());
        let blinds = &mut self.blinds;
        let recognition = collect::recognition::recognise(
            nodes,
            readers,
            slots,
            found,
            budget.recognise,
            &mut self.asked,
            blinds,
        )
        .await;
        for digest in self.asked.scripts.drain(..) {
            libraries.see_script(digest);
        }
        if let Some(recognition) = recognition {
            libraries.recognise(recognition);
        }
        collect::library::refute(nodes, libraries, &mut self.blinds).await;
        self.facts.assign();
    }

    /// Streams of the sample, or those that a short search finds.
    async fn streams(
        &mut self,
        nodes: &mut [node::Node],
        readers: &[usize],
        places: &Places,
        budget: &Budget,
        now: u64,
    ) -> Vec<(usize, Vec<u8>)> {
        within(nodes, Some(budget.walk));
        // Those of the sample first: it has some of every pattern.
        let first = readers.first().copied().unwrap_or(0);
        let mut found = streams_of_sample(&self.facts.groups, places, first);
        let mut known: HashSet<Vec<u8>> = found.iter().map(|(_, name)| name.clone()).collect();
        for &index in readers {
            for name in collect::stream::find(&mut nodes[index], &mut self.blinds).await {
                if known.insert(name.clone()) {
                    found.push((index, name));
                }
            }
        }
        if found.len() > STREAMS {
            let why = format!(
                "{STREAMS} of {} that were found were looked at",
                found.len()
            );
            self.blinds.note("streams", why);
            found.truncate(STREAMS);
        }
        let mut kept = Vec::new();
        let all = found.len();
        for (done, (reader, name)) in found.into_iter().enumerate() {
            if nodes[reader].wire.is_ended() {
                let why = format!("{done} of {all} were looked at in the time there was");
                self.blinds.note("streams", why);
                break;
            }
            // A replica does not know when a consumer last asked.
            let index = master(nodes, reader);
            let blinds = &mut self.blinds;
            let known = self.asked.streams.get(&name).copied();
            let facts = collect::stream::facts(&mut nodes[index], &name, known, now, blinds).await;
            if let Some(mut facts) = facts {
                let sampled = self.facts.groups.iter_mut();
                let sampled = sampled.filter(|group| group.kind == Kind::Stream);
                for fact in sampled.flat_map(|group| &mut group.facts) {
                    if fact.name == name {
                        fact.memory = facts.memory;
                    }
                }
                let libraries = &self.facts.libraries;
                facts.library = libraries.owner(&name).map(str::to_owned);
                // Without the sample there are only names.
                facts.suspect = match (&facts.library, self.sampled) {
                    (Some(_), _) => None,
                    (None, true) => libraries.suspect(&name).map(str::to_owned),
                    (None, false) => crate::library::suspect_of_stream(&name).map(str::to_owned),
                };
                self.facts.streams.push(facts);
                kept.push((index, name));
            }
        }
        within(nodes, None);
        kept
    }

    /// Keys of other databases are not looked at.
    fn other_databases(&mut self, access: &Access) {
        for node in &self.facts.nodes {
            let others: Vec<&str> = node
                .info
                .keys()
                .filter_map(|name| name.strip_prefix("db"))
                .filter(|db| db.parse::<u32>().is_ok_and(|db| db != access.db))
                .collect();
            if !others.is_empty() {
                let list = others.join(", ");
                let why = match self.file {
                    true => "only database 0 of a file is looked at",
                    false => "only one database is looked at; name another in the URL",
                };
                self.blinds
                    .note(format!("databases {list} on {}", node.address), why);
            }
        }
    }

    fn report(mut self, doctor: &Doctor, took: Duration, interrupted: bool) -> Report {
        let findings = rule::examine(&self.facts);
        let mut patterns: Vec<PatternSummary> = self
            .facts
            .groups
            .iter()
            .map(|group| PatternSummary {
                pattern: group.pattern.clone(),
                kind: group.kind.name(),
                seen: group.seen,
                without_ttl: group.permanent(),
                library: group.library.clone(),
            })
            .collect();
        patterns.sort_by(|a, b| b.seen.cmp(&a.seen).then_with(|| a.pattern.cmp(&b.pattern)));
        if let Some(trace) = &self.facts.trace
            && trace.unfollowed > 0
        {
            self.blinds.note(
                "sequences",
                format!(
                    "{} commands were on keys beyond those that are followed",
                    count(trace.unfollowed)
                ),
            );
        }
        if let Some(trace) = &self.facts.trace
            && trace.unfollowed_clients > 0
        {
            self.blinds.note(
                "connections",
                format!(
                    "{} commands were of connections beyond the first {}, and were not followed; observe for a shorter time",
                    count(trace.unfollowed_clients),
                    count(trace.connections() as u64)
                ),
            );
        }
        if let Some(trace) = &self.facts.trace
            && trace.crowded > 0
        {
            self.blinds.note(
                "sequences of many clients",
                format!(
                    "at {} commands no more than a few reads and writes of each key were followed at once",
                    count(trace.crowded)
                ),
            );
        }
        Report {
            target: doctor.name.clone(),
            servers: self
                .facts
                .nodes
                .iter()
                .map(|node| {
                    let field =
                        |name: &str| node.info.get(name).map(|text| printable(text.as_bytes()));
                    Server {
                        address: node.address.clone(),
                        role: if node.replica { "replica" } else { "master" },
                        version: match field("valkey_version") {
                            Some(version) => format!("Valkey {version}"),
                            None => format!(
                                "Redis {}",
                                field("redis_version")
                                    .unwrap_or_else(|| "of unknown version".to_owned())
                            ),
                        },
                    }
                })
                .collect(),
            stages: self.stages(),
            findings,
            suppressed: Vec::new(),
            patterns,
            libraries: self
                .facts
                .libraries
                .found
                .iter()
                .map(|library| library.name.clone())
                .collect(),
            blinds: self.blinds.finish(),
            cost: self.cost,
            took,
            interrupted,
            partial: interrupted || self.lost,
            redacted: false,
        }
    }

    fn stages(&self) -> Vec<StageReport> {
        let rules_of = |stage: Stage| {
            rules::RULES
                .iter()
                .filter(|rule| rule.stage == stage)
                .count()
        };
        let blind = |stage: Stage, option: &str, sees: &str| {
            format!(
                "did not run ({option}); {} rules need it to see {sees}",
                rules_of(stage)
            )
        };
        let refused = |asked: bool, command: &str, blind: String| match asked {
            true => format!("did not run, although it was asked for: no server answered {command}"),
            false => blind,
        };
        // What a file cannot show was not asked for.
        let asked = match self.file {
            true => Stages::default(),
            false => self.stages,
        };
        let trace = self.facts.trace.as_ref();
        vec![
            StageReport {
                stage: Stage::Free,
                took: self.spent[Stage::Free as usize].took,
                commands: self.spent[Stage::Free as usize].commands,
                ran: self.free,
                asked: self.live,
                note: match self.free {
                    true => format!(
                        "settings, statistics, SLOWLOG, LATENCY and clients of {} servers; {} streams",
                        self.facts.nodes.len(),
                        self.facts.streams.len()
                    ),
                    false => refused(
                        self.live,
                        "INFO",
                        blind(
                            Stage::Free,
                            "a file has no server",
                            "settings and statistics",
                        ),
                    ),
                },
            },
            StageReport {
                stage: Stage::Sampled,
                took: self.spent[Stage::Sampled as usize].took,
                commands: self.spent[Stage::Sampled as usize].commands,
                ran: self.sampled,
                asked: self.sampled || asked.sampled,
                note: match self.sampled {
                    true => format!(
                        "{} of {} names in {} patterns; two looks {:.1} s apart",
                        count(self.facts.seen),
                        count(self.facts.keys),
                        count(self.facts.groups.len() as u64),
                        self.facts.gap
                    ),
                    false => refused(
                        asked.sampled,
                        "SCAN",
                        blind(
                            Stage::Sampled,
                            "--sample or --all",
                            "keys: TTLs, types, sizes, libraries",
                        ),
                    ),
                },
            },
            StageReport {
                stage: Stage::Observed,
                took: self.spent[Stage::Observed as usize].took,
                commands: self.spent[Stage::Observed as usize].commands,
                ran: self.observed,
                asked: self.observed || asked.observed,
                note: match trace {
                    Some(trace) => format!(
                        "{} commands of {} connections in {:.1} s. It cannot see the database: a cache that is written before its database looks like any other",
                        count(trace.lines),
                        count(trace.connections() as u64),
                        trace.seconds()
                    ),
                    None => refused(
                        asked.observed,
                        "MONITOR",
                        blind(
                            Stage::Observed,
                            match self.file {
                                true => "a file has no traffic",
                                false => "--observe 10s or --all",
                            },
                            "command sequences: races, locks, queues",
                        ),
                    ),
                },
            },
        ]
    }
}

/// The node on which each key of the sample was found.
type Places = HashMap<Vec<u8>, usize>;

/// Streams that are looked at, over all shards.
const STREAMS: usize = 300;

/// The streams of the sample, each with the node that has it.
fn streams_of_sample(groups: &[Group], places: &Places, first: usize) -> Vec<(usize, Vec<u8>)> {
    let streams = groups.iter().filter(|group| group.kind == Kind::Stream);
    streams
        .flat_map(|group| &group.facts)
        .map(|fact| {
            let at = places.get(&fact.name).copied().unwrap_or(first);
            (at, fact.name.clone())
        })
        .collect()
}

/// Gives the part that begins so much time, or takes the end of the last one away.
fn within(nodes: &mut [node::Node], time: Option<Duration>) {
    let until = time.and_then(|time| Instant::now().checked_add(time));
    for node in nodes {
        node.wire.until = until;
    }
}

/// The master of a node's shard, if it can be asked.
fn master(nodes: &[node::Node], of: usize) -> usize {
    let is_it = |node: &node::Node| {
        node.shard == nodes[of].shard && !node.replica && !node.wire.is_broken()
    };
    nodes.iter().position(is_it).unwrap_or(of)
}

/// One reader per shard: a replica if there is one whose data is not of yesterday.
fn readers(nodes: &[node::Node], facts: &[NodeFacts], blinds: &mut Blinds) -> Vec<usize> {
    let is_stale = |index: usize| {
        facts.get(index).is_some_and(|facts| {
            let says = |name: &str, what: &str| facts.info.get(name).is_some_and(|is| is == what);
            says("master_link_status", "down") || says("master_sync_in_progress", "1")
        })
    };
    for (index, node) in nodes
        .iter()
        .enumerate()
        .filter(|(index, _)| is_stale(*index))
    {
        let why = match node.replica && master(nodes, index) != index {
            true => "the replica has no connection to its master, so its keys were not read",
            false => "the replica has no connection to its master, so its keys may be of long ago",
        };
        blinds.note(format!("keys on {}", node.address), why);
    }
    let mut readers: Vec<usize> = Vec::new();
    let shards = nodes.iter().map(|node| node.shard).max().unwrap_or(0);
    for shard in 0..=shards {
        let of_shard = || {
            nodes
                .iter()
                .enumerate()
                .filter(|(_, node)| node.shard == shard && !node.wire.is_broken())
        };
        let replica = of_shard().find(|(index, node)| node.replica && !is_stale(*index));
        let master = || of_shard().find(|(_, node)| !node.replica);
        if let Some((index, _)) = replica.or_else(master).or_else(|| of_shard().next()) {
            readers.push(index);
        }
    }
    readers
}

/// Runs what reads a file beside the task that waits for it, which can be told to stop meanwhile.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::File(error.to_string()))?
}

/// The servers' time in milliseconds.
pub(crate) async fn now(nodes: &mut [node::Node]) -> u64 {
    for node in nodes {
        let time: Answer<Vec<u64>> = node.wire.get(words!["TIME"]).await;
        if let Ok([seconds, micros]) = time.as_deref() {
            return seconds * 1000 + micros / 1000;
        }
    }
    jiff::Timestamp::now()
        .as_millisecond()
        .try_into()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;

    async fn node(replica: bool, shard: usize) -> node::Node {
        let store = redstart::Store::connect("memory://readers")
            .await
            .expect("an engine");
        node::Node {
            address: format!("{}-{shard}", if replica { "replica" } else { "master" }),
            at: None,
            replica,
            shard,
            wire: Wire::embedded(store),
        }
    }

    fn link(status: &str) -> NodeFacts {
        let mut facts = NodeFacts::default();
        facts
            .info
            .insert("master_link_status".to_owned(), status.to_owned());
        facts
    }

    /// On one thread: what reads the file must not keep the one who wants it to stop from saying so.
    #[tokio::test]
    async fn the_reading_of_a_log_can_be_stopped() -> Result<()> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "1700000000.1 [0 10.0.0.1:5] \"GET\" \"k\"\n".repeat(100_000);
        std::fs::write(file.path(), text).expect("written");
        let doctor = Doctor::builder(&file.path().display().to_string()).build()?;
        let progress = Progress::default();
        let (report, ()) = tokio::join!(doctor.examine(&progress), async { progress.stop() });
        let report = report?;
        assert!(report.interrupted && report.partial);
        assert!(report.cost.lines < 100_000, "{:?}", report.cost);
        Ok(())
    }

    #[test]
    fn a_stream_of_the_sample_is_asked_for_where_it_was_found() {
        let fact = crate::observation::KeyFact {
            name: b"orders".to_vec(),
            kind: Kind::Stream,
            ..Default::default()
        };
        let groups = [Group {
            kind: Kind::Stream,
            facts: vec![fact],
            ..Group::default()
        }];
        let places = Places::from([(b"orders".to_vec(), 2)]);
        let found = streams_of_sample(&groups, &places, 0);
        assert_eq!(found, [(2, b"orders".to_vec())]);
    }

    #[tokio::test]
    async fn a_replica_without_its_master_is_not_read() {
        let nodes = [
            node(false, 0).await,
            node(true, 0).await,
            node(false, 1).await,
            node(true, 1).await,
            node(true, 2).await,
        ];
        let facts = [
            NodeFacts::default(),
            link("down"),
            NodeFacts::default(),
            link("up"),
            link("down"),
        ];
        let mut blinds = Blinds::default();
        assert_eq!(readers(&nodes, &facts, &mut blinds), [0, 3, 4]);
        let notes = blinds.finish();
        let notes: Vec<&str> = notes.iter().map(|note| note.what.as_str()).collect();
        assert_eq!(notes, ["keys on replica-0", "keys on replica-2"]);
        // What only a master knows is asked there.
        assert_eq!(master(&nodes, 3), 2);
        assert_eq!(master(&nodes, 4), 4);
    }
}
