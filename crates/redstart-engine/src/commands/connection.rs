//! Connections: what a client sends first and last.

use bytes::Bytes;

use crate::{
    acl,
    client::{Answers, Client},
    context::Ctx,
    engine::State,
    error::{CommandResult, SYNTAX, Stop},
    number::parse_int,
    pubsub,
    registry::{Spec, flag::*, printable},
    reply::{Protocol, Reply},
    tracking,
};

use super::client::{self, check_name};

const GREETING: u32 = NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY;
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);

pub(crate) static COMMANDS: &[Spec] = &[
    Spec::new("hello", -1, GREETING, NO_KEYS, hello),
    Spec::new("auth", -2, GREETING, NO_KEYS, auth),
    Spec::new("reset", 1, GREETING | UNQUEUED, NO_KEYS, reset),
    Spec::new("quit", -1, GREETING | UNQUEUED, NO_KEYS, quit),
    Spec::container("client", -2, 0, client::CLIENT_COMMANDS),
];

const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

fn hello(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut protocol = None;
    if let Some(version) = args.get(1) {
        protocol = Some(match parse_int(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err("NOPROTO unsupported protocol version".into()),
            None => return Err("ERR Protocol version is not an integer or out of range".into()),
        });
    }
    let mut credentials = None;
    let mut name = None;
    let mut rest = args.get(2..).unwrap_or_default();
    while let Some(option) = rest.first() {
        if option.eq_ignore_ascii_case(b"AUTH") && rest.len() >= 3 {
            credentials = Some((&rest[1], &rest[2]));
            rest = &rest[3..];
        } else if option.eq_ignore_ascii_case(b"SETNAME") && rest.len() >= 2 {
            check_name(&rest[1])?;
            name = Some(&rest[1]);
            rest = &rest[2..];
        } else {
            let option = printable(option);
            return Err(format!("ERR Syntax error in HELLO option '{option}'").into());
        }
    }
    if let Some((user, password)) = credentials {
        log_in(cx, &args[0], user, password)?;
    }
    if !cx.client.authenticated {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
             the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
             client and select the RESP protocol version at the same time"
                .into(),
        );
    }
    if let Some(name) = name {
        client::set_name(cx, name);
    }
    if let Some(protocol) = protocol {
        cx.client.set_protocol(protocol);
    }
    // A client that knows the id may ask about it.
    client::profile(cx);
    let proto = match cx.client.protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    let pair = |key: &'static str, value: Reply| (Reply::bulk(key), value);
    let compat = cx.state.config.compat;
    Ok(Reply::Map(vec![
        pair("server", Reply::bulk(compat.server())),
        pair("version", Reply::bulk(compat.version())),
        pair("proto", Reply::Int(proto)),
        pair("id", Reply::Int(cx.client.id as i64)),
        pair(
            "mode",
            Reply::bulk(match cx.state.config.cluster {
                true => "cluster",
                false => "standalone",
            }),
        ),
        pair(
            "role",
            Reply::bulk(match cx.state.replica {
                Some(_) => "replica",
                None => "master",
            }),
        ),
        pair("modules", Reply::empty()),
    ]))
}

fn auth(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    match args {
        [_, password] => {
            if cx.state.acl.is_without_password() {
                return Err(
                    "ERR AUTH <password> called without any password configured for the default \
                     user. Are you sure your configuration is correct?"
                        .into(),
                );
            }
            log_in(cx, &args[0], acl::DEFAULT, password)?;
        }
        [_, user, password] => log_in(cx, &args[0], user, password)?,
        _ => return Err(SYNTAX.into()),
    }
    Ok(Reply::OK)
}

fn log_in(cx: &mut Ctx<'_>, command: &Bytes, user: &[u8], password: &[u8]) -> Result<(), Stop> {
    let Some(account) = cx.state.acl.log_in(user, password) else {
        acl::note_failed_login(cx, command, user);
        return Err(WRONG_PASS.into());
    };
    cx.client.account = account;
    cx.client.authenticated = true;
    // A user may be deleted, and then its clients must be found, also while they block.
    client::profile(cx);
    cx.client.update_profile(None, cx.now_micros);
    Ok(())
}

fn reset(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let (state, client) = (&mut *cx.state, &mut *cx.client);
    forget_all(state, client);
    client.db = 0;
    client.set_protocol(Protocol::Resp2);
    client.account = state.acl.default_account().clone();
    client.authenticated = !state.acl.is_guarded();
    client.answers = Answers::On;
    if let Some(profile) = &client.profile {
        profile.activity.lock().name = Bytes::new();
    }
    Ok(Reply::status("RESET"))
}

fn forget_all(state: &mut State, client: &mut Client) {
    client.multi = None;
    super::transaction::unwatch_all(state, client);
    pubsub::forget(state, client);
    tracking::disable(state, client);
    state.monitors.remove(&client.id);
    client.monitors = false;
}

fn quit(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    cx.client.closing = true;
    Ok(Reply::OK)
}
