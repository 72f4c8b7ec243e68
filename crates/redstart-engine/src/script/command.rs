//! How a script runs a command.

use bytes::{Bytes, BytesMut};
use mlua::{MultiValue, Value};
use redstart_lua::{Argument, Arguments};

use super::{running::Running, shared::Stage, stack::is_stack_used_up};
use crate::{
    acl,
    compat::{Compat, versions},
    context::{Ctx, Origin},
    dispatch,
    error::{OUT_OF_MEMORY, Stop},
    hash_slot, number,
    registry::{self, flag},
    replica::READ_ONLY,
    reply::{Protocol, Reply},
};

const NO_ARGUMENT: &str = "Please specify at least one argument for this redis lib call";
const WRONG_ARGUMENT: &str = "Lua redis lib command arguments must be strings or integers";

/// The arguments of a command as Lua passed them.
pub(super) fn arguments(args: &MultiValue) -> Result<Vec<Bytes>, &'static str> {
    if args.is_empty() {
        return Err(NO_ARGUMENT);
    }
    let mut list = Vec::with_capacity(args.len());
    for value in args {
        list.push(match value {
            Value::String(text) => Bytes::copy_from_slice(&text.as_bytes()),
            Value::Integer(value) => number::int_bytes(*value),
            Value::Number(value) => number::format_double(*value),
            _ => return Err(WRONG_ARGUMENT),
        });
    }
    Ok(list)
}

/// The arguments of the command that a script calls. What they take up is used again for the next one.
#[derive(Default)]
pub(super) struct Command {
    args: Vec<Bytes>,
    /// Small arguments are parts of this.
    text: BytesMut,
}

/// How much of [`Command::text`] is made at once.
const CHUNK: usize = 4096;
/// Arguments of more bytes are on their own, so that whatever keeps one keeps no others.
const SMALL: usize = 512;

impl Command {
    fn read(&mut self, arguments: &Arguments<'_>, compat: Compat) -> Result<(), &'static str> {
        self.args.clear();
        if arguments.is_empty() {
            return Err(NO_ARGUMENT);
        }
        if self.text.capacity() < SMALL {
            // Takes back what the arguments before have used, unless something keeps one of them.
            self.text.reserve(CHUNK);
        }
        for argument in arguments.iter() {
            match argument {
                Argument::Bytes(text) if text.len() > SMALL => {
                    self.args.push(Bytes::copy_from_slice(text));
                    continue;
                }
                Argument::Bytes(text) => self.text.extend_from_slice(text),
                Argument::Number(value) => write_number(&mut self.text, value, compat),
                Argument::Other => return Err(WRONG_ARGUMENT),
            }
            self.args.push(self.text.split().freeze());
        }
        Ok(())
    }
}

/// Redis 7.0 writes all numbers with 17 digits.
const BEYOND_17_DIGITS: f64 = 1e17;

/// Writes a number as Redis hands it to commands.
fn write_number(text: &mut BytesMut, value: f64, compat: Compat) {
    let whole = number::truncate(value);
    // By bits: minus zero is not the integer.
    if (whole as f64).to_bits() == value.to_bits()
        && (value.abs() < BEYOND_17_DIGITS || compat.is_in(versions::FROM_7_2))
    {
        text.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
    } else {
        text.extend_from_slice(number::double_text(value).as_bytes());
    }
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
    running: &mut Running<'_>,
    arguments: &Arguments<'_>,
) -> Result<(Reply, Protocol), Refused> {
    if is_stack_used_up() {
        return Err(Refused::new("stack overflow"));
    }
    let mut command = std::mem::take(running.command);
    let result = match command.read(arguments, running.state.config.compat) {
        Ok(()) => {
            let shared = running.shared;
            let mut stage = shared.stage.lock();
            let protocol = stage.client.protocol;
            execute(running, &mut stage, &command.args).map(|reply| (reply, protocol))
        }
        Err(text) => Err(Refused {
            text: format!("ERR {text}").into_bytes(),
            counted: false,
        }),
    };
    command.args.clear();
    *running.command = command;
    result
}

fn execute(running: &mut Running<'_>, stage: &mut Stage, args: &[Bytes]) -> Result<Reply, Refused> {
    let state = &mut *running.state;
    let compat = state.config.compat;
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
        let (now, origin) = (running.now_micros, Origin::Script);
        let mut cx = Ctx::new(state, &mut stage.client, now, origin);
        acl::check_in_script(&mut cx, spec, args).map_err(Refused::new)?;
    }
    if spec.is(flag::WRITE) {
        if running.read_only {
            return Err(Refused::new(
                "Write commands are not allowed from read-only scripts.",
            ));
        }
        // Before it counts as one that wrote, which cannot be killed.
        if state.replica.is_some() {
            return Err(Refused {
                text: READ_ONLY.into(),
                counted: true,
            });
        }
        // What has begun to write goes on, even if that takes memory.
        let wrote = running.shared.watchdog.has_written();
        if state.out_of_memory && spec.is(flag::DENYOOM) {
            if !wrote {
                return Err(Refused {
                    text: OUT_OF_MEMORY.into(),
                    counted: true,
                });
            }
            state.out_of_memory = false;
        }
        if !wrote {
            if let Some(why) = dispatch::refusal_to_write(state) {
                return Err(Refused {
                    text: why.into(),
                    counted: true,
                });
            }
            running.shared.watchdog.set_written();
        }
    }
    if let Some(declared) = running.declared {
        check_declared(declared, spec, args)?;
    }
    let protocol = stage.client.protocol;
    let (now, origin) = (running.now_micros, Origin::Script);
    let mut cx = Ctx::new(state, &mut stage.client, now, origin);
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
