//! One server with everything on it: each faulty world and each twin under a prefix of its own, at once, and many keys that
//! are in order around them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use redis::aio::MultiplexedConnection;
use redstart_doctor::{Doctor, Finding, Progress};
use redstart_testkit::{Kind, Server, figure, scale};

use crate::{
    cases::CASES,
    world::{Case, Side, client, send, sure, words},
};

/// Rules that speak of the whole server, which has no second one beside it for the twin, and libraries whose keys have fixed
/// names.
const ALONE: &[&str] = &[
    "keys-command",
    "flush-command",
    "sort-command",
    "slow-script",
    "script-interpolation",
    "sidekiq-dead-process",
    "celery-unacked",
    "celery-eta-beyond-visibility",
    "bullmq-completed-unbounded",
    "rate-limiter-flexible-without-ttl",
];

/// A round of one side's traffic comes this often: a hundred of them must be served at once.
const ROUND: Duration = Duration::from_millis(40);

/// One side of a case, under its prefix.
#[derive(Clone)]
struct Tenant {
    prefix: String,
    case: &'static Case,
    side: Side,
    faulty: bool,
}

impl Tenant {
    /// What the doctor must say of it.
    fn subject(&self) -> String {
        let subject = self.case.subject;
        match subject.strip_prefix("BullMQ queue ") {
            Some(queue) => format!("BullMQ queue {}:{queue}", self.prefix),
            None => format!("{}:{subject}", self.prefix),
        }
    }

    fn is_about(&self, finding: &Finding) -> bool {
        finding.subject.contains(&format!("{}:", self.prefix))
    }
}

/// Words without meaning, each once, that no rule takes for an id.
fn prefixes() -> impl Iterator<Item = String> {
    const SYLLABLES: [&str; 8] = ["ba", "ko", "ri", "tu", "ne", "lo", "mi", "su"];
    (0..512).map(|n| {
        let part = |at: u32| SYLLABLES[(n >> (3 * at)) % 8];
        format!("{}{}{}", part(2), part(0), part(1))
    })
}

fn tenants() -> Vec<Tenant> {
    let plain = CASES.iter().filter(|case| {
        let sides = [&case.faulty, &case.healthy];
        !ALONE.contains(&case.rule)
            && sides.iter().all(|side| {
                side.config.is_empty() && side.guests.is_empty() && side.between.is_empty()
            })
    });
    plain
        .flat_map(|case| [(case, case.faulty, true), (case, case.healthy, false)])
        .zip(prefixes())
        .map(|((case, side, faulty), prefix)| Tenant {
            prefix,
            case,
            side,
            faulty,
        })
        .collect()
}

