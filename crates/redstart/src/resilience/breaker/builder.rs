//! The settings of a breaker, and how it starts.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify};

use super::{
    Breaker, CircuitState, Inner, Owner,
    keep::keep_view,
    local::Local,
    policy::{CallWindow, Policy},
    view::View,
};
use crate::{
    duration::micros,
    error::{Error, Result},
    key::{Keys, Layout},
    store::{Listen, Store},
    token::token,
    watch,
};

/// The most calls of a window.
const MAX_CALLS: u32 = 1000;
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);

/// Settings of a [`Breaker`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct BreakerBuilder {
    store: Store,
    namespace: String,
    name: String,
    window: CallWindow,
    min_calls: u32,
    failure_rate: f64,
    slow: Option<(Duration, f64)>,
    open_for: Duration,
    probes: u32,
    distinct: u32,
    lease: Duration,
    refresh: Duration,
    instance: Option<String>,
    layout: Option<Layout>,
}

impl BreakerBuilder {
    pub(super) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            window: CallWindow::Count(100),
            min_calls: 10,
            failure_rate: 0.5,
            slow: None,
            open_for: Duration::from_secs(30),
            probes: 3,
            distinct: 1,
            lease: Duration::from_secs(10),
            refresh: Duration::from_secs(5),
            instance: None,
            layout: None,
        }
    }

    /// Which calls decide. Default: the last 100.
    pub fn window(mut self, window: CallWindow) -> Self {
        self.window = window;
        self
    }

    /// The share of failures that opens the circuit. Default: 0.5.
    pub fn failure_rate(mut self, rate: f64) -> Self {
        self.failure_rate = rate;
        self
    }

    /// A call of `after` or longer is slow, and this share of slow calls opens the circuit. A slow probe counts as
    /// failed. Default: no call is slow.
    pub fn slow_calls(mut self, after: Duration, rate: f64) -> Self {
        self.slow = Some((after, rate));
        self
    }

    /// With fewer calls than this in the window nothing is decided. Default: 10.
    pub fn min_calls(mut self, calls: u32) -> Self {
        self.min_calls = calls;
        self
    }

    /// How long the circuit stays open before it is probed. Default: 30 s.
    pub fn open_for(mut self, time: Duration) -> Self {
        self.open_for = time;
        self
    }

    /// How many probes may be under way at once over the whole fleet, and how many must succeed to close the
    /// circuit. Default: 3.
    pub fn probes(mut self, probes: u32) -> Self {
        self.probes = probes;
        self
    }

    /// How long a probe may take before its place is given to another and its result is ignored. Default: 10 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How many instances must have seen trouble to open the circuit. Default: 1.
    pub fn distinct_instances(mut self, instances: u32) -> Self {
        self.distinct = instances;
        self
    }

    /// The name of this instance. Default: random. A machine that restarts often should have one.
    pub fn instance(mut self, name: &str) -> Self {
        self.instance = Some(name.to_owned());
        self
    }

    /// Uses key names that the application already has.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// How old the view of the circuit may get before it is looked up, in case a message was lost. Default: 5 s.
    pub fn refresh(mut self, every: Duration) -> Self {
        self.refresh = every;
        self
    }

    fn policy(&self) -> Result<Policy> {
        let share = |what: &str, rate: f64| {
            if rate > 0.0 && rate <= 1.0 {
                Ok((rate * 1e6).round().max(1.0) as u64)
            } else {
                Err(Error::config(format!(
                    "{what} must be above 0 and at most 1"
                )))
            }
        };
        let time = |what: &str, time: Duration| {
            if time < Duration::from_millis(1) || time > MAX_TIME {
                return Err(Error::config(format!("{what} must be from 1 ms to a day")));
            }
            Ok(())
        };
        match self.window {
            CallWindow::Count(calls) if !(1..=MAX_CALLS).contains(&calls) => {
                return Err(Error::config(format!(
                    "a window must count 1 to {MAX_CALLS} calls"
                )));
            }
            CallWindow::Count(calls) if calls < self.min_calls => {
                return Err(Error::config(
                    "the window must count at least min_calls calls",
                ));
            }
            CallWindow::Time(span) => time("a window of time", span)?,
            CallWindow::Count(_) => {}
        }
        time("the time to stay open", self.open_for)?;
        time("a probe's lease", self.lease)?;
        time("the age of a view", self.refresh)?;
        let counts = [
            ("min_calls", self.min_calls),
            ("probes", self.probes),
            ("distinct_instances", self.distinct),
        ];
        for (what, count) in counts {
            if !(1..=MAX_CALLS).contains(&count) {
                return Err(Error::config(format!(
                    "{what} must be from 1 to {MAX_CALLS}"
                )));
            }
        }
        let slow = match self.slow {
            Some((after, rate)) => {
                time("the time of a slow call", after)?;
                share("the rate of slow calls", rate)?
            }
            None => 0,
        };
        Ok(Policy {
            window: self.window,
            min_calls: self.min_calls,
            failures: share("the rate of failures", self.failure_rate)?,
            slow,
            slow_after: self.slow.map(|(after, _)| after),
            open_for: self.open_for,
            probes: self.probes,
            distinct: self.distinct,
            lease: self.lease,
        })
    }

    /// Checks the settings, subscribes to the circuit and looks at it. A store that is down is not an error: the
    /// breaker then starts closed, alone.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for rates outside of 0 to 1, times outside of 1 ms to a day, counts
    /// outside of 1 to 1000, or bad names.
    pub async fn open(self) -> Result<Breaker> {
        let policy = self.policy()?;
        let mut keys = Keys::new(&self.namespace, "breaker")?;
        if let Some(layout) = self.layout {
            keys = keys.layout(layout);
        }
        let entity = keys.entity(&self.name)?;
        let instance = match self.instance {
            Some(name) if name.is_empty() || name.len() > 128 => {
                return Err(Error::config("an instance's name must have 1 to 128 bytes"));
            }
            Some(name) => name,
            None => token(),
        };
        let span = match policy.window {
            CallWindow::Time(span) => span,
            CallWindow::Count(_) => Duration::from_secs(3600),
        };
        let keep = (span.max(policy.open_for).max(policy.lease) * 2).max(Duration::from_secs(60));
        // A store made from a bare connection cannot subscribe; then the refresh alone keeps the view.
        let news = self
            .store
            .subscribe([Listen::Sharded(entity.channel("state"))])
            .await
            .ok();
        // Instances with different windows share the circuit, but not what they count.
        let window = match policy.window {
            CallWindow::Count(calls) => format!("c{calls}"),
            CallWindow::Time(span) => format!("t{}", micros(span)),
        };
        let clock = self.store.clock();
        let inner = Arc::new(Inner {
            window: format!("window:{window}"),
            trouble: format!("trouble:{window}"),
            view: Mutex::new(View::new(clock.now())),
            clock,
            store: self.store,
            entity,
            policy,
            instance,
            keep,
            local: Mutex::new(Local::new()),
            pending: Mutex::default(),
            reporting: AsyncMutex::new(()),
            wake: Notify::new(),
            changes: watch::Sender::new(CircuitState::Closed),
        });
        inner.look().await;
        let Some(runtime) = inner.store.runtime() else {
            return Err(Error::config("a breaker needs a tokio runtime"));
        };
        let keeper = crate::task::spawn_on(
            &runtime,
            keep_view(Arc::downgrade(&inner), news, self.refresh),
        );
        Ok(Breaker(Arc::new(Owner {
            inner,
            keeper: keeper.abort_handle(),
        })))
    }
}
