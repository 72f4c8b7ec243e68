//! The tour's output as a picture, for the README.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use crate::step::{cargo, root};

/// Runs the tour on the embedded engine, with colours, and writes what it printed as `docs/tour.svg`.
pub(crate) fn run() -> Result<bool> {
    let output = cargo(&[
        "run",
        "--quiet",
        "--release",
        "-p",
        "redstart-cli",
        "--",
        "tour",
    ])
    .env("CLICOLOR_FORCE", "1")
    .env("COLUMNS", "110")
    .stdin(Stdio::null())
    .stderr(Stdio::null())
    .output()
    .context("could not run the tour")?;
    ensure!(output.status.success(), "the tour failed");
    let text = String::from_utf8(output.stdout)?;
    let picture = anstyle_svg::Term::new().min_width_px(880).render_svg(&text);
    let path = root().join("docs/tour.svg");
    std::fs::create_dir_all(root().join("docs"))?;
    std::fs::write(&path, picture)?;
    println!("wrote {}", path.display());
    Ok(true)
}
