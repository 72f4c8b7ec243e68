//! Where a pattern is: what the commands that change one by hand have in common.

use redstart::Store;

use crate::Failure;

/// A pattern of a store.
#[derive(clap::Args)]
pub(crate) struct Target {
    /// Where the store is
    #[arg(long, global = true, env = "REDSTART_URL", hide_env_values = true)]
    url: Option<String>,
    /// The namespace
    #[arg(long, short = 's', global = true)]
    namespace: Option<String>,
    /// The name
    #[arg(long, short, global = true)]
    name: Option<String>,
    /// One JSON object per line, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Arguments of a command that looks at a pattern, or changes it by hand.
#[derive(clap::Args)]
pub(crate) struct ByHand<C: clap::Subcommand> {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(subcommand)]
    pub(crate) command: C,
}

impl Target {
    /// The store, the namespace and the name. All must be given: a change by hand has no default.
    pub(crate) async fn open(&self, command: &str) -> Result<(Store, &str, &str), Failure> {
        let missing =
            |option: &str| Failure::Usage(format!("`redstart {command}` needs --{option}"));
        let url = self.url.as_deref().ok_or_else(|| missing("url"))?;
        let namespace = self.namespace.as_deref();
        let namespace = namespace.ok_or_else(|| missing("namespace"))?;
        let name = self.name.as_deref().ok_or_else(|| missing("name"))?;
        let store = Store::connect(url).await?;
        Ok((store, namespace, name))
    }

    /// Says how many things were done.
    pub(crate) fn done(&self, what: &str, count: u64) -> Result<(), Failure> {
        match self.json {
            true => say!("{}", serde_json::json!({ "done": what, "count": count })),
            false => say!("{what}: {count}"),
        }
        Ok(())
    }
}