/// Which words of each line are keys, as the server says.
#[derive(Default)]
struct Keys(HashMap<&'static str, Vec<usize>>);

impl Keys {
    async fn at(&mut self, server: &Server, line: &'static str) -> Result<&[usize]> {
        if !self.0.contains_key(line) {
            let words = words(line, 0);
            let places = match words[0].as_str() {
                "PUBLISH" | "SUBSCRIBE" => vec![1],
                _ => {
                    let mut question = vec!["COMMAND", "GETKEYS"];
                    question.extend(words.iter().map(String::as_str));
                    let keys: Vec<String> = server.query(&question).await.unwrap_or_default();
                    let is_key = |word: &&(usize, &String)| keys.contains(word.1);
                    let places = words.iter().enumerate().skip(1);
                    let places: Vec<(usize, &String)> = places.collect();
                    places.iter().filter(is_key).map(|(at, _)| *at).collect()
                }
            };
            self.0.insert(line, places);
        }
        Ok(self.0.get(line).map_or(&[], Vec::as_slice))
    }

    /// The words of a line with the prefix before each key.
    async fn words(
        &mut self,
        server: &Server,
        line: &'static str,
        i: usize,
        prefix: &str,
    ) -> Result<Vec<String>> {
        let mut words = words(line, i);
        for at in self.at(server, line).await? {
            words[*at] = format!("{prefix}:{}", words[*at]);
        }
        Ok(words)
    }
}

async fn seed(server: &Server, tenant: &Tenant, keys: &mut Keys) -> Result<()> {
    let mut client = server.client().await?;
    for line in tenant.side.seed {
        let (times, line) = match line.strip_prefix('*').and_then(|rest| rest.split_once(' ')) {
            Some((times, line)) => (times.parse()?, line),
            None => (1, *line),
        };
        for i in 0..times {
            let words = keys.words(server, line, i, &tenant.prefix).await?;
            send(&mut client, &words)
                .await
                .with_context(|| format!("{words:?}"))?;
        }
    }
    Ok(())
}

/// Runs the traffic of one side until it is aborted.
async fn run(server: &Server, tenant: &Tenant) -> Result<()> {
    let mut keys = Keys::default();
    let mut clients: HashMap<&str, MultiplexedConnection> = HashMap::new();
    for round in 0.. {
        for line in tenant.side.traffic {
            if let Some(ms) = line.strip_prefix("# sleep ") {
                tokio::time::sleep(Duration::from_millis(ms.parse()?)).await;
                continue;
            }
            let (name, command) = line.split_once(' ').context("a client and a command")?;
            if !clients.contains_key(name) {
                clients.insert(name, client(server).await?);
            }
            let words = keys.words(server, command, round, &tenant.prefix).await?;
            let own = clients.get_mut(name).context("the client")?;
            // A command may be refused; that is part of the world.
            let _ = send(own, &words).await;
        }
        tokio::time::sleep(ROUND).await;
    }
    Ok(())
}

/// Keys that are in order: records without TTL, caches and counters with one.
async fn bulk(server: &Server, keys: u64) -> Result<()> {
    const LUA: &str = "for i = ARGV[1], ARGV[2] do local n = i % 10 \
        if n < 4 then redis.call('hset', 'user:' .. i .. ':profile', 'name', 'ann', 'mail', 'a@b.c') \
        elseif n < 7 then redis.call('set', 'catalog:item:' .. i, '{\"id\":' .. i .. '}', 'EX', 3600) \
        elseif n < 9 then redis.call('set', 'visit:day:' .. i, i, 'EX', 86400) \
        else redis.call('hset', 'order:' .. i, 'total', i, 'state', 'paid') end end";
    for from in (0..keys).step_by(10_000) {
        let to = (from + 9_999).min(keys - 1);
        server
            .command(&["EVAL", LUA, "0", &from.to_string(), &to.to_string()])
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_found_among_many_keys_that_are_in_order() -> Result<()> {
    mixed(Kind::Redis).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_found_among_many_keys_that_are_in_order_on_valkey() -> Result<()> {
    mixed(Kind::Valkey).await
}

async fn mixed(kind: Kind) -> Result<()> {
    let keys = scale(10_000, "doctor mixed keys");
    let server = Arc::new(Server::builder(kind).start().await?);
    bulk(&server, keys).await?;
    let tenants = tenants();
    let mut places = Keys::default();
    for tenant in &tenants {
        seed(&server, tenant, &mut places).await?;
    }
    // What it took to make the world is not part of it.
    server.command(&["SLOWLOG", "RESET"]).await?;
    server.command(&["CONFIG", "RESETSTAT"]).await?;
    let doctor = Doctor::builder(&server.url())
        .sampled()
        .observed(Duration::from_secs(6))
        .gap(Duration::from_millis(100))
        .share(50)
        .names(keys * 4)
        .walk(Duration::from_secs(1200))
        .patience(Duration::from_secs(60))
        .build()?;
    let progress = Progress::default();
    let mut traffic = tokio::task::JoinSet::new();
    for tenant in tenants.iter().filter(|one| !one.side.traffic.is_empty()) {
        let (server, tenant) = (Arc::clone(&server), tenant.clone());
        traffic.spawn(async move { run(&server, &tenant).await });
    }
    let report = tokio::select! {
        report = doctor.examine(&progress) => report?,
        Some(stopped) = traffic.join_next() => {
            stopped??;
            anyhow::bail!("the traffic ended");
        }
    };

    let (mut found, mut missed, mut wrong) = (0, Vec::new(), Vec::new());
    let mut accused = Vec::new();
    for tenant in tenants.iter().filter(|tenant| tenant.faulty) {
        let subject = tenant.subject();
        let is_it =
            |finding: &&Finding| finding.rule == tenant.case.rule && finding.subject == subject;
        match sure(&report).into_iter().find(is_it) {
            Some(_) => found += 1,
            None => {
                let about = report.findings.iter().filter(|one| tenant.is_about(one));
                let about: Vec<String> = about
                    .map(|one| format!("{} {} {}", one.rule, one.subject, one.confidence))
                    .collect();
                missed.push(format!("{} {subject}, but {about:?}", tenant.case.rule));
            }
        }
    }
    for finding in sure(&report) {
        let expected = tenants.iter().any(|tenant| {
            let rule = finding.rule.as_str();
            let own = rule == tenant.case.rule && finding.subject == tenant.subject();
            tenant.faulty && (own || tenant.is_about(finding) && tenant.case.also.contains(&rule))
        });
        if !expected {
            let healthy = |tenant: &&Tenant| !tenant.faulty && tenant.is_about(finding);
            accused.extend(
                tenants
                    .iter()
                    .find(healthy)
                    .map(|tenant| format!("{} in the twin of {}", finding.rule, tenant.case.rule)),
            );
            wrong.push(format!(
                "{} {}: {}",
                finding.rule, finding.subject, finding.evidence
            ));
        }
    }
    let worlds = found + missed.len();
    let recall = found as f64 / worlds as f64;
    let precision = found as f64 / (found + wrong.len()) as f64;
    figure(format!(
        "doctor over {worlds} faulty worlds and their twins among {keys} keys on one server of {kind:?}: recall {recall:.3}, precision {precision:.3}, wrong {wrong:?}, {} names walked in {:.0} s",
        report
            .patterns
            .iter()
            .map(|pattern| pattern.seen)
            .sum::<u64>(),
        report.took.as_secs_f64()
    ));
    assert!(worlds >= 30, "{worlds} worlds");
    assert!(accused.is_empty(), "{accused:#?}: {wrong:#?}");
    assert!(
        recall >= 0.95 && precision >= 0.95,
        "recall {recall}, precision {precision}: missed {missed:#?}; wrong {wrong:#?}; {:#?}",
        report.blinds
    );
    Ok(())
}
