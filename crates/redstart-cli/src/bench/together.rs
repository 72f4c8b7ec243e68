//! Several processes that put load on one server together.
//!
//! What one of them counts would be wrong if another were ahead of it: the requests of the one that calibrates, what the server
//! spends without load, and what all of them cost it. So each waits at the end of every [stage](Live::STAGES) until it is
//! given a line; meanwhile it tells how its load goes on. A process whose input ends has lost the one that started it, and
//! ends too.

use std::{io::BufRead as _, process::Stdio, sync::Arc, time::Duration};

use redstart_load::{Live, Report};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
};

use super::{INTERRUPTED, Signals};
use crate::Failure;

/// What a process is told when it is to end its run and to report what it has.
const STOP: &str = "stop";

/// How a load goes on.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Watched {
    pub(super) operations: u64,
    pub(super) errors: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Watched {
    pub(super) fn of(live: &Live) -> Self {
        let (progress, (p50_us, p99_us)) = (live.progress(), live.latency());
        Self {
            operations: progress.operations,
            errors: progress.errors,
            p50_us,
            p99_us,
        }
    }

    /// That of several processes: the median of the whole is not known, and is taken to be the mean of theirs.
    fn all(of: &[Self]) -> Self {
        let operations: u64 = of.iter().map(|one| one.operations).sum();
        let weighted = of.iter().map(|one| one.p50_us * one.operations as f64);
        Self {
            operations,
            errors: of.iter().map(|one| one.errors).sum(),
            p50_us: weighted.sum::<f64>() / (operations as f64).max(1.0),
            p99_us: of.iter().map(|one| one.p99_us).fold(0.0, f64::max),
        }
    }
}

/// What a process tells the one that started it, as lines of JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The end of this stage was reached.
    Stage(usize),
    Watched(Watched),
    Report(Box<Report>),
}

fn tell(line: &Line) {
    if let Ok(line) = serde_json::to_string(line) {
        say!("{line}");
    }
}

pub(super) fn tell_report(report: &Report) {
    tell(&Line::Report(Box::new(report.clone())));
}

/// Makes a run wait for lines of the input, and tells its stages and its progress until it is dropped.
pub(super) struct Obedience(Vec<tokio::task::AbortHandle>);

impl Obedience {
    pub(super) fn new(live: &Arc<Live>) -> Self {
        let run = live.clone();
        // A thread, because reading the input blocks; it ends with the process.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                match line.as_deref() {
                    Ok(STOP) => {
                        run.stop(INTERRUPTED);
                        break;
                    }
                    Ok(_) => run.go_on(),
                    Err(_) => break,
                }
            }
            run.stop("the process that started this one has ended");
            for _ in Live::STAGES {
                run.go_on();
            }
        });
        let run = live.clone();
        let stages = tokio::spawn(async move {
            for stage in 1..=Live::STAGES.len() {
                run.reached(stage).await;
                tell(&Line::Stage(stage));
            }
        });
        let run = live.clone();
        let progress = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(250)).await;
                tell(&Line::Watched(Watched::of(&run)));
            }
        });
        Self(vec![stages.abort_handle(), progress.abort_handle()])
    }
}

impl Drop for Obedience {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

/// One of the processes.
struct Process {
    /// It is killed when this is dropped.
    _child: Child,
    input: ChildStdin,
    /// Stages that it has ended, and those that it was allowed to leave behind.
    reached: usize,
    allowed: usize,
    watched: Watched,
    report: Option<Report>,
}

impl Process {
    /// Its lines go to `heard`, and nothing when it has ended.
    fn start(
        mut command: Command,
        number: usize,
        heard: mpsc::UnboundedSender<(usize, Option<Line>)>,
    ) -> Result<Self, Failure> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes");
        };
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let _ = heard.send((number, serde_json::from_str(&line).ok()));
            }
            let _ = heard.send((number, None));
        });
        Ok(Self {
            _child: child,
            input,
            reached: 0,
            allowed: 0,
            watched: Watched::default(),
            report: None,
        })
    }
}

/// Runs processes stage by stage, and returns their reports; `None` if one of them ended without one. `show` hears how their
/// load goes on. After a signal all are told to stop.
pub(super) async fn together(
    commands: Vec<Command>,
    mut show: impl FnMut(&Watched),
    signals: &Signals,
) -> Result<Option<Vec<Report>>, Failure> {
    let (heard, mut lines) = mpsc::unbounded_channel();
    let mut processes = commands
        .into_iter()
        .enumerate()
        .map(|(number, command)| Process::start(command, number, heard.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut stopped = false;
    while processes.iter().any(|process| process.report.is_none()) {
        let heard = tokio::select! {
            heard = lines.recv() => heard,
            () = signals.came(1), if !stopped => {
                stopped = true;
                for process in &mut processes {
                    // Of one that has ended, its output says so.
                    let _ = process.input.write_all(format!("{STOP}\n").as_bytes()).await;
                }
                continue;
            }
        };
        let Some((number, line)) = heard else {
            return Ok(None);
        };
        let process = &mut processes[number];
        match line {
            Some(Line::Stage(stage)) => process.reached = stage,
            Some(Line::Watched(watched)) => {
                process.watched = watched;
                // Once for all of them.
                if number == 0 {
                    let all: Vec<_> = processes.iter().map(|process| process.watched).collect();
                    show(&Watched::all(&all));
                }
            }
            // A run that ended early has no stages left.
            Some(Line::Report(report)) => {
                process.report = Some(*report);
                process.reached = usize::MAX;
            }
            None if process.report.is_none() => return Ok(None),
            None => {}
        }
        let reached: Vec<usize> = processes.iter().map(|process| process.reached).collect();
        for (number, process) in processes.iter_mut().enumerate() {
            let waits = process.report.is_none() && process.reached > process.allowed;
            if waits && may_leave(&reached, number) {
                process.allowed += 1;
                // If it has ended, its output says so.
                let _ = process.input.write_all(b"\n").await;
            }
        }
    }
    let reports = processes.into_iter().filter_map(|process| process.report);
    Ok(Some(reports.collect()))
}

/// Whether a process may begin its next stage: all others have come as far, and only one counts its own requests at a time.
fn may_leave(reached: &[usize], number: usize) -> bool {
    let stage = reached[number];
    reached.iter().all(|other| *other >= stage)
        && (stage != 1 || reached[..number].iter().all(|other| *other > stage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_calibrate_one_by_one_and_load_together() {
        let may = |reached: &[usize]| -> Vec<bool> {
            (0..reached.len())
                .map(|number| may_leave(reached, number))
                .collect()
        };
        assert_eq!(may(&[1, 0, 1]), [false, true, false]);
        assert_eq!(may(&[1, 1, 1]), [true, false, false]);
        assert_eq!(may(&[2, 1, 1]), [false, true, false]);
        assert_eq!(may(&[2, 2, 2]), [true, true, true]);
        assert_eq!(may(&[3, 2, 3]), [false, true, false]);
        // One that ended early holds nobody up.
        assert_eq!(may(&[usize::MAX, 1, 1])[1..], [true, false]);
    }
}
