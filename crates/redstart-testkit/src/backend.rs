//! The matrix: a test is written once and runs on every backend.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::{Kind, child, shared, shared::shared_engine, shared_cluster, unique_namespace};

/// What a test of the matrix runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// The engine inside the process, in cluster-strict mode.
    Embedded,
    /// The same engine behind its listener, where several processes can use it.
    Served,
    /// One redis-server.
    Redis,
    /// One valkey-server.
    Valkey,
    /// A Cluster of three masters.
    Cluster,
}

/// The backend that a test of the [`matrix!`](crate::matrix) is given.
#[derive(Debug, Clone)]
pub struct Backend {
    kind: BackendKind,
    url: String,
    namespace: String,
    test: String,
}

impl Backend {
    /// The backend for the test called `test`. Starts its server if necessary.
    ///
    /// # Errors
    ///
    /// If the server is missing or does not start.
    pub async fn new(kind: BackendKind, test: &str) -> Result<Self> {
        Self::with_engine(kind, test, || bail!("this test has no engine to serve")).await
    }

    async fn with_engine(
        kind: BackendKind,
        test: &str,
        serve: impl FnOnce() -> Result<String>,
    ) -> Result<Self> {
        // No test is about how fast a server answers, and a busy machine may need more than the default second.
        let patient = |url: &str| format!("{url}?timeout=10s");
        let url = match kind {
            BackendKind::Embedded => "memory://?cluster_strict=1".to_owned(),
            BackendKind::Served => patient(shared_engine(serve).await?.url()),
            BackendKind::Redis => patient(shared(Kind::Redis).await?.url()),
            BackendKind::Valkey => patient(shared(Kind::Valkey).await?.url()),
            BackendKind::Cluster => patient(shared_cluster().await?.url()),
        };
        let namespace = child::namespace().unwrap_or_else(|| unique_namespace(test));
        Ok(Self {
            kind,
            url,
            namespace,
            test: test.to_owned(),
        })
    }

    /// The kind of backend.
    pub fn kind(&self) -> BackendKind {
        self.kind
    }

    /// Its URL, for `Store::connect`. The embedded engine is private to the store that it opens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A namespace of this test's own. In a child process it is the parent's.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The test's name as the test runner knows it, for [`Child`](crate::Child).
    pub fn test(&self) -> &str {
        &self.test
    }

    /// Whether it is the engine inside the process, whose clock can be moved.
    pub fn is_embedded(&self) -> bool {
        self.kind == BackendKind::Embedded
    }

    /// Whether it is a Cluster.
    pub fn is_cluster(&self) -> bool {
        self.kind == BackendKind::Cluster
    }
}

/// Runs one test of the matrix on a runtime of its own; [`matrix!`](crate::matrix) calls it.
///
/// `path` is the test's full path; the crate's name before the first `::` is dropped, as the test
/// runner does.
///
/// # Errors
///
/// The error of the test, or that it did not end in time.
pub fn run(
    kind: BackendKind,
    path: &str,
    test: impl AsyncFnOnce(&Backend) -> Result<()>,
) -> Result<()> {
    let none = || bail!("this test has no engine to serve");
    run_served(kind, path, none, test)
}

/// [`run`] for a test of several processes: `serve` starts the embedded engine behind a listener, once for this
/// process and those that it starts, and returns its URL.
///
/// # Errors
///
/// As [`run`].
pub fn run_served(
    kind: BackendKind,
    path: &str,
    serve: impl FnOnce() -> Result<String>,
    test: impl AsyncFnOnce(&Backend) -> Result<()>,
) -> Result<()> {
    // A hang must fail with a message. The soak's larger counts get more time.
    let limit = Duration::from_secs(crate::scale(170, "TEST_SECONDS"));
    let name = path.split_once("::").map_or(path, |(_crate, rest)| rest);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("could not start a runtime")?;
    let result = runtime.block_on(async {
        let backend = Backend::with_engine(kind, name, serve).await?;
        let ended = tokio::time::timeout(limit, test(&backend)).await;
        ended.with_context(|| format!("the test did not end within {limit:?}"))?
    });
    // A task that a test left blocked must not hang the run.
    runtime.shutdown_timeout(Duration::from_secs(5));
    result
}

