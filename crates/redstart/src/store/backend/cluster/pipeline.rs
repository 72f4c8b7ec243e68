//! A pipeline over several nodes.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value};

use super::{
    Cluster,
    route::{Route, route},
    whole,
};
use crate::{
    error::{Error, Result},
    store::{
        pool::Node,
        request::{Body, BoxFuture, Request},
        retry::{Alone, mend},
    },
};

impl Alone for Arc<Cluster> {
    fn send<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<Value>> {
        Box::pin(self.request(request))
    }
}

/// What one node gets.
struct Share {
    slot: Option<u16>,
    pipeline: Pipeline,
    /// Where its commands stand in the whole.
    positions: Vec<usize>,
}

impl Cluster {
    /// One round trip per node: each gets its part of the pipeline, all at the same time.
    pub(super) async fn spread(self: &Arc<Self>, request: Request<'_>) -> Result<Value> {
        let Body::Many {
            pipeline,
            offset,
            count,
        } = request.body
        else {
            return Err(Error::config("not a pipeline"));
        };
        let commands: Vec<&Cmd> = pipeline.cmd_iter().collect();
        let mut replies = vec![Value::Nil; commands.len()];
        // A command for several nodes comes behind those before it and before those behind it: they may have its keys.
        let mut from = 0;
        while from < commands.len() {
            let sent = match self
                .spread_together(&request, &commands, from, &mut replies)
                .await
            {
                Ok(to) if to > from => Ok(to),
                Ok(_) => self
                    .spread_alone(&request, commands[from], &mut replies[from])
                    .await
                    .map(|()| from + 1),
                Err(error) => Err(error),
            };
            // What came before was carried out.
            from = sent.map_err(|error| match from {
                0 => error,
                _ => wrote(&request, error),
            })?;
        }
        let replies = mend(request, replies, self)
            .await
            .map_err(|error| wrote(&request, error))?;
        let wanted = replies.into_iter().skip(offset).take(count);
        Ok(Value::Array(wanted.collect()))
    }

    /// Sends the commands from `from` on, up to the first one that goes to several nodes; returns where that stands.
    async fn spread_together(
        self: &Arc<Self>,
        request: &Request<'_>,
        commands: &[&Cmd],
        from: usize,
        replies: &mut [Value],
    ) -> Result<usize> {
        let (shares, to) = self.shares(commands, from);
        let answers = join_all(shares.iter().map(|share| {
            let part = request.with(Body::all(&share.pipeline), share.slot);
            self.at(share.slot, part)
        }))
        .await;
        for (share, answer) in shares.iter().zip(whole(request, answers)?) {
            let Value::Array(values) = answer else {
                return Err(Error::codec("the reply to a pipeline is not an array"));
            };
            for (at, value) in share.positions.iter().zip(values) {
                replies[*at] = value;
            }
        }
        Ok(to)
    }

    /// Sends a command that goes to several nodes.
    async fn spread_alone(
        self: &Arc<Self>,
        request: &Request<'_>,
        cmd: &Cmd,
        reply: &mut Value,
    ) -> Result<()> {
        *reply = match self.send(request.with(Body::One(cmd), None)).await {
            Ok(value) => value,
            // An answer of one node, and another one did its part.
            Err(error) if error.is_in_doubt() => return Err(error),
            Err(error) => match error.answer() {
                Some(answer) => answer,
                None => return Err(error),
            },
        };
        Ok(())
    }

    /// The commands from `from` on by node, in order, and where the first one stands that goes to several nodes.
    fn shares(&self, commands: &[&Cmd], from: usize) -> (Vec<Share>, usize) {
        // A cluster has few nodes; the order is that of the commands.
        let mut shares: Vec<(Option<*const Node>, Share)> = Vec::new();
        let mut to = commands.len();
        for (at, cmd) in commands.iter().enumerate().skip(from) {
            let slot = match route(cmd) {
                Route::Slot(slot) => Some(slot),
                Route::Any => None,
                Route::AllMasters(_) | Route::Split(..) | Route::Nowhere(_) => {
                    to = at;
                    break;
                }
            };
            let owner = slot
                .and_then(|slot| self.owner(slot))
                .map(|node| Arc::as_ptr(&node));
            let known = shares.iter().position(|(node, _)| *node == owner);
            let place = known.unwrap_or_else(|| {
                let share = Share {
                    slot,
                    pipeline: Pipeline::new(),
                    positions: Vec::new(),
                };
                shares.push((owner, share));
                shares.len() - 1
            });
            let share = &mut shares[place].1;
            share.pipeline.add_command((*cmd).clone());
            share.positions.push(at);
        }
        (shares.into_iter().map(|(_, share)| share).collect(), to)
    }
}

/// An error behind commands that were carried out.
fn wrote(request: &Request<'_>, error: Error) -> Error {
    let in_doubt = error.is_in_doubt() || !request.is_harmless();
    error.doubt(in_doubt)
}
