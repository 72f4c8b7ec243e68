//! A batch of commands: run in order under one hold of the lock.

use bytes::Bytes;

use super::{Session, blocked::Blocked, listener::TOO_MANY_CLIENTS, replies::Replies};
use crate::{
    blocking::{self, Wait},
    client::Client,
    compat::Compat,
    dispatch::{self, Done},
    engine::{Inner, State},
    feed::Attachment,
    reply::Reply,
    stats::commandlog,
    types::dict::WARMED,
};

/// What a batch does with a command that has to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The batch ends there, and at a command that CLIENT PAUSE holds back.
    Wait,
    /// The batch ends there; CLIENT PAUSE holds nothing back, but a move of the data does.
    Try,
    /// The command answers as after its timeout. Nothing is run if one of all would be held back by a
    /// move of the data.
    TimeOut,
}

impl Mode {
    /// Whether the batch ends before this command, because clients are paused or the data moves.
    fn is_held_back(self, state: &mut State, client: &Client, args: &[Bytes], now: i64) -> bool {
        let until = match self {
            Mode::Wait => dispatch::paused(state, client, args, now / 1000),
            Mode::Try => dispatch::held_back(state, client, args, now / 1000),
            Mode::TimeOut => None,
        };
        until.is_some()
    }
}

/// Why a batch ended.
pub(crate) enum End {
    /// All commands were run, or enough is written.
    Done,
    /// The last command that was run waits.
    Blocked(Blocked),
    /// The next command has to wait until the end of a CLIENT PAUSE.
    Paused,
    /// The state is held by a command that takes long: try again in a moment.
    Held,
    /// The client wants to go, or must.
    Closing,
    /// The client has become a replica.
    Attached(Box<Attachment>),
}

/// What became of a batch of commands.
pub(crate) struct Ran {
    /// How many commands were run, the one that waits included.
    pub(crate) count: usize,
    pub(crate) end: End,
    /// The position of the log that the replies depend on.
    pub(crate) position: u64,
    /// The same for messages of others: where the last unit ended.
    pub(crate) last: u64,
}

impl Ran {
    /// A batch without commands.
    pub(super) fn nothing() -> Ran {
        Ran {
            count: 0,
            end: End::Done,
            position: 0,
            last: 0,
        }
    }
}

