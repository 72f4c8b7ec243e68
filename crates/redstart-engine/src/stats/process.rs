//! What the operating system says of this process and machine. In a simulated world it says nothing: a seed's world is the
//! same in every process and on every machine.

use std::fs;

fn read(path: &str) -> String {
    #[cfg(feature = "sim")]
    if crate::sim::is_seeded() {
        return String::new();
    }
    fs::read_to_string(path).unwrap_or_default()
}

pub(crate) fn id() -> u32 {
    #[cfg(feature = "sim")]
    if crate::sim::is_seeded() {
        return 1;
    }
    std::process::id()
}

/// The path of the running program.
pub(crate) fn executable() -> String {
    #[cfg(feature = "sim")]
    if crate::sim::is_seeded() {
        return String::new();
    }
    let path = std::env::current_exe().unwrap_or_default();
    path.display().to_string()
}

/// CPU seconds: of the whole process, of children that have ended, and of the first thread; each in
/// the kernel and outside.
#[derive(Default)]
pub(crate) struct Cpu {
    pub(crate) process: (f64, f64),
    pub(crate) children: (f64, f64),
    pub(crate) main_thread: (f64, f64),
}

/// What a clock tick is to user programs on every Linux.
const TICKS: f64 = 100.0;

pub(crate) fn cpu() -> Cpu {
    let whole = times("/proc/self/stat");
    let first = times(&format!("/proc/self/task/{}/stat", std::process::id()));
    Cpu {
        process: (whole[1], whole[0]),
        children: (whole[3], whole[2]),
        main_thread: (first[1], first[0]),
    }
}

/// `utime`, `stime`, `cutime` and `cstime` in seconds.
fn times(path: &str) -> [f64; 4] {
    let text = read(path);
    // The second field is a name in brackets, which may hold anything.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = rest.split_whitespace().collect();
    std::array::from_fn(|at| {
        let ticks = fields
            .get(11 + at)
            .and_then(|text| text.parse::<f64>().ok());
        ticks.unwrap_or(0.0) / TICKS
    })
}

/// Bytes of this process that are in memory.
pub(crate) fn resident() -> u64 {
    kilobytes("/proc/self/status", "VmRSS:")
}

/// Bytes of memory that the machine has.
pub(crate) fn machine_memory() -> u64 {
    kilobytes("/proc/meminfo", "MemTotal:")
}

fn kilobytes(path: &str, name: &str) -> u64 {
    let text = read(path);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// The system's name and release, and the machine's kind.
pub(crate) fn system() -> String {
    let release = read("/proc/sys/kernel/osrelease");
    let mut name = std::env::consts::OS.to_owned();
    name[..1].make_ascii_uppercase();
    format!("{name} {} {}", release.trim(), std::env::consts::ARCH)
}
