//! Ctrl-C and its like: the first one ends a run, the second one drops it.

/// Why a run ended early.
pub(super) const INTERRUPTED: &str = "it was interrupted";

/// How often somebody asked this process to end: by Ctrl-C, or as `timeout`, CI and service managers do. The first time, the
/// pattern that runs is stopped and what was measured is kept; the second time, everything is dropped.
#[derive(Clone)]
pub(super) struct Signals(tokio::sync::watch::Receiver<u32>);

impl Signals {
    pub(super) fn listen() -> Self {
        let (came, heard) = tokio::sync::watch::channel(0);
        tokio::spawn(async move {
            #[cfg(unix)]
            let mut term =
                tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
            loop {
                #[cfg(unix)]
                let terminated = async {
                    match &mut term {
                        Some(term) => drop(term.recv().await),
                        None => std::future::pending().await,
                    }
                };
                #[cfg(not(unix))]
                let terminated = std::future::pending::<()>();
                tokio::select! {
                    heard = tokio::signal::ctrl_c() => if heard.is_err() { return },
                    () = terminated => {}
                }
                came.send_modify(|times| *times += 1);
            }
        });
        Self(heard)
    }

    /// Waits until there were that many.
    pub(super) async fn came(&self, times: u32) {
        let mut heard = self.0.clone();
        // Without signals there is nothing to wait for.
        if heard.wait_for(|came| *came >= times).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn any(&self) -> bool {
        *self.0.borrow() > 0
    }
}
