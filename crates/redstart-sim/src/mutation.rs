//! Mends that are taken out, to show that the judges notice.

use crate::workload::Pattern;

/// One check or mend less.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// What is missing.
    pub name: &'static str,
    /// The pattern whose judge must notice.
    pub pattern: Pattern,
    /// Scripts that are replaced: names and sources.
    pub scripts: &'static [(&'static str, &'static str)],
    /// Switches in the library's code.
    pub broken: &'static [&'static str],
}

/// All of them.
pub static MUTATIONS: &[Mutation] = &[];
