//! How a script runs a command.

use bytes::Bytes;
use mlua::{MultiValue, Value};

use super::{
    library::reply_error,
    shared::{Shared, Stage},
    stack::is_stack_used_up,
};
use crate::{
    acl,
    compat::versions,
    context::{Ctx, Origin},
    dispatch,
    error::{OUT_OF_MEMORY, Stop},
    hash_slot, number,
    registry::{self, flag},
    replica::READ_ONLY,
    reply::{Protocol, Reply},
};

/// The arguments of a command as Lua passed them.
pub(super) fn arguments(args: &MultiValue) -> Result<Vec<Bytes>, &'static str> {
    if args.is_empty() {
        return Err("Please specify at least one argument for this redis lib call");
    }
    let mut list = Vec::with_capacity(args.len());
    for value in args {
        list.push(match value {
            Value::String(text) => Bytes::copy_from_slice(&text.as_bytes()),
            Value::Integer(value) => number::int_bytes(*value),
            Value::Number(value) => number::format_double(*value),
            _ => return Err("Lua redis lib command arguments must be strings or integers"),
        });
    }
    Ok(list)
}

/// What a command was refused with before it ran.
pub(super) struct Refused {
    pub(super) text: Vec<u8>,
    pub(super) counted: bool,
}

impl Refused {
    fn new(text: &str) -> Refused {
        Refused {
            text: format!("ERR {text}").into_bytes(),
            counted: true,
        }
    }
}

/// Runs the command that a script calls; its reply is in the shape of the protocol beside it.
pub(super) fn command(
    shared: &Shared,
    args: &MultiValue,
) -> mlua::Result<Result<(Reply, Protocol), Refused>> {
    if is_stack_used_up() {
        return Ok(Err(Refused::new("stack overflow")));
    }
    let args = match arguments(args) {
        Ok(args) => args,
        Err(text) => {
            return Ok(Err(Refused {
                text: format!("ERR {text}").into_bytes(),
                counted: false,
            }));
        }
    };
    let mut stage = shared.stage.lock();
    if !stage.running {
        return Err(reply_error(
            "redis.call/pcall can only be called inside a script invocation",
        ));
    }
    let protocol = stage.client.protocol;
    Ok(execute(shared, &mut stage, &args).map(|reply| (reply, protocol)))
}

fn execute(shared: &Shared, stage: &mut Stage, args: &[Bytes]) -> Result<Reply, Refused> {
    let compat = stage.state.config.compat;
    let spec = match registry::resolve(args, compat) {
        Ok(spec) => spec,
        Err(_) => {
            let known = registry::command(&args[0]).is_some_and(|spec| {
                let named = |sub: &registry::Spec| {
                    sub.name.as_bytes().eq_ignore_ascii_case(&args[1]) && sub.exists_in(compat)
                };
                spec.exists_in(compat)
                    && (spec.subcommands.is_empty()
                        || args.len() < 2
                        || spec.subcommands.iter().any(named))
            });
            return Err(Refused::new(if known {
                "Wrong number of args calling Redis command from script"
            } else {
                "Unknown Redis command called from script"
            }));
        }
    };
    // Valkey lets scripts call what would block; it answers as after its timeout.
    let answers_at_once = spec.is(flag::BLOCKING) && compat.is_in(versions::VALKEY);
    if spec.is(flag::NOSCRIPT) && !answers_at_once {
        return Err(Refused::new(
            "This Redis command is not allowed from script",
        ));
    }
    if !stage.client.account.is_unlimited() {
        let (now, origin) = (stage.now_micros, Origin::Script);
        let mut cx = Ctx::new(&mut stage.state, &mut stage.client, now, origin);
        acl::check_in_script(&mut cx, spec, args).map_err(Refused::new)?;
    }
    if spec.is(flag::WRITE) {
        if stage.read_only {
            return Err(Refused::new(
                "Write commands are not allowed from read-only scripts.",
            ));
        }
        // Before it counts as one that wrote, which cannot be killed.
        if stage.state.replica.is_some() {
            return Err(Refused {
                text: READ_ONLY.into(),
                counted: true,
            });
        }
        // What has begun to write goes on, even if that takes memory.
        let wrote = shared.watchdog.has_written();
        if stage.state.out_of_memory && spec.is(flag::DENYOOM) {
            if !wrote {
                return Err(Refused {
                    text: OUT_OF_MEMORY.into(),
                    counted: true,
                });
            }
            stage.state.out_of_memory = false;
        }
        if !wrote {
            if let Some(why) = dispatch::refusal_to_write(&stage.state) {
                return Err(Refused {
                    text: why.into(),
                    counted: true,
                });
            }
            shared.watchdog.set_written();
        }
    }
    if let Some(declared) = &stage.declared {
        check_declared(declared, spec, args)?;
    }
    let protocol = stage.client.protocol;
    let mut cx = Ctx::new(
        &mut stage.state,
        &mut stage.client,
        stage.now_micros,
        Origin::Script,
    );
    Ok(match cx.call(spec, args) {
        Ok(reply) => dispatch::shape(reply, protocol),
        Err(Stop::Error(text)) => Reply::Error(text.into_owned()),
        Err(Stop::Block(wait)) => dispatch::shape(wait.on_timeout, protocol),
    })
}

/// In cluster-strict mode a script may touch the keys it declared, and channels of their stage.
fn check_declared(
    declared: &[Bytes],
    spec: &registry::Spec,
    args: &[Bytes],
) -> Result<(), Refused> {
    let channels = spec.is(flag::PUBSUB);
    let mut undeclared = None;
    spec.each_key(args, |at| {
        let key = &args[at];
        let fine = if channels {
            declared
                .first()
                .is_none_or(|first| hash_slot::of(first) == hash_slot::of(key))
        } else {
            declared.contains(key)
        };
        if !fine {
            undeclared = Some(at);
        }
    });
    match undeclared {
        None => Ok(()),
        Some(_) if channels => Err(Refused::new(
            "Script attempted to access keys that do not hash to the same slot",
        )),
        Some(_) => Err(Refused::new(
            "Script attempted to access a key that is not among its KEYS",
        )),
    }
}
