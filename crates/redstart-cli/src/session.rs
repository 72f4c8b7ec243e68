//! `redstart session`: the sessions of a user, and ending them by hand.

use redstart::sessions::Sessions;

use crate::{Failure, careful::Careful, target::ByHand};

/// Arguments of `redstart session`.
pub(crate) type Args = ByHand<Command>;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the sessions of a user, without their tokens
    List {
        /// The user
        #[arg(long)]
        user: String,
    },
    /// End sessions of a user: one by its handle, or all of them
    Revoke {
        /// The user
        #[arg(long)]
        user: String,
        /// The handle of the session, as `list` shows it
        #[arg(long, required_unless_present = "all", conflicts_with = "all")]
        handle: Option<String>,
        /// Every session of the user
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        careful: Careful,
    },
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let target = &args.target;
    let (store, namespace, name) = target.open("session").await?;
    let sessions = Sessions::new(&store, namespace, name)?;
    match args.command {
        Command::List { user } => {
            for info in sessions.list(&user).await? {
                let (label, seen) = (info.label.as_deref(), info.seen.as_secs());
                match target.json {
                    true => say!(
                        "{}",
                        serde_json::json!({ "handle": info.handle, "label": label, "seen": seen, "remembered": info.remembered })
                    ),
                    false => {
                        let seen = jiff::Timestamp::from_second(seen as i64);
                        let seen = seen.map_or("?".to_owned(), |seen| seen.to_string());
                        let label: String = label.unwrap_or("").chars().take(40).collect();
                        say!("{}  {seen}  {}", info.handle, label.escape_debug());
                    }
                }
            }
            Ok(())
        }
        Command::Revoke {
            user,
            handle,
            careful,
            ..
        } => {
            let what = match handle {
                None => format!("end every session of {user:?}"),
                Some(_) => format!("end a session of {user:?}"),
            };
            if !careful.confirm(&what, args.target.json)? {
                return Ok(());
            }
            match handle {
                None => target.done("ended", sessions.revoke_all(&user).await?),
                Some(handle) => match sessions.revoke_one(&user, &handle).await? {
                    true => target.done("ended", 1),
                    false => Err(Failure::Usage(format!(
                        "{user:?} has no session with this handle"
                    ))),
                },
            }
        }
    }
}
