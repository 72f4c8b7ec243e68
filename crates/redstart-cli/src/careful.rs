//! A dry run and a confirmation, for commands that cannot be undone.

use std::io::{IsTerminal as _, Write as _};

use crate::Failure;

/// The options of what cannot be undone.
#[derive(clap::Args)]
pub(crate) struct Careful {
    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

impl Careful {
    /// Whether to go on: asks at a terminal, and refuses without one unless `--yes` is given.
    pub(crate) fn confirm(&self, what: &str, json: bool) -> Result<bool, Failure> {
        if self.dry_run {
            match json {
                true => say!("{}", serde_json::json!({ "would": what })),
                false => say!("would {what}"),
            }
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        if !std::io::stdin().is_terminal() {
            return Err(Failure::Usage(format!(
                "about to {what}: confirm with --yes, or look first with --dry-run"
            )));
        }
        anstream::eprint!("{what}? [y/N] ");
        let _ = std::io::stderr().flush();
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        Ok(line.trim().eq_ignore_ascii_case("y"))
    }
}
