//! HELP of the commands that hold subcommands.

use bytes::Bytes;

use crate::{context::Ctx, error::CommandResult, reply::Reply};

/// A subcommand's form, and what it does.
type Line = (&'static str, &'static str);

static PAGES: &[(&str, &[Line])] = &[
    (
        "client",
        &[
            (
                "CACHING (YES|NO)",
                "Chooses whether the keys of the next command are tracked.",
            ),
            ("GETNAME", "Returns the name of this connection."),
            (
                "GETREDIR",
                "Returns the id that invalidations are redirected to.",
            ),
            ("ID", "Returns the id of this connection."),
            ("INFO", "Describes this connection."),
            ("KILL <ip:port>", "Ends the connection from an address."),
            (
                "KILL <option> <value> [<option> <value> [...]]",
                "Ends connections by ADDR, LADDR, TYPE, USER, SKIPME or ID; with valkey-9 also by NAME, MAXAGE, IDLE, FLAGS, LIB-NAME, LIB-VER, DB, CAPA, IP and NOT-<option>.",
            ),
            (
                "LIST [options ...]",
                "Describes all connections, or those of a TYPE or with an ID; with valkey-9 by the options of KILL.",
            ),
            (
                "NO-EVICT (ON|OFF)",
                "Protects this connection from being ended to free memory.",
            ),
            (
                "PAUSE <timeout> [WRITE|ALL]",
                "Holds back commands for this many milliseconds.",
            ),
            (
                "REPLY (ON|OFF|SKIP)",
                "Chooses which replies this connection gets.",
            ),
            ("SETNAME <name>", "Names this connection."),
            (
                "TRACKING (ON|OFF) [options ...]",
                "Turns client-side caching on or off.",
            ),
            ("TRACKINGINFO", "Returns how this connection tracks keys."),
            (
                "UNBLOCK <clientid> [TIMEOUT|ERROR]",
                "Ends the wait of a blocked connection.",
            ),
            ("UNPAUSE", "Ends a pause."),
        ],
    ),
    (
        "command",
        &[
            ("(no subcommand)", "Describes all commands."),
            ("COUNT", "Returns how many commands there are."),
            (
                "DOCS [<command-name> ...]",
                "Returns what is documented of commands.",
            ),
            ("GETKEYS <full-command>", "Returns the keys of a command."),
            (
                "GETKEYSANDFLAGS <full-command>",
                "Returns the keys of a command and their use.",
            ),
            ("INFO [<command-name> ...]", "Describes commands."),
            (
                "LIST [FILTERBY (MODULE|ACLCAT|PATTERN) <value>]",
                "Returns the names of commands.",
            ),
        ],
    ),
    (
        "config",
        &[
            ("GET <pattern>", "Returns the settings whose names match."),
            ("SET <directive> <value>", "Changes settings."),
            ("RESETSTAT", "Sets the counters of INFO back."),
            (
                "REWRITE",
                "Writes the settings into the configuration file.",
            ),
        ],
    ),
    (
        "latency",
        &[
            ("DOCTOR", "Reports on slow events."),
            ("GRAPH <event>", "Draws the samples of an event."),
            ("HISTORY <event>", "Returns the samples of an event."),
            ("LATEST", "Returns the last sample of each event."),
            (
                "RESET [<event> ...]",
                "Forgets the samples of events, or of all.",
            ),
            (
                "HISTOGRAM [COMMAND ...]",
                "Returns how long commands took, in doubling steps.",
            ),
        ],
    ),
    (
        "memory",
        &[
            ("DOCTOR", "Reports on problems with memory."),
            ("MALLOC-STATS", "Returns what the allocator tells."),
            ("PURGE", "Gives memory back to the system."),
            ("STATS", "Returns what memory is used for."),
            (
                "USAGE <key> [SAMPLES <count>]",
                "Returns the bytes that a key takes up.",
            ),
        ],
    ),
    (
        "module",
        &[(
            "LIST",
            "Returns the loaded modules, of which there are none.",
        )],
    ),
    (
        "pubsub",
        &[
            (
                "CHANNELS [<pattern>]",
                "Returns the channels that have subscribers.",
            ),
            ("NUMPAT", "Returns how many patterns are subscribed to."),
            (
                "NUMSUB [<channel> ...]",
                "Returns how many subscribers channels have.",
            ),
            (
                "SHARDCHANNELS [<pattern>]",
                "Returns the sharded channels that have subscribers.",
            ),
            (
                "SHARDNUMSUB [<shardchannel> ...]",
                "Returns how many subscribers sharded channels have.",
            ),
        ],
    ),
    (
        "commandlog",
        &[
            (
                "GET <count> <type>",
                "Returns the newest entries of a type: id, time, microseconds or bytes, arguments, client.",
            ),
            ("LEN <type>", "Returns how many entries of a type are kept."),
            ("RESET <type>", "Forgets all entries of a type."),
        ],
    ),
    (
        "slowlog",
        &[
            (
                "GET [<count>]",
                "Returns the newest slow commands: id, time, microseconds, arguments, client.",
            ),
            ("LEN", "Returns how many slow commands are kept."),
            ("RESET", "Forgets all slow commands."),
        ],
    ),
    (
        "xgroup",
        &[
            (
                "CREATE <key> <groupname> <id|$> [option]",
                "Makes a group of consumers.",
            ),
            (
                "CREATECONSUMER <key> <groupname> <consumer>",
                "Makes a consumer.",
            ),
            (
                "DELCONSUMER <key> <groupname> <consumer>",
                "Removes a consumer.",
            ),
            ("DESTROY <key> <groupname>", "Removes a group."),
            (
                "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
                "Moves a group to an entry.",
            ),
        ],
    ),
    (
        "xinfo",
        &[
            (
                "CONSUMERS <key> <groupname>",
                "Describes the consumers of a group.",
            ),
            ("GROUPS <key>", "Describes the groups of a stream."),
            ("STREAM <key> [FULL [COUNT <count>]", "Describes a stream."),
        ],
    ),
];

/// The page of the container that was called.
pub(crate) fn help(_: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let name = String::from_utf8_lossy(&args[0]).to_lowercase();
    let page = PAGES.iter().find(|(container, _)| *container == name);
    let lines = page.map_or(&[][..], |(_, lines)| lines);
    let name = name.to_uppercase();
    let mut text = vec![format!(
        "{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    )];
    for (form, meaning) in lines {
        text.push((*form).to_owned());
        text.push(format!("    {meaning}"));
    }
    text.push("HELP".into());
    text.push("    Prints this help.".into());
    let line = |line: String| Reply::Status(line.into());
    Ok(Reply::Array(text.into_iter().map(line).collect()))
}
