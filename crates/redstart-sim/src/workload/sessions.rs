//! Sessions: what was written is read, what was ended stays ended, and the index of a user is complete.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redstart::{
    Store,
    sessions::{Patched, Rotated, Sessions, Token},
};
use serde::{Deserialize, Serialize};

use super::{Work, Workload};
use crate::{client::Client, world::World};

#[derive(Serialize, Deserialize, Clone, Debug)]
struct Data {
    count: u64,
}

/// How long sessions of the short-lived kind last.
const SHORT: Duration = Duration::from_secs(2);

pub(super) struct Browsing {
    /// Users whose sessions may all have been ended.
    ended: Mutex<Vec<String>>,
}

/// A session as its client knows it.
struct Known {
    user: String,
    token: Token,
    /// The last value that was surely written, and the last that may have been.
    count: (u64, u64),
    /// A write that is in doubt may still arrive, also after later ones.
    late: bool,
    /// It was surely ended.
    gone: bool,
    /// It may have been ended, or have another token by now.
    doubt: bool,
}

impl Browsing {
    pub(super) fn new(_: &World) -> Self {
        Self {
            ended: Mutex::default(),
        }
    }

    /// Two versions of the program, with other settings, share the sessions.
    fn sessions(&self, store: &Store, short: bool) -> Sessions {
        let mut builder =
            Sessions::builder(store, "sim", "web").rotation_grace(Duration::from_millis(500));
        if short {
            builder = builder.idle(SHORT / 2).absolute(SHORT);
        }
        match builder.build() {
            Ok(sessions) => sessions,
            Err(error) => panic!("sessions cannot be made: {error}"),
        }
    }

    /// Whether a session that was made then may have been ended by a logout everywhere.
    fn may_be_ended(&self, known: &Known) -> bool {
        let ended = self.ended.lock();
        ended.contains(&known.user)
    }

    async fn look(&self, client: &Client, sessions: &Sessions, known: &Known) {
        let world = &client.world;
        let surely_ended = known.gone;
        let Ok(found) = sessions.load::<Data>(&known.token).await else {
            return;
        };
        if world.may_have_lost(Duration::ZERO, world.now()) {
            return;
        }
        let (sure, perhaps) = known.count;
        match found {
            Some(session) => {
                let count = session.data.count;
                if surely_ended {
                    world.breach(format!(
                        "client {} opens a session that was ended",
                        client.index
                    ));
                }
                if count < sure || count > perhaps {
                    world.breach(format!(
                        "a session has {count}; {sure} was written and {perhaps} was tried"
                    ));
                }
                if session.user.as_deref() != Some(&known.user) {
                    world.breach("a session belongs to another user".to_owned());
                }
            }
            None if !known.gone && !known.doubt && !self.may_be_ended(known) => {
                world.breach(format!("a session of client {} is gone", client.index));
            }
            None => {}
        }
    }

    async fn change(&self, client: &mut Client, sessions: &Sessions, known: &mut Known) {
        match client.dice.below(10) {
            0..=4 => {
                known.count.1 += 1;
                let data = Data {
                    count: known.count.1,
                };
                let patched = client
                    .perhaps_dropped(100, sessions.patch(&known.token, &data))
                    .await;
                match patched {
                    Some(Ok(Patched::Done)) if known.gone => {
                        if !client
                            .world
                            .may_have_lost(Duration::ZERO, client.world.now())
                        {
                            client
                                .world
                                .breach("a session that was ended was patched".to_owned());
                        }
                    }
                    Some(Ok(Patched::Done)) if !known.late => known.count.0 = known.count.1,
                    Some(Ok(_)) => {}
                    _ => (known.late, known.count.0) = (true, 0),
                }
            }
            5 | 6 => match client
                .perhaps_dropped(100, sessions.rotate(&known.token))
                .await
            {
                Some(Ok(Rotated::To(token))) => known.token = token,
                Some(Ok(_)) => {}
                _ => known.doubt = true,
            },
            7 => match client
                .perhaps_dropped(100, sessions.revoke(&known.token))
                .await
            {
                Some(Ok(true)) => known.gone = true,
                _ => known.doubt = true,
            },
            8 => {
                // Noted before: from here on it may happen.
                let user = known.user.clone();
                self.ended.lock().push(user.clone());
                if let Some(Ok(count)) = client
                    .perhaps_dropped(100, sessions.revoke_all(&user))
                    .await
                {
                    client.note(format_args!("{count} sessions of {user} ended"));
                    known.gone = true;
                }
            }
            _ => {
                if let Ok(listed) = sessions.list(&known.user).await {
                    let handle = known.token.handle();
                    let there = listed.iter().any(|info| info.handle == handle);
                    let lost = client
                        .world
                        .may_have_lost(Duration::ZERO, client.world.now());
                    let sure = !known.gone && !known.doubt && !self.may_be_ended(known);
                    if !there && sure && !lost {
                        client
                            .world
                            .breach(format!("the list of {} lacks a session", known.user));
                    }
                }
            }
        }
    }
}

impl Workload for Browsing {
    fn client(self: Arc<Self>, mut client: Client) -> Work {
        Box::pin(async move {
            let store = client.store().await;
            let short = client.dice.per_mille(400);
            let sessions = self.sessions(&store, short);
            let mut known: Vec<Known> = Vec::new();
            while client.next_operation() {
                client.rest(0, 500).await;
                if known.is_empty() || client.dice.per_mille(250) {
                    let user = format!("user{}", client.dice.below(3));
                    let created = sessions.create(&user, &Data { count: 1 }).await;
                    if let Ok(token) = created {
                        client.note(format_args!("a session of {user}"));
                        known.push(Known {
                            user,
                            token,
                            count: (1, 1),
                            late: false,
                            gone: false,
                            // It ends by itself.
                            doubt: short,
                        });
                    }
                    continue;
                }
                let at = client.dice.below(known.len() as u64) as usize;
                self.change(&mut client, &sessions, &mut known[at]).await;
                self.look(&client, &sessions, &known[at]).await;
            }
        })
    }

    fn settle(self: Arc<Self>, client: Client) -> Work {
        Box::pin(async move {
            let world = client.world.clone();
            let store = client.store().await;
            let sessions = self.sessions(&store, false);
            // Everything of a user ends at once, whatever happened before.
            for number in 0..3 {
                let user = format!("user{number}");
                let token = sessions.create(&user, &Data { count: 1 }).await;
                let ended = sessions.revoke_all(&user).await;
                let listed = sessions.list(&user).await;
                let left = match &token {
                    Ok(token) => sessions.load::<Data>(token).await,
                    Err(_) => Ok(None),
                };
                let fine = token.is_ok()
                    && ended.as_ref().is_ok_and(|count| *count > 0)
                    && listed.as_ref().is_ok_and(Vec::is_empty)
                    && matches!(left, Ok(None));
                if !fine {
                    world.breach(format!(
                        "sessions of {user} cannot be ended: {ended:?}, {listed:?}, {left:?}"
                    ));
                }
            }
            for (key, ttl) in world.keys() {
                if ttl < 0 {
                    world.breach(format!("{key} never expires"));
                }
            }
        })
    }
}
