//! One value with a footer, as DUMP returns it: version and checksum.

use super::{
    Fault, VERSION, is_known,
    read::{self, Loaded, Setting},
    source::Source,
    write::Writer,
};
use crate::{config::Config, crc64, types::Value};

const FOOTER: usize = 10;

/// Why a payload is not taken.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The footer does not fit the rest, or the version is not known.
    Footer,
    Contents(Fault),
}

pub(crate) fn dump(value: &Value) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.kind(value);
    writer.value(value);
    let mut out = writer.out;
    out.extend((VERSION as u16).to_le_bytes());
    let checksum = crc64::update(0, &out);
    out.extend(checksum.to_le_bytes());
    out
}

pub(crate) fn restore(payload: &[u8], config: &Config, now_ms: i64) -> Result<Value, Refused> {
    let start = payload.len().checked_sub(FOOTER).ok_or(Refused::Footer)?;
    let (checked, checksum) = payload.split_at(start + 2);
    let version = u32::from(u16::from_le_bytes([checked[start], checked[start + 1]]));
    if !is_known(version) || crc64::update(0, checked).to_le_bytes() != *checksum {
        return Err(Refused::Footer);
    }
    let mut source = Source::new(&payload[..start]);
    let setting = Setting {
        config,
        version,
        now_ms,
    };
    let kind = source.byte().map_err(Refused::Contents)?;
    match read::value(&mut source, kind, setting).map_err(Refused::Contents)? {
        Loaded::Value(value) => Ok(value),
        Loaded::Skipped(name) => Err(Refused::Contents(Fault::Refused(format!(
            "the module of {name} is not known"
        )))),
    }
}
