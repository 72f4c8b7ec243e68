//! `redstart guide`: which pattern for which need.

use crate::Failure;

/// Arguments of `redstart guide`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What you need, in your own words
    words: Vec<String>,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let _ = args.words;
    Err(Failure::Other(
        "the guide is not part of this build".to_owned(),
    ))
}