/// Turns each test into four: `name::embedded`, `name::redis`, `name::valkey`, `name::cluster`.
///
/// A test takes a [`&Backend`](crate::Backend) and returns `anyhow::Result<()>`. Each runs on a
/// multi-threaded tokio runtime of its own with two workers. Attributes, such as `#[ignore]`, go to
/// all four.
///
/// ```
/// use redstart_testkit::{Backend, matrix};
///
/// matrix! {
///     /// Counts from nothing.
///     async fn a_counter_starts_at_zero(backend: &Backend) -> anyhow::Result<()> {
///         // let store = Store::connect(backend.url()).await?;
///         assert!(backend.namespace().starts_with("a-counter-starts-at-zero--"));
///         Ok(())
///     }
/// }
/// # fn main() {}
/// ```
///
/// Tests of several processes begin with `processes:`. Their `embedded` variant runs on the engine
/// behind its listener, which `crate::served::engine` starts; see [`run_served`](crate::run_served).
/// `servers only:` leaves out `embedded`, `embedded only:` all others.
///
/// ```
/// use redstart_testkit::{Backend, matrix};
///
/// matrix! {
///     servers only:
///     async fn a_real_server_has_replicas(backend: &Backend) -> anyhow::Result<()> {
///         assert!(!backend.is_embedded());
///         Ok(())
///     }
/// }
/// # fn main() {}
/// ```
#[macro_export]
#[allow(
    clippy::crate_in_macro_def,
    reason = "the tests have the engine, the kit has not"
)]
macro_rules! matrix {
    (processes: $($tests:tt)*) => {
        $crate::matrix!(@on [embedded Served, redis Redis, valkey Valkey, cluster Cluster] $($tests)*);
    };
    (servers only: $($tests:tt)*) => {
        $crate::matrix!(@on [redis Redis, valkey Valkey, cluster Cluster] $($tests)*);
    };
    (embedded only: $($tests:tt)*) => {
        $crate::matrix!(@on [embedded Embedded] $($tests)*);
    };
    (@on $kinds:tt $(
        $(#[$attribute:meta])*
        async fn $name:ident($backend:ident: $type:ty) -> $result:ty $body:block
    )*) => { $(
        // The body is outside the module, so that it sees what the test file sees and the
        // compiler points at it when it is wrong.
        #[allow(clippy::unwrap_used, reason = "it is a test")]
        async fn $name($backend: $type) -> $result $body

        mod $name {
            $crate::matrix!(@each $kinds [$(#[$attribute])*] $name);
        }
    )* };
    (@each [$($test:ident $kind:ident),*] $attributes:tt $name:ident) => {
        $( $crate::matrix!(@one $attributes $name $test $kind); )*
    };
    (@one [$($attribute:tt)*] $name:ident $test:ident Served) => {
        $($attribute)*
        #[test]
        fn $test() -> $crate::anyhow::Result<()> {
            $crate::run_served(
                $crate::BackendKind::Served,
                concat!(module_path!(), "::", stringify!($test)),
                crate::served::engine,
                async |backend| super::$name(backend).await,
            )
        }
    };
    (@one [$($attribute:tt)*] $name:ident $test:ident $kind:ident) => {
        $($attribute)*
        #[test]
        fn $test() -> $crate::anyhow::Result<()> {
            $crate::run(
                $crate::BackendKind::$kind,
                concat!(module_path!(), "::", stringify!($test)),
                async |backend| super::$name(backend).await,
            )
        }
    };
    ($($tests:tt)*) => {
        $crate::matrix!(
            @on [embedded Embedded, redis Redis, valkey Valkey, cluster Cluster] $($tests)*
        );
    };
}
