//! Commands that are answered while a slow script holds the engine's state.

use bytes::Bytes;

use super::lock::Ended;
use crate::{
    acl,
    client::Client,
    context::{Ctx, Origin},
    dispatch::{self, Done},
    engine::{Inner, State},
    error::{CommandResult, Stop},
    registry,
    reply::Reply,
};

impl Inner {
    /// Answers a command while a slow script holds the state.
    pub(super) fn while_busy(&self, client: &mut Client, args: &[Bytes]) -> Reply {
        let spec = match registry::resolve(args, self.compat) {
            Ok(spec) => spec,
            Err(stop) => return refusal(client, stop),
        };
        if !spec.is(registry::flag::NO_AUTH) {
            if !client.authenticated && self.acl.is_guarded() {
                return refusal(client, acl::NOAUTH.into());
            }
            if !client.account.is_unlimited()
                && let Err(stop) = self.check_without_state(client, spec, args)
            {
                return refusal(client, stop);
            }
        }
        match spec.full_name {
            "script|kill" => answered(client, self.watchdog.kill_script()),
            "function|kill" => answered(client, self.watchdog.kill_function()),
            "function|stats" => answered(client, self.watchdog.stats()),
            "exec" => {
                client.multi = None;
                self.unwatch_later(client);
                let busy = self.watchdog.busy_text();
                Reply::Error(format!(
                    "EXECABORT Transaction discarded because of: {busy}"
                ))
            }
            "auth" | "hello" | "quit" | "multi" => self.run_without_state(client, args),
            "discard" if client.multi.is_some() => {
                client.multi = None;
                self.unwatch_later(client);
                Reply::OK
            }
            "discard" => self.run_without_state(client, args),
            "unwatch" if client.multi.is_none() => {
                self.unwatch_later(client);
                Reply::OK
            }
            "reset" if !client.is_subscribed() && client.tracking.is_none() => {
                self.unwatch_later(client);
                self.run_without_state(client, args)
            }
            _ => refusal(client, self.watchdog.busy_text().into()),
        }
    }

    /// Runs a command that looks at nothing but the client and the password.
    fn run_without_state(&self, client: &mut Client, args: &[Bytes]) -> Reply {
        let mut state = State::hollow();
        state.acl = self.acl.clone();
        state.config.compat = self.compat;
        let profile = client.profile.clone();
        let now = self.clock.now_micros();
        let done = dispatch::run(&mut state, client, args, now);
        if profile.is_none() {
            client.profile = None;
        }
        match done {
            Done::Reply(reply) => reply,
            // Nothing is lent to a state that is not the engine's.
            Done::Written => Reply::Nil,
            Done::Wait(wait) => wait.on_timeout,
        }
    }

    /// Whether the client's user may run this.
    fn check_without_state(
        &self,
        client: &mut Client,
        spec: &registry::Spec,
        args: &[Bytes],
    ) -> Result<(), Stop> {
        let mut state = State::hollow();
        state.acl = self.acl.clone();
        let profile = client.profile.clone();
        let now = self.clock.now_micros();
        let mut cx = Ctx::new(&mut state, client, now, Origin::Client);
        let checked = acl::check(&mut cx, spec, args);
        client.profile = profile;
        checked
    }

    /// Ends all watching of a client while the state is held.
    fn unwatch_later(&self, client: &mut Client) {
        if let Some(watch) = client.watch.take() {
            self.end(Ended::Watch(client.id, watch));
        }
    }
}

/// The reply to a command that was carried out without the state.
fn answered(client: &mut Client, result: CommandResult) -> Reply {
    match result {
        Ok(reply) => dispatch::shape(reply, client.protocol),
        Err(stop) => refusal(client, stop),
    }
}

/// An error reply to a command that was not run; a transaction is broken by it.
fn refusal(client: &mut Client, stop: Stop) -> Reply {
    if let Some(multi) = &mut client.multi {
        multi.broken = true;
    }
    match stop {
        Stop::Error(text) => Reply::Error(text.into_owned()),
        Stop::Block(wait) => wait.on_timeout,
    }
}
