//! A disk for tests that fails, tears what is written, and loses power at any call.
//!
//! Calls are counted. At one of them, and at random calls before it, something goes wrong; after a
//! crash every call fails, and [`Disk::after_crash`] is what the next start finds.
//!
//! A killed process leaves everything that it handed over. A loss of power keeps only what was
//! synced: of each file the synced part, then perhaps a part of the rest, then perhaps zeros; of
//! the folder, for each name on its own, what it was when the folder was last synced or at any time
//! since. After a failed sync of a file, later syncs of it by the same process say that all is well
//! and keep nothing. (A process that starts again on the same machine cannot know: see `aof.rs`.)

use std::{
    collections::BTreeMap,
    io::{self, Cursor},
    sync::Arc,
};

use parking_lot::Mutex;

use super::folder::{Folder, Handle, Source};
use crate::random::Random;

/// What becomes of the process at the call that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process is killed.
    Kill,
    /// The machine loses power.
    Power,
    /// The call fails: no room. What follows succeeds.
    Full,
    /// The call fails: an error of the device. What follows succeeds.
    Device,
    /// A write is shorter than asked for; other calls are not affected.
    Short,
}

#[derive(Clone, Default)]
struct Inode {
    bytes: Vec<u8>,
    /// What a loss of power leaves for certain.
    kept: Vec<u8>,
    /// A sync failed: nothing is kept any more.
    lost: bool,
}

type Names = BTreeMap<String, usize>;

/// The state of the disk.
#[derive(Clone, Default)]
struct Contents {
    inodes: Vec<Inode>,
    names: Names,
    /// What each name was when the folder was synced, and what it became since.
    history: BTreeMap<String, Vec<Option<usize>>>,
    made: bool,
    made_kept: bool,
}

impl Contents {
    fn note(&mut self, name: &str, before: Option<usize>) {
        let now = self.names.get(name).copied();
        let history = self.history.entry(name.into()).or_insert(vec![before]);
        history.push(now);
    }

    fn set(&mut self, name: &str, inode: Option<usize>) {
        let before = match inode {
            Some(inode) => self.names.insert(name.into(), inode),
            None => self.names.remove(name),
        };
        self.note(name, before);
    }
}

struct Inner {
    contents: Contents,
    calls: u64,
    /// At which call what happens.
    plan: BTreeMap<u64, Fault>,
    crashed: Option<Fault>,
    /// A call went wrong.
    failed: bool,
    random: Random,
    /// Names of the calls, for the message of a failed test.
    journal: Vec<String>,
}

/// The disk; clones are the same one.
#[derive(Clone)]
pub(super) struct Disk(Arc<Mutex<Inner>>);

impl Disk {
    pub(super) fn new(seed: u64) -> Disk {
        Disk::with(Contents::default(), seed)
    }

    fn with(contents: Contents, seed: u64) -> Disk {
        Disk(Arc::new(Mutex::new(Inner {
            contents,
            calls: 0,
            plan: BTreeMap::new(),
            crashed: None,
            failed: false,
            random: Random::seeded(seed),
            journal: Vec::new(),
        })))
    }

    /// At call number `at`, counted from now, this happens.
    pub(super) fn plan(&self, at: u64, fault: Fault) {
        let mut inner = self.0.lock();
        let at = inner.calls + at;
        inner.plan.insert(at, fault);
    }

    pub(super) fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    pub(super) fn crashed(&self) -> bool {
        self.0.lock().crashed.is_some()
    }

    /// The process ends here.
    pub(super) fn crash(&self, how: Fault) {
        self.0.lock().crashed.get_or_insert(how);
    }

    pub(super) fn how_it_ended(&self) -> Fault {
        self.0.lock().crashed.unwrap_or(Fault::Kill)
    }

    /// Whether something went wrong by now.
    pub(super) fn has_failed(&self) -> bool {
        self.0.lock().failed
    }

    pub(super) fn journal(&self) -> String {
        let inner = self.0.lock();
        let lines = inner.journal.iter().enumerate();
        lines
            .map(|(at, call)| format!("{}. {call}\n", at + 1))
            .collect()
    }

