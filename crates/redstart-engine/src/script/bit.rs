//! `bit`: operations on 32-bit integers, as LuaJIT's BitOp defines them.

use mlua::{Lua, MultiValue, Table, Value};

use super::argument::number_argument;

/// A number as 32 bits: wraps around, rounds to the nearest.
fn bits(lua: &Lua, args: &[Value], number: usize) -> mlua::Result<u32> {
    let value = number_argument(lua, args, number)?;
    // Adding this puts the integer part into the lowest bits of the mantissa.
    Ok((value + 6_755_399_441_055_744.0).to_bits() as u32)
}

fn signed(bits: u32) -> f64 {
    f64::from(bits as i32)
}

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let one = |name: &str, f: fn(u32) -> u32| {
        let function = lua.create_function(move |lua, args: MultiValue| {
            Ok(signed(f(bits(lua, &args.into_vec(), 1)?)))
        })?;
        table.set(name, function)
    };
    one("tobit", |a| a)?;
    one("bnot", |a| !a)?;
    one("bswap", u32::swap_bytes)?;

    let many = |name: &str, f: fn(u32, u32) -> u32| {
        let function = lua.create_function(move |lua, args: MultiValue| {
            let args = args.into_vec();
            let mut result = bits(lua, &args, 1)?;
            for number in 2..=args.len() {
                result = f(result, bits(lua, &args, number)?);
            }
            Ok(signed(result))
        })?;
        table.set(name, function)
    };
    many("band", |a, b| a & b)?;
    many("bor", |a, b| a | b)?;
    many("bxor", |a, b| a ^ b)?;

    let shift = |name: &str, f: fn(u32, u32) -> u32| {
        let function = lua.create_function(move |lua, args: MultiValue| {
            let args = args.into_vec();
            let (value, by) = (bits(lua, &args, 1)?, bits(lua, &args, 2)?);
            Ok(signed(f(value, by & 31)))
        })?;
        table.set(name, function)
    };
    shift("lshift", |a, n| a << n)?;
    shift("rshift", |a, n| a >> n)?;
    shift("arshift", |a, n| ((a as i32) >> n) as u32)?;
    shift("rol", u32::rotate_left)?;
    shift("ror", u32::rotate_right)?;

    let tohex = lua.create_function(|lua, args: MultiValue| {
        let args = args.into_vec();
        let value = bits(lua, &args, 1)?;
        let digits = if args.len() < 2 {
            8
        } else {
            bits(lua, &args, 2)? as i32
        };
        let text = if digits < 0 {
            format!("{value:08X}")
        } else {
            format!("{value:08x}")
        };
        let count = (digits.unsigned_abs() as usize).min(8);
        lua.create_string(&text[8 - count..])
    })?;
    table.set("tohex", tohex)?;
    Ok(table)
}
