//! Recall and precision over seeded servers, each beside its healthy twin.
//!
//! ```text
//! cases.rs      worlds of a plain server: commands, traffic, settings, connections
//! topology.rs   worlds of a Cluster, of replicas and of a Sentinel group
//! library.rs    worlds that Redstart itself makes
//! mixed.rs      all of cases.rs at once on one server, among many keys that are in order
//! world.rs      how a world is made and examined
//! ```
//!
//! A finding counts from a confidence of 0.7 on. It is right if its rule and its subject are those of the world, or if the
//! world says that the rule is right to speak there too (`also`); any other is wrong, also one of the same rule.
//!
//! No other tool is in the run. redis-doctor 1.0, the nearest one, cannot be had: `pip download redis-doctor` finds no
//! distribution of that name on PyPI (tried in November 2026).

#[path = "corpus/cases.rs"]
mod cases;
#[path = "corpus/library.rs"]
mod library;
#[path = "corpus/mixed.rs"]
mod mixed;
#[path = "corpus/topology.rs"]
mod topology;
#[path = "corpus/world.rs"]
mod world;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    pin::Pin,
};

use redstart_doctor::{Doctor, Progress, RULES};
use redstart_testkit::{Kind, Server, figure};

use cases::{CASES, COUNTING};
use world::{Outcome, sure};

#[derive(Default)]
struct Score {
    found: usize,
    missed: Vec<String>,
    wrong: Vec<String>,
}

impl Score {
    fn add(&mut self, outcome: &Outcome) {
        let Outcome {
            rule,
            subject,
            also,
            faulty,
            healthy,
        } = outcome;
        let mut hit = false;
        for finding in sure(faulty) {
            if finding.rule == *rule && finding.subject == *subject {
                hit = true;
            } else if !also.contains(&finding.rule.as_str()) {
                self.wrong.push(format!(
                    "faulty {rule}: {} {} ({})",
                    finding.rule, finding.subject, finding.evidence
                ));
            }
        }
        match hit {
            true => self.found += 1,
            false => self
                .missed
                .push(format!("{rule} {subject}: {:#?}", faulty.findings)),
        }
        for finding in sure(healthy) {
            self.wrong.push(format!(
                "healthy {rule}: {} {} ({})",
                finding.rule, finding.subject, finding.evidence
            ));
        }
    }
}

/// Examines every world of the corpus and its twin, on a few servers at once.
async fn score(kind: Kind, servers: usize, every: usize) -> anyhow::Result<Score> {
    let next = Cell::new(0);
    let score = RefCell::new(Score::default());
    let add = |outcome: &Outcome| score.borrow_mut().add(outcome);
    let plain = async || {
        let server = Server::builder(kind).start().await?;
        while let Some(case) = CASES.get(next.get() * every) {
            next.set(next.get() + 1);
            add(&case.run(&server).await?);
        }
        anyhow::Ok(())
    };
    let others = async {
        topology::outcomes(kind).await?.iter().for_each(add);
        let server = Server::builder(kind).start().await?;
        library::outcomes(&server).await?.iter().for_each(add);
        let stats: String = server.query(&["INFO", "stats"]).await?;
        if stats.contains("client_output_buffer_limit_disconnections") {
            for case in COUNTING {
                add(&case.run(&server).await?);
            }
        }
        anyhow::Ok(())
    };
    let mut all: Vec<Pin<Box<dyn Future<Output = anyhow::Result<()>>>>> = vec![Box::pin(others)];
    for _ in 0..servers {
        all.push(Box::pin(plain()));
    }
    futures_util::future::try_join_all(all).await?;
    Ok(score.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finding_of_the_right_rule_on_a_wrong_subject_is_wrong() -> anyhow::Result<()> {
    let report = async |lock: Option<&str>| {
        let url = format!("memory://score-{}", lock.unwrap_or("none"));
        let store = redstart::Store::connect(&url).await?;
        if let Some(lock) = lock {
            let take = redis::cmd("SETNX").arg(lock).arg("1").to_owned();
            store.query::<()>(&take).await?;
        }
        let doctor = Doctor::builder(&url).sampled().build()?;
        anyhow::Ok(doctor.examine(&Progress::default()).await?)
    };
    let mut outcome = Outcome {
        rule: "lock-without-ttl",
        subject: "lock:report".to_owned(),
        also: &["lock-without-owner"],
        faulty: report(Some("lock:report")).await?,
        healthy: report(None).await?,
    };
    let mut score = Score::default();
    score.add(&outcome);
    assert_eq!(
        (score.found, score.missed.len(), score.wrong.len()),
        (1, 0, 0)
    );
    outcome.subject = "lock:invoice".to_owned();
    score.add(&outcome);
    assert_eq!(
        (score.found, score.missed.len(), score.wrong.len()),
        (1, 1, 1)
    );
    outcome.also = &["lock-without-owner", "lock-without-ttl"];
    score.add(&outcome);
    assert_eq!(
        (score.found, score.missed.len(), score.wrong.len()),
        (1, 2, 1)
    );
    Ok(())
}

/// A new rule needs a world that shows it and one that does not.
#[test]
fn every_rule_has_a_world() {
    let plain = CASES.iter().map(|case| case.rule);
    let known: BTreeSet<&str> = plain
        .chain(topology::RULES.iter().copied())
        .chain(library::RULES.iter().copied())
        .collect();
    let rules: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(known, rules);
}

fn judge(kind: Kind, score: &Score) {
    let all = score.found + score.missed.len();
    let recall = score.found as f64 / all as f64;
    let precision = score.found as f64 / (score.found + score.wrong.len()) as f64;
    let missed = score.missed.iter().filter_map(|one| one.split(':').next());
    let missed: Vec<&str> = missed.collect();
    figure(format!(
        "doctor on {kind:?}: recall {recall:.3}, precision {precision:.3} over {all} worlds and their twins; missed {missed:?}"
    ));
    assert!(
        recall >= 0.95,
        "recall {recall}: missed {:#?}; wrong {:#?}",
        score.missed,
        score.wrong
    );
    assert!(
        precision >= 0.95,
        "precision {precision}: wrong {:#?}; missed {:#?}",
        score.wrong,
        score.missed
    );
    let twins: Vec<_> = score
        .wrong
        .iter()
        .filter(|wrong| wrong.starts_with("healthy"))
        .collect();
    assert!(twins.is_empty(), "{twins:#?}; missed {:#?}", score.missed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_found_and_healthy_twins_are_quiet_on_redis() -> anyhow::Result<()> {
    let score = score(Kind::Redis, 4, 1).await?;
    judge(Kind::Redis, &score);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_found_and_healthy_twins_are_quiet_on_valkey() -> anyhow::Result<()> {
    // Every third case here; all of them in the long campaign.
    let every = if redstart_testkit::scale(1, "doctor corpus") > 1 {
        1
    } else {
        3
    };
    let score = score(Kind::Valkey, 4, every).await?;
    judge(Kind::Valkey, &score);
    Ok(())
}
