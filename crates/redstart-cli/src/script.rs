//! `redstart script`: the exact Lua that a pattern runs, for people who call it from other languages.

use redstart::script::Script;

use crate::Failure;

/// Arguments of `redstart script`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A script (`mutex.acquire`) or all scripts of a pattern (`mutex`); without a name, the list of all
    name: Option<String>,
    /// One JSON object per line, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let chosen: Vec<&Script> = match &args.name {
        None => redstart::script::all(),
        Some(name) => named(name)?,
    };
    for script in chosen {
        if args.json {
            say!(
                "{}",
                serde_json::json!({
                    "name": script.name(), "sha1": script.digest(), "source": script.source(),
                })
            );
        } else if args.name.is_none() {
            say!(
                "{}  {:<28} {}",
                script.digest(),
                script.name(),
                purpose(script)
            );
        } else {
            say!("-- {}  sha1 {}", script.name(), script.digest());
            say!("{}", script.source().trim_end());
            say!();
        }
    }
    Ok(())
}

fn named(name: &str) -> Result<Vec<&'static Script>, Failure> {
    let all = redstart::script::all();
    let of_pattern = format!("{name}.");
    let found: Vec<_> = all
        .into_iter()
        .filter(|script| script.name() == name || script.name().starts_with(&of_pattern))
        .collect();
    match found.is_empty() {
        true => Err(Failure::Usage(format!(
            "no script is named {name:?}; `redstart script` lists them all"
        ))),
        false => Ok(found),
    }
}

/// The first line of the script's header.
fn purpose(script: &Script) -> &str {
    let comments = script
        .source()
        .lines()
        .filter_map(|line| line.strip_prefix("--"));
    comments
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("")
}
