//! The owner of a slot, and the redirections that lead to it.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use super::{Cluster, topology::redirection};
use crate::{
    error::Error,
    store::{
        location::Address,
        pool::Node,
        request::{Body, Failure, Request, aborted_by},
        retry::Destination,
    },
};

/// The owner of a slot (or any master), wherever the Cluster says that it is.
pub(super) struct Owner<'c> {
    pub(super) cluster: &'c Arc<Cluster>,
    pub(super) slot: Option<u16>,
    pub(super) last: Option<Arc<Node>>,
    /// Where the next attempt goes because of a redirection, and whether it has to say ASKING.
    pub(super) next: Option<(Arc<Node>, bool)>,
}

impl Destination for Owner<'_> {
    async fn attempt<'a>(&'a mut self, request: Request<'a>) -> Result<Value, Failure> {
        let (node, asking) = match self.next.take() {
            Some((node, asking)) => (Some(node), asking),
            None => match self.slot {
                Some(slot) => (self.cluster.owner(slot), false),
                None => (self.cluster.any(), false),
            },
        };
        self.last = node;
        let Some(node) = &self.last else {
            return Err(Failure::NotSent(Error::unavailable(
                "no node of the cluster owns this slot",
            )));
        };
        match request.body {
            Body::One(cmd) if asking => ask(node, request, cmd).await,
            _ => node.link().attempt(request).await,
        }
    }

    fn redirected(&mut self, request: &Request<'_>, error: &RedisError) -> bool {
        let asked = self.last.as_ref().and_then(|node| node.dial().address());
        let redirect = redirect(error, asked);
        if let (Some(_), Some(slot)) = (&redirect, self.slot) {
            // Before the next attempt, so that whoever compares the counts before and after a read learns of it.
            self.cluster.count_redirection(slot);
        }
        match redirect {
            Some(_) if crate::mend::is_missing("redirections are followed") => false,
            Some(Redirect::Moved(_)) => {
                // Without a place that can be read, the next attempt goes by the table.
                let node = self.cluster.redirected(error, asked);
                self.next = node.map(|node| (node, false));
                true
            }
            // A pipeline cannot be asked for as a whole; it waits until the slot has moved.
            Some(Redirect::Ask(_)) if matches!(request.body, Body::Many { .. }) => true,
            Some(Redirect::Ask(to)) => {
                self.next = to.map(|to| (self.cluster.node(&to), true));
                true
            }
            None => false,
        }
    }

    fn troubled(&mut self) {
        if !crate::mend::is_missing("the map is read after a time-out") {
            self.cluster.refresh_in_background(None);
        }
    }

    async fn pause(&mut self, pause: Duration) {
        let mut version = self.cluster.watch();
        // A new table may name another owner.
        let _ = tokio::time::timeout(pause, version.changed()).await;
    }

    fn place(&self) -> String {
        match &self.last {
            Some(node) => node.dial().place(),
            None => "the cluster".to_owned(),
        }
    }
}

/// ASKING holds for the one command behind it, so both go in one write.
async fn ask(node: &Node, request: Request<'_>, cmd: &Cmd) -> Result<Value, Failure> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline
        .add_command(redis::cmd("ASKING"))
        .add_command(cmd.clone());
    let both = request.with(Body::all(&pipeline), None);
    match node.link().attempt(both).await? {
        Value::Array(mut replies) => match replies.pop() {
            Some(Value::ServerError(error)) => Err(Failure::Answer(error.into())),
            Some(value) => Ok(value),
            None => Ok(Value::Nil),
        },
        value => Ok(value),
    }
}

/// Where to ask instead; `None` if that cannot be read.
pub(super) enum Redirect {
    Moved(Option<Address>),
    Ask(Option<Address>),
}

/// Whether the node `asked` names another one.
pub(super) fn redirect(error: &RedisError, asked: Option<&Address>) -> Option<Redirect> {
    let aborted = aborted_by(error);
    let error = aborted.as_ref().unwrap_or(error);
    let to = || redirection(error.redirect_node()?.0, asked);
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved) => Some(Redirect::Moved(to())),
        ErrorKind::Server(ServerErrorKind::Ask) => Some(Redirect::Ask(to())),
        _ => None,
    }
}
