//! `redstart lock`: who holds a mutex, and ending its lease by hand.

use redstart::locking::Mutex;
use redstart_adopt::printable;

use crate::{Failure, careful::Careful, target::ByHand};

/// Arguments of `redstart lock`.
pub(crate) type Args = ByHand<Command>;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Show who holds the mutex, for how long, and how many wait
    Show,
    /// End the lease of the holder, who may still work until it renews: only fenced writes are safe
    ForceRelease {
        /// Only this lease, as `show` names it: another holder is left alone
        #[arg(long, value_name = "ID")]
        holder: Option<String>,
        #[command(flatten)]
        careful: Careful,
    },
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let target = &args.target;
    let (store, namespace, name) = target.open("lock").await?;
    let mutex = Mutex::new(&store, namespace, name)?;
    let holder = mutex.holder().await?;
    match args.command {
        Command::Show => {
            let left = holder.as_ref().and_then(|holder| holder.remaining);
            let label = holder.as_ref().and_then(|holder| holder.label.as_deref());
            if target.json {
                let left = left.map(|left| left.as_secs_f64());
                let waiting = holder.as_ref().map_or(0, |holder| holder.waiting);
                say!(
                    "{}",
                    serde_json::json!({
                        "held": holder.is_some(), "holder": label, "left": left, "waiting": waiting,
                        "id": holder.as_ref().map(|holder| holder.id()),
                    })
                );
                return Ok(());
            }
            match &holder {
                None => say!("free"),
                Some(holder) => say!(
                    "held by {}, {}, {} waiting, lease {}",
                    printable(label.unwrap_or("an owner without a label")),
                    left.map_or("without an end".to_owned(), |left| format!(
                        "{:.1} s left",
                        left.as_secs_f64()
                    )),
                    holder.waiting,
                    holder.id()
                ),
            }
            Ok(())
        }
        Command::ForceRelease {
            holder: named,
            careful,
        } => {
            let Some(holder) = holder else {
                return Err(Failure::Usage(format!("the lock {name:?} is free")));
            };
            let another = || {
                Failure::Other(format!(
                    "the lock {name:?} has another holder by now; look again"
                ))
            };
            if named.is_some_and(|named| named != holder.id()) {
                return Err(another());
            }
            let who = printable(holder.label.as_deref().unwrap_or("an unnamed owner"));
            if !careful.confirm(&format!("end the lease of {who}"), args.target.json)? {
                return Ok(());
            }
            match mutex.force_release(&holder).await? {
                true => target.done("released", 1),
                false => Err(another()),
            }
        }
    }
}
