//! Fenced values: no write with a lower token after one with a higher token, and every answer fits (linearizable).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redstart::{
    Error, Store,
    locking::{FenceToken, FencedValues, FencedWrite},
};

use super::{Attempt, Work, Workload};
use crate::{
    client::Client,
    dice::Dice,
    history::{Event, History, Model},
    world::World,
};

/// How a value is changed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Set(u64),
    Delete,
    Admit,
}

#[derive(Clone, Debug, PartialEq)]
enum Call {
    /// With which token, and the higher token that refused it, if any. The answer may be missing.
    Write(Change, u64, Option<Option<u64>>),
    Get(Option<u64>),
    Highest(Option<u64>),
}

/// What a server knows. After a loss each is unknown until an answer tells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Known {
    highest: Option<u64>,
    value: Option<Option<u64>>,
}

struct Fences;

impl Model for Fences {
    type State = Known;
    type Call = Call;

    fn initial(&self) -> Known {
        Known {
            highest: Some(0),
            value: Some(None),
        }
    }

    fn unknown(&self) -> Known {
        Known {
            highest: None,
            value: None,
        }
    }

    fn step(&self, state: &Known, call: &Call) -> Option<Known> {
        let mut next = state.clone();
        let fits = match call {
            Call::Write(change, token, answer) => {
                let refused = match (answer, next.highest) {
                    (Some(Some(highest)), known) => {
                        if known.is_some_and(|known| known != *highest) || highest <= token {
                            return None;
                        }
                        next.highest = Some(*highest);
                        return Some(next);
                    }
                    (_, known) => known.is_some_and(|known| known > *token),
                };
                match refused {
                    // It changed nothing, if nobody says otherwise.
                    true => answer.is_none(),
                    // Without an answer and after a loss it may have been refused.
                    false if answer.is_none() && next.highest.is_none() => {
                        next.value = None;
                        true
                    }
                    false => {
                        next.highest = Some(*token);
                        match change {
                            Change::Set(value) => next.value = Some(Some(*value)),
                            Change::Delete => next.value = Some(None),
                            Change::Admit => {}
                        }
                        true
                    }
                }
            }
            Call::Get(answer) => {
                let known = *next.value.get_or_insert(*answer);
                known == *answer
            }
            Call::Highest(answer) => {
                let answer = answer.unwrap_or(0);
                let known = *next.highest.get_or_insert(answer);
                known == answer
            }
        };
        fits.then_some(next)
    }

    fn unanswered(&self, call: &Call) -> Option<Call> {
        match call {
            Call::Write(change, token, _) => Some(Call::Write(*change, *token, None)),
            Call::Get(_) | Call::Highest(_) => None,
        }
    }
}

pub(super) struct Fencing {
    histories: BTreeMap<String, History<Call>>,
}

impl Fencing {
    pub(super) fn new(world: &World) -> Self {
        let names = Dice::of(world.plan.seed, &[45]).between(1, 2);
        let histories = (0..names).map(|name| (format!("order{name}"), History::default()));
        Self {
            histories: histories.collect(),
        }
    }

    fn values(&self, store: &Store) -> FencedValues {
        match FencedValues::new(store, "sim", "orders") {
            Ok(values) => values,
            Err(error) => panic!("fenced values cannot be made: {error}"),
        }
    }

    async fn write(&self, client: &mut Client, values: &FencedValues, name: &str) {
        let world = client.world.clone();
        let history = &self.histories[name];
        // Tokens rise with time, and some holders are late.
        let now = world.now().as_millis() as u64 / 200;
        let token = 10 + now.saturating_sub(client.dice.below(10));
        let change = match client.dice.below(6) {
            0 => Change::Delete,
            1 => Change::Admit,
            _ => Change::Set(client.dice.next() >> 32),
        };
        let Ok(fence) = FenceToken::new(token) else {
            return world.breach(format!("{token} is no token"));
        };
        let call = Call::Write(change, token, None);
        // It is sent again if its connection breaks: the first copy may arrive too, at any time.
        if !world.plan.faults.is_empty() {
            history.begin(call.clone(), world.now());
        }
        let number = history.begin(call, world.now());
        let written = match change {
            Change::Set(value) => {
                let call = values.set(name, value.to_string(), fence);
                client.call("set", 1, call).await
            }
            Change::Delete => client.call("delete", 1, values.delete(name, fence)).await,
            Change::Admit => client.call("admit", 1, values.admit(name, fence)).await,
        };
        match written {
            Some(Ok(written)) => {
                let refused = match written {
                    FencedWrite::Done => None,
                    FencedWrite::Stale { highest } => Some(highest.get()),
                };
                let call = Call::Write(change, token, Some(refused));
                history.end(number, call, world.now());
            }
            Some(Err(error)) if world.surely_failed(&error, true) => history.cancel(number),
            _ => {}
        }
    }

    /// Reads the value, or the highest token.
    async fn read(
        &self,
        client: &mut Client,
        values: &FencedValues,
        name: &str,
    ) -> Option<Result<(), Error>> {
        let world = client.world.clone();
        let from = world.now();
        let read = match client.dice.per_mille(500) {
            true => {
                let read = client.call("get", 1, values.get(name)).await?;
                read.map(|value| {
                    let text = value.map(|value| String::from_utf8_lossy(&value).into_owned());
                    Call::Get(text.and_then(|text| text.parse().ok()))
                })
            }
            false => {
                let read = client.call("highest", 1, values.highest(name)).await?;
                read.map(|highest| Call::Highest(highest.map(FenceToken::get)))
            }
        };
        Some(read.map(|call| {
            let to = Some(world.now());
            self.histories[name].add(Event { call, from, to });
        }))
    }
}

impl Workload for Fencing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let values = self.values(&store);
            let names: Vec<String> = self.histories.keys().cloned().collect();
            while client.next_operation() {
                client.rest(0, 300).await;
                let name = client.dice.pick(&names).clone();
                match client.dice.per_mille(600) {
                    true => self.write(&mut client, &values, &name).await,
                    false => drop(self.read(&mut client, &values, &name).await),
                }
            }
        })
    }

    fn works(self: Arc<Self>, client: &Client, store: &Store) -> Attempt {
        let values = self.values(store);
        let name = format!("works{}", client.index);
        let token = client.world.now().as_micros() as u64 + 1;
        Box::pin(async move {
            let failed = |error: Error| error.to_string();
            let fence = FenceToken::new(token).map_err(failed)?;
            match values.set(&name, "7", fence).await.map_err(failed)? {
                FencedWrite::Done => Ok(()),
                other => Err(format!("a newer token is refused: {other:?}")),
            }
        })
    }

    fn settle(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let values = self.values(&store);
            tokio::time::sleep(Duration::from_secs(1)).await;
            for (name, history) in &self.histories {
                for _ in 0..4 {
                    if let Some(Err(error)) = self.read(&mut client, &values, name).await {
                        world.breach(format!("{name} cannot be read: {error}"));
                    }
                }
                world.explain(name, &Fences, &history.events());
            }
        })
    }
}
