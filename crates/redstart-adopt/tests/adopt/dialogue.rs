//! A program of another language that answers lines of JSON.

use anyhow::Result;
use redstart_testkit::{Foreign, Language};
use serde_json::Value;

use crate::library;

pub(crate) struct Dialogue(Foreign);

impl Dialogue {
    pub(crate) fn start(language: Language, script: &str, args: &[&str]) -> Result<Self> {
        Ok(Self(Foreign::start(language, &library(script), args)?))
    }

    /// Asks, and reads the answer.
    pub(crate) async fn ask(&mut self, question: Value) -> Result<Value> {
        self.0.tell(&question.to_string())?;
        Ok(serde_json::from_str(&self.0.line().await?)?)
    }
}
