//! A social graph: within a shard every answer about two accounts fits (linearizable); between two shards both sides
//! agree again after repairs, whatever callers left half done.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redstart::{
    Error, Store,
    social::{Followed, Graph},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History},
    possible::{Possible, Small},
    world::World,
};

/// How many accounts there are.
const ACCOUNTS: usize = 3;
/// More than two steps of a change take.
const GRACE: Duration = Duration::from_secs(2);

/// Of two accounts, which one acts on the other: that with the lower number, or that with the higher one.
type Actor = u32;

/// In a state, the bits of the lower account and then those of the higher one: it follows the other, it blocks the other.
fn follows(actor: Actor) -> u32 {
    1 << (2 * actor)
}

fn blocks(actor: Actor) -> u32 {
    2 << (2 * actor)
}

/// Where a follow is looked up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Look {
    /// On the side of the follower.
    Following,
    /// On the side of the account that is followed.
    Follower,
    Blocking,
}

#[derive(Clone, Debug, PartialEq)]
enum Call {
    Follow(Actor, Option<Followed>),
    /// Whether it followed.
    Unfollow(Actor, Option<bool>),
    /// Whether that is new.
    Block(Actor, Option<bool>),
    /// Whether it blocked.
    Unblock(Actor, Option<bool>),
    Look(Actor, Look, bool),
}

/// Two accounts.
struct Pair {
    /// They are in two shards, whose sides differ for a while: a block that has not reached the other side leaves the follow
    /// there.
    apart: bool,
}

impl Small for Pair {
    type Call = Call;

    fn states(&self) -> u32 {
        16
    }

    fn after(&self, state: u32, call: &Call) -> Option<u32> {
        let has = |bits: u32| state & bits != 0;
        let any_block = blocks(0) | blocks(1);
        let (fits, next) = match *call {
            Call::Follow(actor, answer) => {
                let next = match has(any_block) {
                    true => state,
                    false => state | follows(actor),
                };
                let fits = match answer {
                    None => true,
                    Some(Followed::Blocked) => has(any_block),
                    Some(Followed::New) => !has(any_block) && !has(follows(actor)),
                    Some(Followed::Already) => {
                        has(follows(actor)) || self.apart && has(blocks(1 - actor))
                    }
                    // What is new in later versions fits nowhere.
                    #[allow(unreachable_patterns)]
                    Some(_) => false,
                };
                (fits, next)
            }
            Call::Unfollow(actor, answer) => {
                let fits = match answer {
                    None => true,
                    Some(false) => !has(follows(actor)),
                    Some(true) => has(follows(actor)) || self.apart && has(blocks(1 - actor)),
                };
                (fits, state & !follows(actor))
            }
            Call::Block(actor, answer) => {
                let fits = answer.is_none_or(|new| new != has(blocks(actor)));
                let next = (state | blocks(actor)) & !(follows(0) | follows(1));
                (fits, next)
            }
            Call::Unblock(actor, answer) => {
                let fits = answer.is_none_or(|was| was == has(blocks(actor)));
                (fits, state & !blocks(actor))
            }
            Call::Look(actor, Look::Blocking, answer) => (has(blocks(actor)) == answer, state),
            Call::Look(actor, _, answer) => (has(follows(actor)) == answer, state),
        };
        fits.then_some(next)
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match *call {
            Call::Follow(actor, _) => Some(Call::Follow(actor, None)),
            Call::Unfollow(actor, _) => Some(Call::Unfollow(actor, None)),
            Call::Block(actor, _) => Some(Call::Block(actor, None)),
            Call::Unblock(actor, _) => Some(Call::Unblock(actor, None)),
            Call::Look(..) => None,
        }
    }
}

pub(super) struct Following {
    shards: u32,
    /// By the numbers of both accounts, the lower one first.
    pairs: BTreeMap<(usize, usize), History<Call>>,
}

fn name(account: usize) -> String {
    format!("account{account}")
}

impl Following {
    pub(super) fn new(world: &World) -> Self {
        let mut dice = Dice::of(world.plan.seed, &[51]);
        let lower = 0..ACCOUNTS;
        let pairs = lower.flat_map(|low| (low + 1..ACCOUNTS).map(move |high| (low, high)));
        Self {
            shards: *dice.pick(&[1, 7, 7]),
            pairs: pairs.map(|pair| (pair, History::default())).collect(),
        }
    }

