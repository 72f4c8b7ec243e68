//! CLIENT TRACKING: which keys a client is told of when they change.

use bytes::Bytes;

use super::{on_off, profile};
use crate::{
    context::Ctx,
    error::{CommandResult, SYNTAX, Stop},
    number::int_arg,
    registry::printable,
    reply::Reply,
    tracking::{self, Tracking},
};

pub(super) fn tracking(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let mut choice = Tracking::default();
    let mut rest = &args[3..];
    while let [option, more @ ..] = rest {
        rest = more;
        match (option.to_ascii_lowercase().as_slice(), more) {
            (b"redirect", [id, more @ ..]) => {
                rest = more;
                if choice.redirect != 0 {
                    return Err("ERR A client can only redirect to a single other client".into());
                }
                let id = int_arg(id)? as u64;
                if !cx.state.clients.contains_key(&id) {
                    return Err("ERR The client ID you want redirect to does not exist".into());
                }
                choice.redirect = id;
            }
            (b"prefix", [prefix, more @ ..]) => {
                rest = more;
                // A copy: an argument is a part of a read buffer.
                choice.prefixes.push(Bytes::copy_from_slice(prefix));
            }
            (b"bcast", _) => choice.bcast = true,
            (b"optin", _) => choice.optin = true,
            (b"optout", _) => choice.optout = true,
            (b"noloop", _) => choice.noloop = true,
            _ => return Err(SYNTAX.into()),
        }
    }
    if !on_off(&args[2])? {
        tracking::disable(cx.state, cx.client);
        return Ok(Reply::OK);
    }
    if !choice.bcast && !choice.prefixes.is_empty() {
        return Err("ERR PREFIX option requires BCAST mode to be enabled".into());
    }
    if let Some(now) = &cx.client.tracking
        && now.bcast != choice.bcast
    {
        return Err(
            "ERR You can't switch BCAST mode on/off before disabling tracking for this client, \
             and then re-enabling it with a different mode."
                .into(),
        );
    }
    if choice.bcast && (choice.optin || choice.optout) {
        return Err("ERR OPTIN and OPTOUT are not compatible with BCAST".into());
    }
    if choice.optin && choice.optout {
        return Err("ERR You can't specify both OPTIN mode and OPTOUT mode".into());
    }
    if let Some(now) = &cx.client.tracking
        && ((choice.optin && now.optout) || (choice.optout && now.optin))
    {
        return Err(
            "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, \
             and then re-enabling it with a different mode."
                .into(),
        );
    }
    if choice.bcast {
        check_prefixes(cx, &choice.prefixes)?;
    }
    let profile = profile(cx);
    tracking::enable(cx.state, cx.client, profile, choice);
    Ok(Reply::OK)
}

/// A client would be told twice of a key below two of its prefixes.
fn check_prefixes(cx: &Ctx<'_>, prefixes: &[Bytes]) -> Result<(), Stop> {
    let overlap = |a: &Bytes, b: &Bytes| a.starts_with(b) || b.starts_with(a);
    let refuse = |a: &Bytes, what: &str, b: &Bytes| {
        Stop::from(format!(
            "ERR Prefix '{}' overlaps with {what} prefix '{}'. Prefixes for a single client must \
             not overlap.",
            printable(a),
            printable(b)
        ))
    };
    for (at, prefix) in prefixes.iter().enumerate() {
        if let Some(now) = &cx.client.tracking
            && let Some(other) = now.prefixes.iter().find(|other| overlap(prefix, other))
        {
            return Err(refuse(prefix, "an existing", other));
        }
        if let Some(other) = prefixes[at + 1..]
            .iter()
            .find(|other| overlap(prefix, other))
        {
            return Err(refuse(prefix, "another provided", other));
        }
    }
    Ok(())
}

pub(super) fn trackinginfo(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    let mut flags = Vec::new();
    let mut redirect = -1;
    let mut prefixes = Vec::new();
    match &cx.client.tracking {
        None => flags.push("off"),
        Some(tracking) => {
            flags.push("on");
            let mut flag = |set: bool, name: &'static str| {
                if set {
                    flags.push(name);
                }
            };
            flag(tracking.bcast, "bcast");
            flag(tracking.optin, "optin");
            flag(
                tracking.optin && tracking.caching == Some(true),
                "caching-yes",
            );
            flag(tracking.optout, "optout");
            flag(
                tracking.optout && tracking.caching == Some(false),
                "caching-no",
            );
            flag(tracking.noloop, "noloop");
            flag(cx.state.tracking.is_broken(cx.client.id), "broken_redirect");
            redirect = tracking.redirect as i64;
            prefixes.extend(tracking.prefixes.iter().cloned().map(Reply::Bulk));
        }
    }
    let flags = flags.into_iter().map(Reply::bulk).collect();
    Ok(Reply::Map(vec![
        (Reply::bulk("flags"), Reply::Set(flags)),
        (Reply::bulk("redirect"), Reply::Int(redirect)),
        (Reply::bulk("prefixes"), Reply::Array(prefixes)),
    ]))
}

pub(super) fn caching(cx: &mut Ctx<'_>, args: &[Bytes]) -> CommandResult {
    let tracking = match &mut cx.client.tracking {
        Some(tracking) => tracking,
        None => {
            return Err(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with \
                 OPTIN or OPTOUT mode enabled"
                    .into(),
            );
        }
    };
    match args[2].to_ascii_lowercase().as_slice() {
        b"yes" if tracking.optin => tracking.caching = Some(true),
        b"yes" => {
            return Err(
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."
                    .into(),
            );
        }
        b"no" if tracking.optout => tracking.caching = Some(false),
        b"no" => {
            return Err(
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."
                    .into(),
            );
        }
        _ => return Err(SYNTAX.into()),
    }
    Ok(Reply::OK)
}

pub(super) fn getredir(cx: &mut Ctx<'_>, _: &[Bytes]) -> CommandResult {
    Ok(Reply::Int(
        cx.client
            .tracking
            .as_ref()
            .map_or(-1, |t| t.redirect as i64),
    ))
}
