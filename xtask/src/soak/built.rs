//! The test programs of the campaigns, built once with the features that `test` builds them with.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::campaign::Campaign;
use crate::step::cargo;
use crate::test::PACKAGES;

/// Each test program with the folder of its package, by package and file.
pub(super) struct Built(HashMap<(String, String), Program>);

struct Program {
    executable: PathBuf,
    folder: PathBuf,
}

impl Built {
    pub(super) fn new(release: bool, campaigns: &[&Campaign]) -> Result<Self> {
        let mut command = cargo(&["test"]);
        // All packages, because features come together; of these, only the programs that are run.
        command.args(PACKAGES);
        let tests: BTreeSet<&str> = campaigns.iter().map(|campaign| campaign.test).collect();
        for test in tests {
            match test {
                "" => command.arg("--lib"),
                test => command.args(["--test", test]),
            };
        }
        command.args(["--no-run", "--message-format=json-render-diagnostics"]);
        if release {
            command.arg("--release");
        }
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("no output")?;
        let mut programs = HashMap::new();
        for line in BufReader::new(output).lines() {
            let message: serde_json::Value = serde_json::from_str(&line?)?;
            programs.extend(program(&message));
        }
        ensure!(child.wait()?.success(), "the tests could not be built");
        Ok(Self(programs))
    }

    /// A command that runs the tests of the campaign's file.
    pub(super) fn command(&self, campaign: &Campaign) -> Result<Command> {
        let (package, test) = (campaign.package, campaign.test);
        let program = self
            .0
            .get(&(package.to_owned(), test.to_owned()))
            .with_context(|| format!("{package} has no tests {test:?}"))?;
        let mut command = Command::new(&program.executable);
        command.current_dir(&program.folder);
        Ok(command)
    }
}

/// The test program in one of cargo's messages. The one of a library is called "".
fn program(message: &serde_json::Value) -> Option<((String, String), Program)> {
    let executable = message["executable"].as_str()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    let package = folder.file_name()?.to_str()?.to_owned();
    let test = match message["target"]["kind"][0].as_str()? {
        "lib" => String::new(),
        "test" => message["target"]["name"].as_str()?.to_owned(),
        _ => return None,
    };
    let executable = executable.into();
    Some(((package, test), Program { executable, folder }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_found_by_its_package_and_file() {
        let message = serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/home/me/crates/shop/Cargo.toml",
            "target": { "kind": ["test"], "name": "orders" },
            "profile": { "test": true },
            "executable": "/home/me/target/orders-1",
        });
        let (name, program) = program(&message).expect("a test program");
        assert_eq!(name, ("shop".to_owned(), "orders".to_owned()));
        assert_eq!(program.folder, PathBuf::from("/home/me/crates/shop"));
    }

    #[test]
    fn programs_that_are_no_tests_are_left_out() {
        let message = serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/home/me/crates/shop/Cargo.toml",
            "target": { "kind": ["bin"], "name": "shop" },
            "profile": { "test": false },
            "executable": "/home/me/target/shop",
        });
        assert!(program(&message).is_none());
    }
}
