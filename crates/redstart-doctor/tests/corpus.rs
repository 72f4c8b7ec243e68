//! Recall and precision over seeded servers, each beside its healthy twin.

#[path = "corpus/cases.rs"]
mod cases;
#[path = "corpus/world.rs"]
mod world;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use redstart_testkit::{Kind, Server, figure};

use cases::CASES;
use world::{examine, sure};

#[derive(Default)]
struct Score {
    found: usize,
    missed: Vec<String>,
    wrong: Vec<String>,
}

/// Examines every world of the corpus and its twin, on a few servers at once.
async fn score(kind: Kind, servers: usize, every: usize) -> anyhow::Result<Score> {
    let next = Arc::new(AtomicUsize::new(0));
    let score = Arc::new(Mutex::new(Score::default()));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..servers {
        let (next, score) = (Arc::clone(&next), Arc::clone(&score));
        tasks.spawn(async move {
            let server = Server::builder(kind).start().await?;
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed) * every;
                let Some(case) = CASES.get(at) else {
                    return anyhow::Ok(());
                };
                let report = examine(&server, &case.faulty, case.observe).await?;
                let found = sure(&report);
                let hit = found
                    .iter()
                    .any(|finding| finding.rule == case.rule && finding.subject == case.subject);
                let wrong: Vec<String> = found
                    .iter()
                    .filter(|finding| {
                        finding.rule != case.rule && !case.also.contains(&finding.rule.as_str())
                    })
                    .map(|finding| {
                        format!(
                            "faulty {}: {} {} ({})",
                            case.rule, finding.rule, finding.subject, finding.evidence
                        )
                    })
                    .collect();
                let twin = examine(&server, &case.healthy, case.observe).await?;
                let quiet: Vec<String> = sure(&twin)
                    .iter()
                    .map(|finding| {
                        format!(
                            "healthy {}: {} {} ({})",
                            case.rule, finding.rule, finding.subject, finding.evidence
                        )
                    })
                    .collect();
                let mut score = score.lock().expect("no panic while it is held");
                match hit {
                    true => score.found += 1,
                    false => score.missed.push(format!(
                        "{} {}: {:#?}",
                        case.rule, case.subject, report.findings
                    )),
                }
                score.wrong.extend(wrong);
                score.wrong.extend(quiet);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    drop(tasks);
    Ok(Arc::into_inner(score)
        .expect("all tasks have ended")
        .into_inner()?)
}

fn judge(kind: Kind, score: &Score) {
    let all = score.found + score.missed.len();
    let recall = score.found as f64 / all as f64;
    let precision = score.found as f64 / (score.found + score.wrong.len()) as f64;
    figure(format!(
        "doctor on {kind:?}: recall {recall:.3}, precision {precision:.3} over {all} worlds and their twins"
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
    assert!(twins.is_empty(), "{twins:#?}");
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