    /// The disk that the next start finds.
    pub(super) fn after_crash(&self, seed: u64) -> Disk {
        let inner = self.0.lock();
        let mut contents = inner.contents.clone();
        if inner.crashed == Some(Fault::Power) {
            lose_power(&mut contents, &mut Random::seeded(seed));
        }
        for inode in &mut contents.inodes {
            inode.lost = false;
        }
        Disk::with(contents, seed)
    }

    /// Counts a call; what is to happen with it.
    fn call(&self, what: impl FnOnce() -> String) -> io::Result<Option<Fault>> {
        let mut inner = self.0.lock();
        if inner.crashed.is_some() {
            return Err(io::Error::other("the process is dead"));
        }
        inner.calls += 1;
        let at = inner.calls;
        let fault = inner.plan.remove(&at);
        inner.failed |= fault.is_some();
        let what = match fault {
            Some(fault) => format!("{} <- {fault:?}", what()),
            None => what(),
        };
        inner.journal.push(what);
        Ok(fault)
    }

    /// A call that is carried out or not, never by half.
    fn whole<T>(
        &self,
        what: impl FnOnce() -> String,
        work: impl FnOnce(&mut Contents) -> io::Result<T>,
    ) -> io::Result<T> {
        let fault = self.call(what)?;
        let mut inner = self.0.lock();
        match fault {
            None | Some(Fault::Short) => work(&mut inner.contents),
            Some(fault @ (Fault::Kill | Fault::Power)) => {
                if inner.random.below(2) == 0 {
                    let _ = work(&mut inner.contents);
                }
                inner.crashed = Some(fault);
                Err(io::Error::other("the process is dead"))
            }
            Some(Fault::Full) => Err(io::ErrorKind::StorageFull.into()),
            Some(Fault::Device) => Err(io::Error::from_raw_os_error(5)),
        }
    }
}

