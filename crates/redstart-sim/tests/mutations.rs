//! Each check of the library that can be taken out is missed by its judge, in the world that the documentation names.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use redstart_sim::{
    Plan,
    mutation::{MUTATIONS, Mutation},
    run,
};

/// By name: the first seed, counted from 1, whose world shows that the check is missing.
fn recorded() -> BTreeMap<&'static str, (&'static str, u64)> {
    let page = include_str!("../../../docs/simulation.md");
    let (_, rest) = page.split_once("<!-- mutations -->").unwrap();
    let (table, _) = rest.split_once("<!-- end -->").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, pattern, seed] = cells[..] else {
            panic!("a row with other columns: {row}");
        };
        (name, (pattern, seed.parse().unwrap()))
    })
    .collect()
}

#[test]
fn every_mutation_changes_something() {
    for mutation in MUTATIONS {
        // Panics if there is no such script or no such text.
        let script = mutation.script();
        assert_eq!(script.is_some(), mutation.switch().is_none());
    }
}

#[test]
fn the_table_names_every_mutation_once() {
    let recorded = recorded();
    for Mutation { name, pattern, .. } in MUTATIONS {
        let row = recorded.get(name).map(|row| row.0);
        assert_eq!(row, Some(pattern.name()), "the row of {name:?}");
    }
    assert_eq!(recorded.len(), MUTATIONS.len());
}

/// Renewed by `cargo xtask sim --mutations --write docs/simulation.md`.
#[test]
#[ignore = "a campaign, `cargo xtask soak --only sim-mutations`: whatever changes what is sent makes other worlds of the same seeds"]
fn every_missing_check_is_noticed_in_its_recorded_world() {
    let recorded = recorded();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let work = || {
        while let Some(mutation) = MUTATIONS.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Mutation { name, pattern, .. } = mutation;
            let seed = recorded[name].1;
            let plan = Plan::new(seed, *pattern);
            if run(&plan, false, Some(mutation)).breaches.is_empty() {
                let text = format!("{pattern} {seed}: nobody notices {name}");
                wrong.lock().push(text);
            }
            let whole = run(&plan, false, None).breaches;
            if !whole.is_empty() {
                wrong.lock().push(format!("{pattern} {seed}: {whole:?}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
