//! The libraries that are known, and their names.

use std::{fmt, str::FromStr};

/// A library that keeps data in Redis.
///
/// ```
/// use redstart_adopt::Library;
///
/// assert_eq!(Library::BullMq.name(), "bullmq");
/// assert_eq!("rate-limiter-flexible".parse(), Ok(Library::RateLimiterFlexible));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Library {
    /// BullMQ 4 to 6 (npm `bullmq`), a queue.
    BullMq,
    /// Bull 3 and 4 (npm `bull`), a queue.
    Bull,
    /// Sidekiq (Ruby), a queue.
    Sidekiq,
    /// Celery with kombu's Redis transport (Python), a queue.
    Celery,
    /// RQ (Python), a queue.
    Rq,
    /// asynq (Go), a queue.
    Asynq,
    /// dramatiq (Python), a queue.
    Dramatiq,
    /// `redis.lock.Lock` of redis-py, a lock.
    RedisPyLock,
    /// redlock (npm), a lock.
    Redlock,
    /// Locks of Redisson (Java).
    Redisson,
    /// rate-limiter-flexible (npm).
    RateLimiterFlexible,
    /// express-rate-limit with rate-limit-redis (npm).
    ExpressRateLimit,
    /// limits (Python), a rate limiter.
    Limits,
    /// connect-redis (npm), sessions of Express.
    ConnectRedis,
    /// Spring Session (Java).
    SpringSession,
    /// Django's cache, its own backend or django-redis (Python).
    DjangoCache,
    /// The cache of Rails (Ruby).
    RailsCache,
    /// The patterns of Redstart itself.
    Redstart,
}

/// What a library is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Purpose {
    /// Jobs that workers run.
    Queue,
    /// Locks.
    Lock,
    /// Rate limits.
    Limiter,
    /// Sessions of web applications.
    Sessions,
    /// Copies of what is kept elsewhere.
    Cache,
    /// Several of them.
    Toolkit,
}

impl Library {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::BullMq,
        Self::Bull,
        Self::Sidekiq,
        Self::Celery,
        Self::Rq,
        Self::Asynq,
        Self::Dramatiq,
        Self::RedisPyLock,
        Self::Redlock,
        Self::Redisson,
        Self::RateLimiterFlexible,
        Self::ExpressRateLimit,
        Self::Limits,
        Self::ConnectRedis,
        Self::SpringSession,
        Self::DjangoCache,
        Self::RailsCache,
        Self::Redstart,
    ];

    /// Its name, which does not change between versions of this crate.
    pub fn name(self) -> &'static str {
        match self {
            Self::BullMq => "bullmq",
            Self::Bull => "bull",
            Self::Sidekiq => "sidekiq",
            Self::Celery => "celery",
            Self::Rq => "rq",
            Self::Asynq => "asynq",
            Self::Dramatiq => "dramatiq",
            Self::RedisPyLock => "redis-py-lock",
            Self::Redlock => "redlock",
            Self::Redisson => "redisson",
            Self::RateLimiterFlexible => "rate-limiter-flexible",
            Self::ExpressRateLimit => "express-rate-limit",
            Self::Limits => "limits",
            Self::ConnectRedis => "connect-redis",
            Self::SpringSession => "spring-session",
            Self::DjangoCache => "django-cache",
            Self::RailsCache => "rails-cache",
            Self::Redstart => "redstart",
        }
    }

    /// What it is for.
    pub fn purpose(self) -> Purpose {
        match self {
            Self::BullMq
            | Self::Bull
            | Self::Sidekiq
            | Self::Celery
            | Self::Rq
            | Self::Asynq
            | Self::Dramatiq => Purpose::Queue,
            Self::RedisPyLock | Self::Redlock | Self::Redisson => Purpose::Lock,
            Self::RateLimiterFlexible | Self::ExpressRateLimit | Self::Limits => Purpose::Limiter,
            Self::ConnectRedis | Self::SpringSession => Purpose::Sessions,
            Self::DjangoCache | Self::RailsCache => Purpose::Cache,
            Self::Redstart => Purpose::Toolkit,
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Library {
    type Err = UnknownLibrary;

    fn from_str(name: &str) -> Result<Self, UnknownLibrary> {
        let known = Self::ALL.into_iter().find(|known| known.name() == name);
        known.ok_or(UnknownLibrary)
    }
}

/// The name does not belong to a known library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownLibrary;

impl fmt::Display for UnknownLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown library; known are ")?;
        for (n, library) in Library::ALL.into_iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{library}")?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownLibrary {}

impl serde::Serialize for Library {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
