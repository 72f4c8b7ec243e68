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
        let (shares, single) = self.shares(&commands);
        let answers = join_all(shares.iter().map(|share| {
            let part = request.with(Body::all(&share.pipeline), share.slot);
            self.at(share.slot, part)
        }))
        .await;
        let mut replies = vec![Value::Nil; commands.len()];
        for (share, answer) in shares.iter().zip(whole(&request, answers)?) {
            let Value::Array(values) = answer else {
                return Err(Error::codec("the reply to a pipeline is not an array"));
            };
            for (at, value) in share.positions.iter().zip(values) {
                replies[*at] = value;
            }
        }
        let wrote = |error: Error| {
            let in_doubt = error.is_in_doubt() || !request.is_harmless();
            error.doubt(in_doubt)
        };
        for at in single {
            let part = request.with(Body::One(commands[at]), None);
            replies[at] = match self.send(part).await {
                Ok(value) => value,
                // An answer of one node, and another one did its part.
                Err(error) if error.is_in_doubt() => return Err(error),
                // The others were carried out.
                Err(error) => match error.answer() {
                    Some(answer) => answer,
                    None => return Err(wrote(error)),
                },
            };
        }
        let replies = mend(request, replies, self).await.map_err(wrote)?;
        let wanted = replies.into_iter().skip(offset).take(count);
        Ok(Value::Array(wanted.collect()))
    }

    /// The commands by node, in order, and those that go to several nodes.
    fn shares(&self, commands: &[&Cmd]) -> (Vec<Share>, Vec<usize>) {
        // A cluster has few nodes; the order is that of the commands.
        let mut shares: Vec<(Option<*const Node>, Share)> = Vec::new();
        let mut single = Vec::new();
        for (at, cmd) in commands.iter().enumerate() {
            let slot = match route(cmd) {
                Route::Slot(slot) => Some(slot),
                Route::Any => None,
                Route::AllMasters(_) | Route::Split(..) => {
                    single.push(at);
                    continue;
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
        (shares.into_iter().map(|(_, share)| share).collect(), single)
    }
}
