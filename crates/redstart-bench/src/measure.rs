//! Rounds that alternate between the contestants, so that a noisy neighbour hits both.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use comfy_table::{Cell, CellAlignment, Table};

/// What is measured and how; collects the rows of the report.
pub(crate) struct Bench {
    length: Duration,
    rounds: usize,
    json: bool,
    only: Vec<String>,
    family: String,
    rows: Vec<Row>,
}

struct Row {
    family: String,
    name: String,
    peer: String,
    ours: f64,
    theirs: f64,
    ratio: f64,
    floor: f64,
}

impl Bench {
    pub(crate) fn new(millis: u64, rounds: usize, json: bool, only: Vec<String>) -> Self {
        Self {
            length: Duration::from_millis(millis.max(20)),
            rounds: rounds.max(1),
            json,
            only,
            family: String::new(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn family(&mut self, name: &str) {
        self.family = name.to_owned();
        if !self.json {
            eprintln!("{name} …");
        }
    }

    /// Something worth printing beside the ratios: versions, bytes.
    pub(crate) fn note(&self, text: &str) {
        if self.json {
            println!(
                "{}",
                serde_json::json!({ "family": self.family, "note": text })
            );
        } else {
            eprintln!("  {text}");
        }
    }

    /// Compares two ways of doing one thing by their rate with `tasks` concurrent tasks. `floor` is what
    /// the median of the rounds' ratios, ours / theirs, must reach: the two halves of a round follow each
    /// other at once, so what else the machine does falls on both.
    pub(crate) async fn rate<A, FA, B, FB>(
        &mut self,
        name: &str,
        peer: &str,
        floor: f64,
        tasks: usize,
        ours: A,
        theirs: B,
    ) -> anyhow::Result<()>
    where
        A: Fn(usize) -> FA + Clone + Send + Sync + 'static,
        FA: Future<Output = anyhow::Result<()>> + Send,
        B: Fn(usize) -> FB + Clone + Send + Sync + 'static,
        FB: Future<Output = anyhow::Result<()>> + Send,
    {
        if !self.only.is_empty() && !self.only.iter().any(|part| name.contains(part.as_str())) {
            return Ok(());
        }
        let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
        // The first round warms up connections, scripts and caches, and does not count.
        for round in 0..=self.rounds {
            let length = if round == 0 {
                self.length / 4
            } else {
                self.length
            };
            let (our_rate, their_rate) = if round % 2 == 0 {
                let our_rate = drive(length, tasks, &ours).await?;
                (our_rate, drive(length, tasks, &theirs).await?)
            } else {
                let their_rate = drive(length, tasks, &theirs).await?;
                (drive(length, tasks, &ours).await?, their_rate)
            };
            if round > 0 {
                our_rates.push(our_rate);
                their_rates.push(their_rate);
            }
        }
        self.rounds_of(name, peer, floor, our_rates, their_rates);
        Ok(())
    }

    /// Records rounds that were measured elsewhere, each with one rate of both: the median of their ratios
    /// counts.
    pub(crate) fn rounds_of(
        &mut self,
        name: &str,
        peer: &str,
        floor: f64,
        ours: Vec<f64>,
        theirs: Vec<f64>,
    ) {
        let ratio = median(ours.iter().zip(&theirs).map(|(a, b)| a / b).collect());
        self.record(name, peer, median(ours), median(theirs), ratio, floor);
    }

    /// Records a comparison that was measured elsewhere: larger is better on both sides.
    pub(crate) fn row(&mut self, name: &str, peer: &str, ours: f64, theirs: f64, floor: f64) {
        self.record(name, peer, ours, theirs, ours / theirs, floor);
    }

    fn record(&mut self, name: &str, peer: &str, ours: f64, theirs: f64, ratio: f64, floor: f64) {
        let row = Row {
            family: self.family.clone(),
            name: name.to_owned(),
            peer: peer.to_owned(),
            ours,
            theirs,
            ratio,
            floor,
        };
        if self.json {
            println!(
                "{}",
                serde_json::json!({
                    "family": row.family, "name": row.name, "peer": row.peer, "ours": ours,
                    "theirs": theirs, "ratio": ratio, "floor": floor, "ok": ratio >= floor,
                })
            );
        } else {
            eprintln!("  {name} / {peer}: {ratio:.2} (floor {floor})");
        }
        self.rows.push(row);
    }

    /// Prints the table and says whether every ratio reached its floor.
    pub(crate) fn finish(self) -> bool {
        let held = self.rows.iter().all(|row| row.ratio >= row.floor);
        if !self.json {
            let mut table = Table::new();
            table.set_header([
                "family", "what", "peer", "ours /s", "peer /s", "ratio", "floor", "",
            ]);
            for row in &self.rows {
                let number =
                    |n: f64| Cell::new(format!("{n:.0}")).set_alignment(CellAlignment::Right);
                table.add_row([
                    Cell::new(&row.family),
                    Cell::new(&row.name),
                    Cell::new(&row.peer),
                    number(row.ours),
                    number(row.theirs),
                    Cell::new(format!("{:.2}", row.ratio)).set_alignment(CellAlignment::Right),
                    Cell::new(format!("{:.2}", row.floor)).set_alignment(CellAlignment::Right),
                    Cell::new(if row.ratio >= row.floor {
                        "held"
                    } else {
                        "BELOW"
                    }),
                ]);
            }
            println!("{table}");
        }
        held
    }
}

/// Operations a second of `tasks` tasks that each call `work` again and again.
async fn drive<F, Fut>(length: Duration, tasks: usize, work: &F) -> anyhow::Result<f64>
where
    F: Fn(usize) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut set = tokio::task::JoinSet::new();
    let started = Instant::now();
    for task in 0..tasks {
        let (stop, done, work) = (stop.clone(), done.clone(), work.clone());
        set.spawn(async move {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                work(task).await?;
                count += 1;
                // Work that never waits must still let the timer run.
                if count % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            done.fetch_add(count, Ordering::Relaxed);
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(length).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = set.join_next().await {
        ended??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
