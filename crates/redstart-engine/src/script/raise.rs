//! Errors that Rust functions raise in Lua.

use mlua::Lua;

/// Why a Rust function that Lua called failed; travels through Lua as an error object.
#[derive(Debug)]
pub(super) enum Raise {
    /// A string.
    Text(Vec<u8>),
    /// A table `{err = …}`; `counted` if the failure is that of a command.
    Reply { text: Vec<u8>, counted: bool },
    /// The script was killed: nothing may catch this.
    Killed(&'static str),
}

impl std::fmt::Display for Raise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Raise::Text(text) | Raise::Reply { text, .. } => {
                f.write_str(&String::from_utf8_lossy(text))
            }
            Raise::Killed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Raise {}

impl From<Raise> for mlua::Error {
    fn from(raise: Raise) -> mlua::Error {
        mlua::Error::external(raise)
    }
}

/// The position of the function `level` calls up the stack, as Lua puts it before an error's text.
pub(super) fn position(lua: &Lua, level: usize) -> String {
    lua.inspect_stack(level, |frame| match frame.current_line() {
        Some(line) if line > 0 => {
            let source = frame.source();
            let name = source.short_src.as_deref().unwrap_or("?");
            format!("{name}:{line}: ")
        }
        _ => String::new(),
    })
    .unwrap_or_default()
}

/// A string error with the caller's position, as `luaL_error` raises it.
pub(super) fn text_error(lua: &Lua, text: impl AsRef<[u8]>) -> mlua::Error {
    let mut full = position(lua, 1).into_bytes();
    full.extend_from_slice(text.as_ref());
    Raise::Text(full).into()
}
