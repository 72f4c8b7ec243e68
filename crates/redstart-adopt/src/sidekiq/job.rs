//! A job as a consumer has it, and how it fails.

use std::collections::BTreeMap;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};

use crate::error::{Error, Result};

/// The fields of a job. What is not changed keeps its text: numbers of any size and precision stay what Ruby wrote.
#[derive(Clone, Debug)]
pub(super) struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok().map(Self)
    }

    pub(super) fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.0.get(name)?.get()).ok()
    }

    pub(super) fn set(&mut self, name: &str, value: &impl Serialize) {
        // A text, a number: it cannot fail.
        if let Ok(value) = to_raw_value(value) {
            self.0.insert(name.to_owned(), value);
        }
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }
}

/// A job of Sidekiq that is to be run.
#[derive(Clone, Debug)]
pub struct SidekiqJob {
    pub(super) fields: Fields,
    class: String,
    id: String,
}

impl SidekiqJob {
    /// `None` for what Sidekiq could not run either.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let fields = Fields::read(text)?;
        let (class, id) = (fields.get("class")?, fields.get("jid")?);
        Some(Self { fields, class, id })
    }

    /// Its id, `jid`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The class that Ruby would run.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// Its arguments, an array: a tuple, a struct of that many fields, or a vector.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if they are something else.
    pub fn args<T: DeserializeOwned>(&self) -> Result<T> {
        let args = self.fields.get("args");
        args.ok_or_else(|| Error::invalid("the arguments of the job are of another type"))
    }

    /// How often it was retried before this run.
    pub fn retries(&self) -> u32 {
        let count: Option<i64> = self.fields.get("retry_count");
        let count = count.map_or(0, |count| count.saturating_add(1));
        u32::try_from(count).unwrap_or(0)
    }
}

/// Why a job failed, as Sidekiq Web shows it.
#[derive(Clone, Debug)]
pub struct JobFailure {
    pub(super) class: String,
    pub(super) message: String,
    pub(super) retry: bool,
}

impl JobFailure {
    /// A failure that is retried as the job says.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            class: "RuntimeError".to_owned(),
            message: message.into(),
            retry: true,
        }
    }

    /// A failure that retrying cannot mend: the job goes to the dead jobs at once.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self {
            retry: false,
            ..Self::new(message)
        }
    }

    /// A handler that panicked.
    pub(super) fn panic(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self::new(text.unwrap_or("the handler panicked")).class("Panic")
    }

    /// The class of the error that is shown (default `RuntimeError`).
    #[must_use]
    pub fn class(mut self, class: &str) -> Self {
        class.clone_into(&mut self.class);
        self
    }
}

impl<E: std::error::Error> From<E> for JobFailure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_changed_keeps_its_text() {
        let text = r#"{"args":[123456789012345678901234567890,0.10000000000000000555,{}],"class":"A","jid":"x"}"#;
        let job = SidekiqJob::read(text.as_bytes()).unwrap();
        assert_eq!(job.fields.text(), text);
        let mut fields = job.fields.clone();
        fields.set("retry_count", &0);
        assert_eq!(fields.get::<u32>("retry_count"), Some(0));
        assert!(
            fields
                .text()
                .contains("123456789012345678901234567890,0.10000000000000000555,{}")
        );
    }

    #[test]
    fn what_is_no_job_is_not_run() {
        for odd in [
            "",
            "7",
            "{}",
            r#"{"class":"A"}"#,
            r#"{"class":1,"jid":"x"}"#,
        ] {
            assert!(SidekiqJob::read(odd.as_bytes()).is_none(), "{odd}");
        }
    }
}
