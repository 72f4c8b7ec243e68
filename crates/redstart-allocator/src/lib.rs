//! Gives memory that the allocator keeps back to the system.
//!
//! This is a crate of its own because it holds unsafe code: one call into the C library. The other
//! crates forbid it, except `redstart-lua`.

/// Returns free pages to the system, wherever they lie. Takes a lock of the allocator for some
/// milliseconds per gigabyte, so it is not for every request.
///
/// Does nothing where the C library is not glibc, or where the program uses an allocator of its own.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub fn give_back() {
    // SAFETY: malloc_trim may be called at any time from any thread; it changes only what is free. The
    // argument is how many bytes to keep at the end of the heap.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns free pages to the system; this system's allocator does so on its own.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}
