//! The settings of a breaker, and how it begins.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::Instant,
};

use super::{
    Breaker, Inner, Local, MAX_CALLS, MAX_TIME, Owner, Policy, Seen, View, Window, view::keep_view,
};
use crate::{
    error::{Error, Result},
    key::Keys,
    store::{Listen, Store},
};

/// Settings of a [`Breaker`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    store: Store,
    namespace: String,
    name: String,
    window: Window,
    min_calls: u32,
    failure_rate: f64,
    slow: Option<(Duration, f64)>,
    open_for: Duration,
    probes: u32,
    distinct: u32,
    lease: Duration,
    refresh: Duration,
    instance: Option<String>,
}

impl Builder {
    pub(super) fn new(store: &Store, namespace: &str, name: &str) -> Self {
        Self {
            store: store.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            window: Window::Count(100),
            min_calls: 10,
            failure_rate: 0.5,
            slow: None,
            open_for: Duration::from_secs(30),
            probes: 3,
            distinct: 1,
            lease: Duration::from_secs(10),
            refresh: Duration::from_secs(5),
            instance: None,
        }
    }

    /// Which calls decide. The last 100, unless set.
    pub fn window(mut self, window: Window) -> Self {
        self.window = window;
        self
    }

    /// The share of failures that opens the circuit. A half, unless set.
    pub fn failure_rate(mut self, rate: f64) -> Self {
        self.failure_rate = rate;
        self
    }

    /// A call of `after` or longer is slow, and this share of slow calls opens the circuit. A slow probe has
    /// failed.
    pub fn slow_calls(mut self, after: Duration, rate: f64) -> Self {
        self.slow = Some((after, rate));
        self
    }

    /// Fewer calls than this in the window decide nothing. 10, unless set.
    pub fn min_calls(mut self, calls: u32) -> Self {
        self.min_calls = calls;
        self
    }

    /// How long the circuit stays open before it is probed. 30 s, unless set.
    pub fn open_for(mut self, time: Duration) -> Self {
        self.open_for = time;
        self
    }

    /// How many probes may be on their way at once, over the whole fleet, and how many must succeed to close
    /// the circuit. 3, unless set.
    pub fn probes(mut self, probes: u32) -> Self {
        self.probes = probes;
        self
    }

    /// How long a probe may take before its place is given to another and its result is ignored. 10 s, unless
    /// set.
    pub fn probe_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How many instances must have seen trouble to open the circuit. 1, unless set.
    pub fn distinct_instances(mut self, instances: u32) -> Self {
        self.distinct = instances;
        self
    }

    /// The name of this instance; random, unless set. A machine that restarts often should have one.
    pub fn instance(mut self, name: &str) -> Self {
        self.instance = Some(name.to_owned());
        self
    }

    /// How old the view of the circuit may get before it is looked up, should a message have been lost. 5 s,
    /// unless set.
    pub fn refresh(mut self, every: Duration) -> Self {
        self.refresh = every;
        self
    }

    fn policy(&self) -> Result<Policy> {
        let share = |what: &str, rate: f64| {
            if rate > 0.0 && rate <= 1.0 {
                Ok((rate * 1e6).round().max(1.0) as u64)
            } else {
                Err(Error::config(format!("{what} is above 0 and at most 1")))
            }
        };
        let time = |what: &str, time: Duration| {
            if time < Duration::from_millis(1) || time > MAX_TIME {
                return Err(Error::config(format!("{what} is from 1 ms to a day")));
            }
            Ok(())
        };
        match self.window {
            Window::Count(calls) if !(1..=MAX_CALLS).contains(&calls) => {
                return Err(Error::config(format!(
                    "a window counts 1 to {MAX_CALLS} calls"
                )));
            }
            Window::Count(calls) if calls < self.min_calls => {
                return Err(Error::config(
                    "the window is smaller than the minimum of calls",
                ));
            }
            Window::Time(span) => time("a window of time", span)?,
            Window::Count(_) => {}
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
                return Err(Error::config(format!("{what} is from 1 to {MAX_CALLS}")));
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

    /// Checks the settings, listens to the circuit and looks at it. A store that is down is no error: the
    /// breaker then starts closed, by itself.
    ///
    /// # Errors
    ///
    /// [`is_config`](Error::is_config) for rates outside of 0 to 1, times outside of 1 ms to a day, counts
    /// outside of 1 to 1000, or bad names.
    pub async fn build(self) -> Result<Breaker> {
        let policy = self.policy()?;
        let entity = Keys::new(&self.namespace, "breaker")?.entity(&self.name)?;
        let instance = match self.instance {
            Some(name) if name.is_empty() || name.len() > 128 => {
                return Err(Error::config("an instance's name has 1 to 128 bytes"));
            }
            Some(name) => name,
            None => format!("{:x}", rand::random::<u64>()),
        };
        let span = match policy.window {
            Window::Time(span) => span,
            Window::Count(_) => Duration::from_secs(3600),
        };
        let keep = (span.max(policy.open_for).max(policy.lease) * 2).max(Duration::from_secs(60));
        // A store made from a bare connection cannot listen; the age of the view has to do.
        let news = self
            .store
            .subscribe([Listen::Sharded(entity.channel("state"))])
            .await
            .ok();
        let inner = Arc::new(Inner {
            store: self.store,
            entity,
            policy,
            instance,
            keep,
            view: Mutex::new(View {
                state: Seen::Closed,
                generation: 0,
                full_until: None,
                alone: false,
                learned: Instant::now(),
            }),
            local: Mutex::new(Local::new()),
            pending: Mutex::new(Vec::new()),
            reporting: AsyncMutex::new(()),
            wake: Notify::new(),
        });
        inner.look().await;
        let Some(runtime) = inner.store.runtime() else {
            return Err(Error::config("a breaker is made within a tokio runtime"));
        };
        let keeper = runtime.spawn(keep_view(Arc::downgrade(&inner), news, self.refresh));
        Ok(Breaker(Arc::new(Owner {
            inner,
            keeper: keeper.abort_handle(),
        })))
    }
}
