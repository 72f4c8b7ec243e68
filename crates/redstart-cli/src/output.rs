//! Standard output: what could not be written makes the command fail.

use std::{
    io::{self, Write as _},
    sync::Mutex,
};

/// The first error of writing.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line, with colours only at a terminal. A pager that was closed is not a failure; any other error makes the
/// command [fail](written) when it ends.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        $crate::output::note(writeln!(anstream::stdout(), $($text)*));
    }};
}

/// Remembers an error of writing.
pub(crate) fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
        && let Ok(mut failed) = FAILED.lock()
    {
        failed.get_or_insert(error);
    }
}

/// Whether all that was said is written.
///
/// # Errors
///
/// The first error.
pub(crate) fn written() -> io::Result<()> {
    note(io::stdout().flush());
    match FAILED.lock() {
        Ok(mut failed) => failed.take().map_or(Ok(()), Err),
        Err(_) => Ok(()),
    }
}

/// Writes what must not be called whole if a part of it is missing: here a reader that went away is a failure, too.
///
/// # Errors
///
/// If it cannot be written.
pub(crate) fn whole(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