    fn graph(&self, store: &Store) -> Graph {
        let graph = Graph::builder(store, "sim", "people").shards(self.shards);
        match graph.build() {
            Ok(graph) => graph,
            Err(error) => panic!("a graph cannot be made: {error}"),
        }
    }

    /// Two accounts, which one acts, and what is known of them.
    fn pick(&self, client: &mut Client) -> (String, String, Actor, &History<Call>) {
        let pairs: Vec<_> = self.pairs.iter().collect();
        // Most calls are about one of them.
        let number = client.dice.below(6) as usize;
        let ((low, high), history) = pairs[if number < pairs.len() { number } else { 0 }];
        match client.dice.below(2) {
            0 => (name(*low), name(*high), 0, history),
            _ => (name(*high), name(*low), 1, history),
        }
    }

    async fn change(&self, client: &mut Client, graph: &Graph) {
        let (a, b, actor, history) = self.pick(client);
        let asked = match client.dice.below(10) {
            0..=4 => Call::Follow(actor, None),
            5 | 6 => Call::Unfollow(actor, None),
            7 | 8 => Call::Block(actor, None),
            _ => Call::Unblock(actor, None),
        };
        let blocks = matches!(asked, Call::Block(..));
        let pair = (&a[..], &b[..], actor, history);
        self.ask(client, graph, asked, pair).await;
        // Some blocks are lifted at once.
        if blocks && client.dice.per_mille(400) {
            let asked = Call::Unblock(actor, None);
            self.ask(client, graph, asked, pair).await;
        }
    }

    async fn ask(
        &self,
        client: &mut Client,
        graph: &Graph,
        asked: Call,
        (a, b, actor, history): (&str, &str, Actor, &History<Call>),
    ) {
        let world = client.world.clone();
        // A follow is sent again if its connection breaks: the first copy may arrive too, at any time.
        let repeatable = matches!(asked, Call::Follow(..));
        if repeatable && !world.plan.faults.is_empty() {
            history.begin(asked.clone(), world.now());
        }
        let number = history.begin(asked.clone(), world.now());
        // Up to eight attempts, each of which completes what another caller began.
        let requests = if self.shards == 1 { 1 } else { 24 };
        let ended = match asked {
            Call::Follow(..) => {
                let call = client.call("follow", requests, graph.follow(a, b)).await;
                call.map(|ended| ended.map(|followed| Call::Follow(actor, Some(followed))))
            }
            Call::Unfollow(..) => {
                let call = client.call("unfollow", requests, graph.unfollow(a, b));
                let call = call.await;
                call.map(|ended| ended.map(|was| Call::Unfollow(actor, Some(was))))
            }
            Call::Block(..) => {
                let call = client.call("block", requests, graph.block(a, b)).await;
                call.map(|ended| ended.map(|new| Call::Block(actor, Some(new))))
            }
            _ => {
                let call = client.call("unblock", requests, graph.unblock(a, b)).await;
                call.map(|ended| ended.map(|was| Call::Unblock(actor, Some(was))))
            }
        };
        match ended {
            Some(Ok(answered)) => {
                client.note(format_args!("{a} and {b}: {answered:?}"));
                history.end(number, answered, world.now());
            }
            // Between two shards the first step may be done, and the others follow.
            Some(Err(error)) if self.shards == 1 && world.surely_failed(&error, repeatable) => {
                history.cancel(number);
            }
            _ => {}
        }
    }

    /// Reads one side of two accounts; `None` if the call was dropped.
    async fn look(
        &self,
        client: &mut Client,
        graph: &Graph,
        look: Look,
    ) -> Option<Result<(), Error>> {
        let (a, b, actor, history) = self.pick(client);
        self.look_at(client, graph, look, (&a, &b, actor, history))
            .await
    }

    async fn look_at(
        &self,
        client: &mut Client,
        graph: &Graph,
        look: Look,
        (a, b, actor, history): (&str, &str, Actor, &History<Call>),
    ) -> Option<Result<(), Error>> {
        let world = client.world.clone();
        let from = world.now();
        let found = match look {
            Look::Following => {
                client
                    .call("is_following", 1, graph.is_following(a, b))
                    .await?
            }
            Look::Blocking => {
                client
                    .call("is_blocking", 1, graph.is_blocking(a, b))
                    .await?
            }
            Look::Follower => {
                let page = client
                    .call("followers", 1, graph.followers(b, None, 10))
                    .await?;
                page.map(|page| page.edges.iter().any(|edge| edge.account == a))
            }
        };
        let to = Some(world.now());
        Some(found.map(|found| {
            let call = Call::Look(actor, look, found);
            history.add(Event { call, from, to });
        }))
    }

