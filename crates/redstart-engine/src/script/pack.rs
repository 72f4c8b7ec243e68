use mlua::{Lua, Table};

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    lua.create_table()
}
