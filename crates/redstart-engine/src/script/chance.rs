//! `math.random` as in Redis: drand48, the same in every script unless it is seeded.

use std::sync::{Arc, atomic::Ordering};

use mlua::{Lua, MultiValue, Table};

use super::{
    argument::{argument_error, number_argument},
    raise::text_error,
    shared::Shared,
};

/// The state of drand48 before anybody seeds it.
pub(super) const UNSEEDED: u64 = 0x1234_ABCD_330E;

/// Adds `random` and `randomseed`.
pub(super) fn set_functions(lua: &Lua, shared: &Arc<Shared>, host: &Table) -> mlua::Result<()> {
    let of = shared.clone();
    host.set(
        "random",
        lua.create_function(move |lua, args: MultiValue| {
            let args = args.into_vec();
            let r = f64::from(draw(&of) % 0x7FFF_FFFF) / f64::from(0x7FFF_FFFF_u32);
            match args.len() {
                0 => Ok(r),
                1 => {
                    let upper = number_argument(lua, &args, 1)? as i32;
                    if upper < 1 {
                        return Err(argument_error(lua, 1, "interval is empty"));
                    }
                    Ok((r * f64::from(upper)).floor() + 1.0)
                }
                2 => {
                    let lower = number_argument(lua, &args, 1)? as i32;
                    let upper = number_argument(lua, &args, 2)? as i32;
                    if lower > upper {
                        return Err(argument_error(lua, 2, "interval is empty"));
                    }
                    let span = upper.wrapping_sub(lower).wrapping_add(1);
                    Ok((r * f64::from(span)).floor() + f64::from(lower))
                }
                _ => Err(text_error(lua, "wrong number of arguments")),
            }
        })?,
    )?;
    let of = shared.clone();
    host.set(
        "randomseed",
        lua.create_function(move |lua, args: MultiValue| {
            let args = args.into_vec();
            let seed = number_argument(lua, &args, 1)? as i64 as i32;
            let state = (u64::from(seed as u32) << 16) + 0x330E;
            of.chance.store(state & 0xFFFF_FFFF_FFFF, Ordering::Relaxed);
            Ok(())
        })?,
    )?;
    Ok(())
}

/// The next number of drand48's sequence, below 2^31.
fn draw(shared: &Shared) -> u32 {
    let state = shared.chance.load(Ordering::Relaxed);
    let next = state.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & 0xFFFF_FFFF_FFFF;
    shared.chance.store(next, Ordering::Relaxed);
    (next >> 17) as u32
}
