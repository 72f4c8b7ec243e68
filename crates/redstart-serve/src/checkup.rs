//! What `redstart doctor` finds on the server without looking at keys, asked from time to time for the overview.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use redstart_doctor::{Doctor, Finding, Progress, Severity};

/// How often the server is examined.
pub(crate) const EVERY: Duration = Duration::from_secs(60);
/// How long one command of an examination may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The newest examination.
#[derive(Default)]
pub(crate) struct Checkup {
    doctor: RwLock<Option<Arc<Doctor>>>,
    last: Mutex<Option<Arc<Examined>>>,
}

/// What was found, the worst first.
pub(crate) struct Examined {
    pub(crate) at: Instant,
    pub(crate) findings: Vec<Finding>,
    /// What could not be seen.
    pub(crate) blinds: usize,
}

impl Checkup {
    /// Examines this server from now on. An engine of this process is not one that programs use.
    pub(crate) fn of(&self, url: &str) -> redstart_doctor::Result<()> {
        if url.starts_with("memory:") || url.starts_with("file:") {
            return Ok(());
        }
        let doctor = Doctor::builder(url).patience(PATIENCE).build()?;
        *self.doctor.write() = Some(Arc::new(doctor));
        Ok(())
    }

    /// Examines the server.
    pub(crate) async fn look(&self) {
        let Some(doctor) = self.doctor.read().clone() else {
            return;
        };
        match doctor.examine(&Progress::default()).await {
            Ok(report) => {
                let findings = report.sure().cloned().collect();
                let examined = Examined {
                    at: Instant::now(),
                    findings,
                    blinds: report.blinds.len(),
                };
                *self.last.lock() = Some(Arc::new(examined));
            }
            Err(error) => tracing::debug!(%error, "the server could not be examined"),
        }
    }

    pub(crate) fn last(&self) -> Option<Arc<Examined>> {
        self.last.lock().clone()
    }
}

/// The class of a tag.
pub(crate) fn class(severity: Severity) -> &'static str {
    match severity {
        Severity::High => "tag bad",
        Severity::Medium => "tag warn",
        Severity::Low => "tag",
    }
}