    /// After everything was repaired, both sides of each pair agree, and nothing is left to be done.
    async fn judge(&self, client: &mut Client, graph: &Graph) -> Result<(), Error> {
        let world = client.world.clone();
        for ((low, high), history) in &self.pairs {
            for actor in 0..2 {
                let (a, b) = match actor {
                    0 => (name(*low), name(*high)),
                    _ => (name(*high), name(*low)),
                };
                for look in [Look::Following, Look::Follower, Look::Blocking] {
                    let pair = (&a[..], &b[..], actor, history);
                    // It may be dropped.
                    while self
                        .look_at(client, graph, look, pair)
                        .await
                        .transpose()?
                        .is_none()
                    {}
                }
            }
        }
        for (key, _) in world.keys() {
            let belongs = key.starts_with("sim:graph:{people/");
            if belongs && (key.ends_with(":intents") || key.ends_with(":pending")) {
                world.breach(format!("{key} is left after everything was repaired"));
            }
        }
        Ok(())
    }

    /// Whatever was lost: when nobody blocks anybody, a follow and its end reach both sides.
    async fn works_for_all(&self, graph: &Graph) -> Result<Option<String>, Error> {
        for (low, high) in self.pairs.keys() {
            let (a, b) = (name(*low), name(*high));
            graph.unblock(&a, &b).await?;
            graph.unblock(&b, &a).await?;
            graph.unfollow(&a, &b).await?;
            for wanted in [true, false] {
                match wanted {
                    true => drop(graph.follow(&a, &b).await?),
                    false => drop(graph.unfollow(&a, &b).await?),
                }
                let there = graph.is_following(&a, &b).await?;
                let page = graph.followers(&b, None, 10).await?;
                let here = page.edges.iter().any(|edge| edge.account == a);
                if (there, here) != (wanted, wanted) {
                    return Ok(Some(format!(
                        "{a} should follow {b}: {wanted}; on its side: {there}, on the other: {here}"
                    )));
                }
            }
        }
        Ok(None)
    }
}

impl Workload for Following {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let graph = self.graph(&store);
            while client.next_operation() {
                client.rest(0, 400).await;
                match client.dice.below(20) {
                    0..=12 => self.change(&mut client, &graph).await,
                    13 => {
                        // It looks into all shards and completes what it finds, in turn.
                        let limit = client.world.plan.deadline * 100;
                        let repair = graph.repair(GRACE);
                        drop(client.call_within(200, "repair", limit, repair).await);
                    }
                    14..=16 => drop(self.look(&mut client, &graph, Look::Blocking).await),
                    // Between two shards the sides differ for a while.
                    _ if self.shards > 1 => {}
                    17 => drop(self.look(&mut client, &graph, Look::Follower).await),
                    _ => drop(self.look(&mut client, &graph, Look::Following).await),
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let graph = self.graph(store);
        let (a, b) = (format!("works{}", client.index), "everybody".to_owned());
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            let _ = graph.follow(&a, &b).await.map_err(failed)?;
            match graph.is_following(&a, &b).await.map_err(failed)? {
                true => Ok(()),
                false => Err("a follow is not there".to_owned()),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let graph = self.graph(&store);
            // By the clock of any server everything is old enough then.
            tokio::time::sleep(Duration::from_secs(5)).await;
            match graph.repair(Duration::ZERO).await {
                Ok(repaired) if repaired.failed == 0 => {}
                other => world.breach(format!("the graph cannot be repaired: {other:?}")),
            }
            // If the server of one shard lost what the other one knows, the sides differ until their next change.
            let torn = self.shards > 1 && world.may_have_lost(Duration::ZERO, world.now());
            if !torn {
                if let Err(error) = self.judge(&mut client, &graph).await {
                    world.breach(format!("the graph cannot be read: {error}"));
                }
                let pair = Possible(Pair {
                    apart: self.shards > 1,
                });
                for ((low, high), history) in &self.pairs {
                    let what = format!("accounts {low} and {high}");
                    world.explain(&what, &pair, &history.events());
                }
            }
            match self.works_for_all(&graph).await {
                Ok(None) => {}
                Ok(Some(text)) => world.breach(text),
                Err(error) => world.breach(format!("the graph cannot be changed: {error}")),
            }
        })
    }
}