impl Session {
    /// Runs commands in order under one hold of the lock. The replies may leave when the log has
    /// kept everything up to [`Ran::position`].
    ///
    /// In one piece although it is long: all of it happens under the lock, and its order is what counts.
    pub(super) fn run<'c>(
        &mut self,
        commands: impl IntoIterator<Item = &'c [Bytes], IntoIter: Clone>,
        mode: Mode,
        replies: &mut impl Replies,
    ) -> Ran {
        let Session { inner, client } = self;
        let mut commands = commands.into_iter();
        let mut ran = Ran::nothing();
        let Some(mut state) = inner.try_lock() else {
            if inner.watchdog.is_busy() {
                return self.run_while_busy(commands, replies);
            }
            ran.end = End::Held;
            return ran;
        };
        let now = inner.clock.now_micros();
        if let Some(profile) = client.unannounced.take()
            && !client.enter(&mut state, profile)
        {
            client.closing = true;
            ran.end = End::Closing;
            replies.take(client, Reply::Error(TOO_MANY_CLIENTS.into()));
            return ran;
        }
        // Who killed it may have been told so: nothing of it runs any more.
        if replies.ends_with_client() && client.is_killed() {
            return ran;
        }
        if mode == Mode::TimeOut
            && inner.is_paused()
            && dispatch::holds_back(&mut state, client, commands.clone(), now / 1000)
        {
            ran.end = End::Paused;
            return ran;
        }
        state.effects.begin();
        state.stats.pause();
        replies.begin(client, &state.config);
        let mut unwarmed = 0;
        loop {
            if unwarmed == 0 {
                unwarmed = WARMED;
                warm(&mut state, client, commands.clone());
            }
            unwarmed -= 1;
            if replies.is_full() {
                break;
            }
            let Some(args) = commands.next() else {
                break;
            };
            if inner.is_paused() && mode.is_held_back(&mut state, client, args, now) {
                ran.end = End::Paused;
                break;
            }
            ran.count += 1;
            client.begin_command();
            // What a client is told of in between has its place before the reply.
            let lent = client.is_plain();
            if lent && let Some(output) = replies.output() {
                state.output.lend(output);
            }
            let before = match state.config.compat {
                Compat::Valkey9 => replies.bytes(),
                _ => None,
            };
            let done = dispatch::run(&mut state, client, args, now);
            if lent && let Some(output) = replies.output() {
                state.output.take_back(output);
            }
            match done {
                Done::Written => replies.wrote(client),
                Done::Reply(_) if client.attachment.is_some() => {}
                Done::Reply(reply) => replies.take(client, reply),
                Done::Wait(wait) if mode == Mode::TimeOut => {
                    let reply = dispatch::shape(wait.on_timeout, client.protocol);
                    replies.take(client, reply);
                }
                Done::Wait(wait) => {
                    let number = begin_wait(inner, &mut state, client, *wait, now);
                    ran.end = End::Blocked(Blocked::new(inner.clone(), number));
                    break;
                }
            }
            if let (Some(before), Some(after)) = (before, replies.bytes()) {
                let answered = after.saturating_sub(before);
                commandlog::look(&mut state, client, args, now, answered);
            }
            if let Some(attachment) = client.attachment.take() {
                ran.end = End::Attached(attachment);
                break;
            }
            if client.closing && replies.ends_with_client() {
                ran.end = End::Closing;
                break;
            }
        }
        client.show(now);
        ran.position = state.effects.position();
        ran.last = state.effects.last_position();
        ran
    }

    /// Answers commands while a slow script holds the state.
    fn run_while_busy<'c>(
        &mut self,
        commands: impl Iterator<Item = &'c [Bytes]>,
        replies: &mut impl Replies,
    ) -> Ran {
        let Session { inner, client } = self;
        let mut ran = Ran::nothing();
        for args in commands {
            if replies.is_full() {
                break;
            }
            ran.count += 1;
            client.begin_command();
            let reply = inner.while_busy(client, args);
            replies.take_alone(client, reply);
            if client.closing && replies.ends_with_client() {
                ran.end = End::Closing;
                break;
            }
        }
        client.show(inner.clock.now_micros());
        ran
    }

    /// As [`Session::run`], waiting for as long as a script or command holds the state, until it
    /// counts as slow.
    pub(super) fn run_blocking<'c>(
        &mut self,
        commands: impl IntoIterator<Item = &'c [Bytes], IntoIter: Clone> + Clone,
        mode: Mode,
        replies: &mut impl Replies,
    ) -> Ran {
        loop {
            let ran = self.run(commands.clone(), mode, replies);
            if !matches!(ran.end, End::Held) {
                return ran;
            }
        }
    }
}

/// Asks for the memory of the next commands' keys ahead of time.
#[inline]
fn warm<'c>(
    state: &mut State,
    client: &Client,
    commands: impl Iterator<Item = &'c [Bytes]> + Clone,
) {
    // Most commands have their key there; for the others this is in vain, but does no harm.
    let keys = commands.filter_map(|args| args.get(1));
    // One alone has nothing to wait for together with.
    if keys.clone().nth(1).is_some() {
        state.dbs[client.db].warm(keys.map(AsRef::as_ref));
    }
}

/// Lets the client wait for what the command found nothing of; the number of the wait. `now` is the time of the batch.
fn begin_wait(inner: &Inner, state: &mut State, client: &Client, mut wait: Wait, now: i64) -> u64 {
    // The time of the batch is cut to microseconds, and may be a while ago.
    let late = (inner.clock.now_micros_up() - now).max(0);
    wait.deadline = wait.deadline.map(|deadline| deadline.saturating_add(late));
    blocking::add(state, client, wait)
}
