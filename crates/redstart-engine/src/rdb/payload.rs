//! One value with a footer, as DUMP returns it: version and checksum. FUNCTION DUMP has the same footer.

use super::{
    Fault,
    file::FUNCTION,
    is_known,
    read::{self, Loaded, Setting},
    source::Source,
    write::{Form, Writer},
};
use bytes::Bytes;

use crate::{config::Config, crc64, types::Value};

const FOOTER: usize = 10;

/// Why a payload is not taken.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The footer does not fit the rest, or the version is not known.
    Footer,
    Contents(Fault),
}

pub(crate) fn dump(value: &Value, config: &Config) -> Vec<u8> {
    let form = Form::of(config.compat, [value]);
    let mut writer = Writer::new(form, config.rdb_compression);
    writer.kind(value);
    writer.value(value);
    with_footer(writer)
}

/// All libraries of functions, by their code.
pub(crate) fn dump_functions<'a>(
    codes: impl Iterator<Item = &'a Bytes>,
    config: &Config,
) -> Vec<u8> {
    let mut writer = Writer::new(Form::of(config.compat, []), config.rdb_compression);
    for code in codes {
        writer.raw(&[FUNCTION]);
        writer.string(code);
    }
    with_footer(writer)
}

fn with_footer(writer: Writer) -> Vec<u8> {
    let version = writer.form.version() as u16;
    let mut out = writer.out;
    out.extend(version.to_le_bytes());
    let checksum = crc64::update(0, &out);
    out.extend(checksum.to_le_bytes());
    out
}

/// The codes of the libraries in a payload of FUNCTION DUMP, which have no more than `most` bytes in
/// all; the text of the error if there is one.
pub(crate) fn restore_functions(payload: &[u8], most: usize) -> Result<Vec<Bytes>, &'static str> {
    let (contents, _) = checked(payload).ok_or("ERR DUMP payload version or checksum are wrong")?;
    let mut source = Source::limited(contents, most);
    let mut codes = Vec::new();
    while source.at() < contents.len() as u64 {
        if source.byte().ok() != Some(FUNCTION) {
            return Err("ERR given type is not a function");
        }
        let code = source.string();
        let code = code.map_err(|_| "ERR Failed loading library data")?;
        source.shorten_longest(code.len());
        codes.push(code);
    }
    Ok(codes)
}

/// What is before the footer, and the version; `None` if the footer does not fit it.
fn checked(payload: &[u8]) -> Option<(&[u8], u32)> {
    let start = payload.len().checked_sub(FOOTER)?;
    let (checked, checksum) = payload.split_at(start + 2);
    let version = u32::from(u16::from_le_bytes([checked[start], checked[start + 1]]));
    let fits = is_known(version) && crc64::update(0, checked).to_le_bytes() == *checksum;
    fits.then_some((&payload[..start], version))
}

/// The value of a payload, with the fields of a hash that have expired. Strings longer than `longest`
/// are refused.
pub(crate) fn restore(payload: &[u8], config: &Config, longest: usize) -> Result<Value, Refused> {
    let (contents, version) = checked(payload).ok_or(Refused::Footer)?;
    let mut source = Source::limited(contents, longest);
    let setting = Setting {
        config,
        version,
        now_ms: i64::MIN,
    };
    let kind = source.byte().map_err(Refused::Contents)?;
    match read::value(&mut source, kind, setting).map_err(Refused::Contents)? {
        Loaded::Value(value) => Ok(value),
        Loaded::Skipped(name) => Err(Refused::Contents(Fault::Refused(format!(
            "the module of {name} is not known"
        )))),
    }
}