fn lose_power(contents: &mut Contents, random: &mut Random) {
    for inode in &mut contents.inodes {
        let (kept, bytes) = (&inode.kept, &inode.bytes);
        let mut left = kept.clone();
        let continues = !inode.lost && bytes.starts_with(kept);
        if continues && bytes.len() > kept.len() {
            let rest = bytes.len() - kept.len();
            let torn = random.below(rest + 1);
            left.extend_from_slice(&bytes[kept.len()..kept.len() + torn]);
            if random.below(3) == 0 {
                // The length got to the disk, the data did not.
                let zeros = random.below(rest - torn + 1);
                left.resize(left.len() + zeros, 0);
            }
        } else if !continues && bytes.len() < kept.len() && !inode.lost && random.below(2) == 0 {
            // It was cut, and that got to the disk.
            left = bytes.clone();
        }
        inode.bytes = left.clone();
        inode.kept = left;
    }
    for (name, states) in std::mem::take(&mut contents.history) {
        match states[random.below(states.len())] {
            Some(inode) => contents.names.insert(name, inode),
            None => contents.names.remove(&name),
        };
    }
    if !contents.made_kept && contents.made && random.below(2) == 0 {
        *contents = Contents::default();
    }
    contents.made_kept = contents.made;
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Folder for Disk {
    fn make(&self) -> io::Result<()> {
        self.whole(
            || "mkdir".into(),
            |contents| {
                contents.made = true;
                Ok(())
            },
        )?;
        self.whole(
            || "sync the parent".into(),
            |contents| {
                contents.made_kept = true;
                Ok(())
            },
        )
    }

    fn names(&self) -> Vec<(String, u64)> {
        let inner = self.0.lock();
        let contents = &inner.contents;
        let len = |inode: &usize| contents.inodes[*inode].bytes.len() as u64;
        contents
            .names
            .iter()
            .map(|(name, inode)| (name.clone(), len(inode)))
            .collect()
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        let inner = self.0.lock();
        let inode = inner.contents.names.get(name).ok_or_else(missing)?;
        Ok(inner.contents.inodes[*inode].bytes.len() as u64)
    }

    fn read(&self, name: &str) -> io::Result<Box<dyn Source>> {
        let bytes = self.whole(
            || format!("open {name} to read"),
            |contents| {
                let inode = contents.names.get(name).ok_or_else(missing)?;
                Ok(contents.inodes[*inode].bytes.clone())
            },
        )?;
        Ok(Box::new(Cursor::new(bytes)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Handle>> {
        let inode = self.whole(
            || format!("create {name}"),
            |contents| match contents.names.get(name).copied() {
                Some(inode) => {
                    contents.inodes[inode].bytes.clear();
                    Ok(inode)
                }
                None => {
                    contents.inodes.push(Inode::default());
                    let inode = contents.inodes.len() - 1;
                    contents.set(name, Some(inode));
                    Ok(inode)
                }
            },
        )?;
        Ok(Box::new(Open {
            disk: self.clone(),
            inode,
            name: name.into(),
        }))
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn Handle>, u64)> {
        let (inode, len) = self.whole(
            || format!("open {name}"),
            |contents| {
                let inode = match contents.names.get(name).copied() {
                    Some(inode) => inode,
                    None => {
                        contents.inodes.push(Inode::default());
                        let inode = contents.inodes.len() - 1;
                        contents.set(name, Some(inode));
                        inode
                    }
                };
                Ok((inode, contents.inodes[inode].bytes.len() as u64))
            },
        )?;
        let open = Open {
            disk: self.clone(),
            inode,
            name: name.into(),
        };
        Ok((Box::new(open), len))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.whole(
            || format!("rename {from} to {to}"),
            |contents| {
                let inode = contents.names.get(from).copied().ok_or_else(missing)?;
                contents.set(to, Some(inode));
                contents.set(from, None);
                Ok(())
            },
        )
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.whole(
            || format!("remove {name}"),
            |contents| {
                contents.names.get(name).ok_or_else(missing)?;
                contents.set(name, None);
                Ok(())
            },
        )
    }

    fn sync(&self) -> io::Result<()> {
        self.whole(
            || "sync the folder".into(),
            |contents| {
                contents.history.clear();
                Ok(())
            },
        )
    }

    fn shown(&self, name: &str) -> String {
        name.into()
    }
}

struct Open {
    disk: Disk,
    inode: usize,
    name: String,
}

impl Handle for Open {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let fault = self
            .disk
            .call(|| format!("write {} to {}", bytes.len(), self.name))?;
        let mut inner = self.disk.0.lock();
        let some = match fault {
            None => bytes.len(),
            // A write may be refused at once, or after some of it.
            Some(_) => inner.random.below(bytes.len() + 1),
        };
        inner.contents.inodes[self.inode]
            .bytes
            .extend_from_slice(&bytes[..some]);
        match fault {
            None => Ok(some),
            Some(Fault::Short | Fault::Full | Fault::Device) if some > 0 => {
                // The kernel says how much it took, and fails at the next call.
                if fault != Some(Fault::Short) {
                    let next = inner.calls + 1;
                    inner.plan.insert(next, fault.unwrap_or(Fault::Full));
                }
                Ok(some)
            }
            Some(Fault::Short) => Err(io::ErrorKind::Interrupted.into()),
            Some(Fault::Full) => Err(io::ErrorKind::StorageFull.into()),
            Some(Fault::Device) => Err(io::Error::from_raw_os_error(5)),
            Some(fault) => {
                inner.crashed = Some(fault);
                Err(io::Error::other("the process is dead"))
            }
        }
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        let inode = self.inode;
        self.disk.whole(
            || format!("cut {} to {len}", self.name),
            |contents| {
                contents.inodes[inode].bytes.truncate(len as usize);
                Ok(())
            },
        )
    }

    fn sync(&self) -> io::Result<()> {
        let inode = self.inode;
        let synced = self.disk.whole(
            || format!("sync {}", self.name),
            |contents| {
                let inode = &mut contents.inodes[inode];
                if !inode.lost {
                    inode.kept = inode.bytes.clone();
                }
                Ok(())
            },
        );
        if synced.is_err() && !self.disk.crashed() {
            self.disk.0.lock().contents.inodes[inode].lost = true;
        }
        synced
    }
}
