//! Access control: who may run which commands on which keys and channels, as Redis 7.0 has it.
//!
//! A client has an [`Account`], which the engine and all connections of the user share: a change of
//! rules is seen by the next command. For an account that may do everything, which the default user
//! is at first, a command costs one look at a flag.
//!
//! | file | what it holds |
//! |---|---|
//! | `acl.rs` | the accounts, and the checks that commands go through |
//! | `acl/user.rs` | a user: on or off, hashes of passwords, rules |
//! | `acl/selector.rs` | rules: commands, keys and channels |
//! | `acl/category.rs`, `acl/catalog.rs` | categories, and the commands that rules can name |
//! | `acl/log.rs`, `acl/file.rs` | what was refused; users in a file |

pub(crate) mod catalog;
pub(crate) mod category;
mod file;
pub(crate) mod log;
pub(crate) mod selector;
pub(crate) mod user;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use self::{
    log::{Entry, Log, Source},
    selector::Denied,
    user::{User, joined},
};
use crate::{
    blocking,
    client::{Client, Profile},
    commands,
    compat::Compat,
    config::Config,
    context::{Ctx, Origin},
    engine::State,
    error::Stop,
    pubsub,
    registry::{Spec, flag, printable},
    reply::Reply,
};

pub(crate) const DEFAULT: &[u8] = b"default";
pub(crate) const NOAUTH: &str = "NOAUTH Authentication required.";

/// What is wrong with a rule, in Redis's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RuleError {
    #[error("Unknown command or category name in ACL")]
    UnknownCommand,
    #[error("Syntax error")]
    Syntax,
    #[error(
        "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have \
         any effect. Try 'resetkeys' to start with an empty list of patterns"
    )]
    AfterAllKeys,
    #[error(
        "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not \
         have any effect. Try 'resetchannels' to start with an empty list of channels"
    )]
    AfterAllChannels,
    #[error("The password you are trying to remove from the user does not exist")]
    NoSuchPassword,
    #[error(
        "The password hash must be exactly 64 characters and contain only lowercase hexadecimal \
         characters"
    )]
    BadHash,
    #[error("Allowing first-arg of a subcommand is not supported")]
    NestedArgument,
}

/// A rule for an error line, without the password that it may hold. Redis shows the password.
fn shown(rule: &[u8]) -> String {
    match rule.first() {
        Some(sign @ (b'>' | b'<' | b'#' | b'!')) => format!("{}(redacted)", *sign as char),
        _ => printable(rule),
    }
}

/// What clients hold of a user.
pub(crate) struct Account {
    pub(crate) name: Bytes,
    /// May do everything: looked at for each command.
    unlimited: AtomicBool,
    deleted: AtomicBool,
    user: RwLock<User>,
}

impl Account {
    fn new(name: Bytes, user: User) -> Account {
        Account {
            name,
            unlimited: AtomicBool::new(user.is_unlimited()),
            deleted: AtomicBool::new(false),
            user: RwLock::new(user),
        }
    }

    /// Of what the engine runs on its own.
    pub(crate) fn of_engine() -> Arc<Account> {
        static ENGINE: LazyLock<Arc<Account>> =
            LazyLock::new(|| Arc::new(Account::new(Bytes::new(), User::unlimited())));
        ENGINE.clone()
    }

    #[inline]
    pub(crate) fn is_unlimited(&self) -> bool {
        self.unlimited.load(Ordering::Relaxed)
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Relaxed)
    }

    /// Whether the rules allow all of a call.
    pub(crate) fn may_call(&self, spec: &Spec, args: &[Bytes]) -> bool {
        self.is_unlimited() || self.user().check(spec, args).is_ok()
    }

    fn set(&self, user: User) {
        let mut held = self.user.write();
        self.unlimited.store(user.is_unlimited(), Ordering::Relaxed);
        *held = user;
    }

    fn delete(&self) {
        self.deleted.store(true, Ordering::Relaxed);
        self.unlimited.store(false, Ordering::Relaxed);
    }

    pub(crate) fn user(&self) -> parking_lot::RwLockReadGuard<'_, User> {
        self.user.read()
    }
}

/// All accounts of an engine. Has locks of its own, because clients log in also while a slow script
/// holds the engine's state.
pub(crate) struct Acl {
    default: Arc<Account>,
    /// Connections begin without a user: the default one has a password or is off.
    guarded: AtomicBool,
    accounts: RwLock<BTreeMap<Bytes, Arc<Account>>>,
    log: Mutex<Log>,
    file: OnceLock<PathBuf>,
    /// `acl-pubsub-default allchannels`.
    all_channels: AtomicBool,
    /// `protected-mode`.
    protected: AtomicBool,
}

impl Default for Acl {
    fn default() -> Acl {
        let default = Arc::new(Account::new(Bytes::from_static(DEFAULT), User::unlimited()));
        Acl {
            accounts: RwLock::new(BTreeMap::from([(default.name.clone(), default.clone())])),
            default,
            guarded: AtomicBool::new(false),
            log: Mutex::default(),
            file: OnceLock::new(),
            all_channels: AtomicBool::new(false),
            protected: AtomicBool::new(true),
        }
    }
}

impl Acl {
    /// Of a state that is a stand-in.
    pub(crate) fn of_nobody() -> Arc<Acl> {
        static NOBODY: LazyLock<Arc<Acl>> = LazyLock::new(Arc::default);
        NOBODY.clone()
    }

    /// The account that connections begin with.
    pub(crate) fn default_account(&self) -> &Arc<Account> {
        &self.default
    }

    /// Whether connections have to log in.
    #[inline]
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::Relaxed)
    }

    /// Whether the default user has no password, whether or not it is on.
    pub(crate) fn is_without_password(&self) -> bool {
        !self.default.user().has_password()
    }

    fn watch_default(&self) {
        let open = self.default.user().is_open();
        self.guarded.store(!open, Ordering::Relaxed);
    }

    /// Takes over the settings that are looked at without the engine's lock.
    pub(crate) fn follow_config(&self, config: &Config) {
        self.all_channels
            .store(config.acl_all_channels, Ordering::Relaxed);
        self.protected
            .store(config.protected_mode, Ordering::Relaxed);
    }

    /// Whether only this machine may connect: protected mode is on and the default user has no
    /// password.
    pub(crate) fn is_protected(&self) -> bool {
        self.protected.load(Ordering::Relaxed) && self.is_without_password()
    }

    /// `acl-pubsub-default`: whether new users may use all channels.
    pub(crate) fn all_channels(&self) -> bool {
        self.all_channels.load(Ordering::Relaxed)
    }

    /// `requirepass`: the password of the default user.
    pub(crate) fn set_default_password(&self, password: Option<&str>) {
        let mut user = self.default.user().clone();
        let rule = password.map_or_else(|| "nopass".to_owned(), |password| format!(">{password}"));
        for rule in ["resetpass", &rule] {
            // Neither can fail.
            let _ = user.apply(rule.as_bytes(), false);
        }
        self.default.set(user);
        self.watch_default();
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<Arc<Account>> {
        self.accounts.read().get(name).cloned()
    }

    /// All accounts by name.
    pub(crate) fn accounts(&self) -> Vec<Arc<Account>> {
        self.accounts.read().values().cloned().collect()
    }

    /// A line for each user, as a file holds them.
    pub(crate) fn list(&self, compat: Compat) -> Vec<Vec<u8>> {
        let accounts = self.accounts();
        let line = |account: &Arc<Account>| {
            [
                b"user ",
                &account.name[..],
                b" ",
                &account.user().describe(compat),
            ]
            .concat()
        };
        accounts.iter().map(line).collect()
    }

    /// As [`Acl::list`], without the default user while it is what it is at first or has only the password
    /// that `requirepass` gives it.
    pub(crate) fn list_changed(&self, password: Option<&str>, compat: Compat) -> Vec<Vec<u8>> {
        let usual = Acl::default();
        usual.set_default_password(password);
        let usual = usual.list(compat);
        let lines = self.list(compat).into_iter();
        lines.filter(|line| !usual.contains(line)).collect()
    }

    /// Creates or changes a user, all rules or none of them. What the user was before, if it is not
    /// new.
    pub(crate) fn set_user<T: AsRef<[u8]>>(
        &self,
        name: &[u8],
        rules: &[T],
    ) -> Result<Arc<Account>, String> {
        if selector::has_blanks(name) {
            return Err("Usernames can't contain spaces or null characters".into());
        }
        let rules = joined(rules).map_err(|first| {
            let first = printable(&first);
            format!("Unmatched parenthesis in acl selector starting at '{first}'.")
        })?;
        let all_channels = self.all_channels();
        let known = self.find(name);
        let mut user = match &known {
            Some(account) => account.user().clone(),
            None => User::new(all_channels),
        };
        for rule in &rules {
            user.apply(rule, all_channels).map_err(|error| {
                format!("Error in ACL SETUSER modifier '{}': {error}", shown(rule))
            })?;
        }
        let account = match known {
            Some(account) => {
                account.set(user);
                account
            }
            None => {
                let name = Bytes::copy_from_slice(name);
                let account = Arc::new(Account::new(name.clone(), user));
                self.accounts.write().insert(name, account.clone());
                account
            }
        };
        self.watch_default();
        Ok(account)
    }

    /// Removes a user; its connections are the caller's to end.
    pub(crate) fn remove(&self, name: &[u8]) -> Option<Arc<Account>> {
        let account = self.accounts.write().remove(name)?;
        account.delete();
        Some(account)
    }

    /// Whether this is a user with this password, who may connect.
    pub(crate) fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Arc<Account>> {
        let account = self.find(name)?;
        let accepted = account.user().accepts(password);
        accepted.then_some(account)
    }

    // ---- the file ----

    /// Reads the users from a file, which ACL LOAD and ACL SAVE use from now on.
    pub(crate) fn use_file(&self, path: &Path) -> Result<(), String> {
        let _ = self.file.set(path.to_owned());
        self.load().map(|_| ())
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.get().map(PathBuf::as_path)
    }

    /// Reads the file again, all of it or nothing. The accounts that were replaced, whose connections
    /// are the caller's to end.
    pub(crate) fn load(&self) -> Result<Vec<Arc<Account>>, String> {
        let Some(path) = self.file() else {
            return Err(NO_FILE.into());
        };
        let users = file::read(path, self.all_channels())?;
        let mut accounts = self.accounts.write();
        let mut replaced = std::mem::take(&mut *accounts);
        replaced.remove(DEFAULT);
        let mut default = User::unlimited();
        for (name, user) in users {
            if name.as_ref() == DEFAULT {
                default = user;
            } else {
                accounts.insert(name.clone(), Arc::new(Account::new(name, user)));
            }
        }
        self.default.set(default);
        accounts.insert(self.default.name.clone(), self.default.clone());
        drop(accounts);
        self.watch_default();
        replaced.values().for_each(|account| account.delete());
        Ok(replaced.into_values().collect())
    }

    pub(crate) fn save(&self, compat: Compat) -> Result<(), String> {
        let Some(path) = self.file() else {
            return Err(NO_FILE.into());
        };
        file::write(path, self, compat).map_err(|error| {
            tracing::warn!(%error, path = %path.display(), "cannot save the users");
            "There was an error trying to save the ACLs. Please check the server logs for more \
             information"
                .into()
        })
    }

    // ---- the log ----

    pub(crate) fn log(&self) -> parking_lot::MutexGuard<'_, Log> {
        self.log.lock()
    }
}

const NO_FILE: &str = "This Redis instance is not configured to use an ACL file. You may want to \
     specify users via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a \
     Redis configuration file set) in order to store users in the Redis configuration.";

// ---- what commands go through ----

/// Refuses a command that the client's user may not run; for accounts that are not unlimited.
#[cold]
pub(crate) fn check(cx: &mut Ctx<'_>, spec: &Spec, args: &[Bytes]) -> Result<(), Stop> {
    let Err(denied) = allowed(cx, spec, args)? else {
        return Ok(());
    };
    let source = match cx.client.multi.is_some() {
        true => Source::Multi,
        false => Source::TopLevel,
    };
    note(cx, spec, args, denied, source);
    Err(refusal(spec, denied).into())
}

pub(crate) fn refusal(spec: &Spec, denied: Denied) -> String {
    match denied {
        Denied::Command => {
            let name = spec.full_name;
            format!("NOPERM this user has no permissions to run the '{name}' command")
        }
        Denied::Key(_) => {
            "NOPERM this user has no permissions to access one of the keys used as arguments".into()
        }
        Denied::Channel(_) => {
            "NOPERM this user has no permissions to access one of the channels used as arguments"
                .into()
        }
    }
}

/// As [`check`], for a command of a transaction when it is executed.
#[cold]
pub(crate) fn check_queued(cx: &mut Ctx<'_>, spec: &Spec, args: &[Bytes]) -> Result<(), Stop> {
    let Err(denied) = allowed(cx, spec, args)? else {
        return Ok(());
    };
    note(cx, spec, args, denied, Source::Multi);
    let why = match denied {
        Denied::Command => "no permission to execute the command or subcommand",
        Denied::Key(_) => "no permission to touch the specified keys",
        Denied::Channel(_) => "no permission to access one of the channels used as arguments",
    };
    Err(format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC \
         call. This command is no longer allowed for the following reason: {why}"
    )
    .into())
}

/// As [`check`], for a command of a script; the text has no code.
#[cold]
pub(crate) fn check_in_script(
    cx: &mut Ctx<'_>,
    spec: &Spec,
    args: &[Bytes],
) -> Result<(), &'static str> {
    let denied = match allowed(cx, spec, args) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(denied)) => denied,
        Err(_) => Denied::Command,
    };
    note(cx, spec, args, denied, Source::Script);
    Err(match denied {
        Denied::Command => "The user executing the script can't run this command or subcommand",
        Denied::Key(_) => {
            "The user executing the script can't access at least one of the keys mentioned in the \
             command arguments"
        }
        Denied::Channel(_) => {
            "The user executing the script can't publish to the channel mentioned in the command"
        }
    })
}

/// Whether the client may read keys that the arguments do not name.
pub(crate) fn reads_all_keys(cx: &Ctx<'_>, spec: &Spec, args: &[Bytes]) -> bool {
    let account = &cx.client.account;
    account.is_unlimited() || account.user().reads_all_keys(spec, args)
}

/// The rules' verdict; an error if the user is gone.
fn allowed(cx: &Ctx<'_>, spec: &Spec, args: &[Bytes]) -> Result<Result<(), Denied>, Stop> {
    let account = &cx.client.account;
    if account.is_deleted() && !spec.is(flag::NO_AUTH) {
        return Err(NOAUTH.into());
    }
    Ok(account.user().check(spec, args))
}

fn note(cx: &mut Ctx<'_>, spec: &Spec, args: &[Bytes], denied: Denied, source: Source) {
    let (reason, object) = match denied {
        Denied::Command => ("command", Bytes::from_static(spec.full_name.as_bytes())),
        Denied::Key(at) => ("key", short(&args[at])),
        Denied::Channel(at) => ("channel", short(&args[at])),
    };
    let user = cx.client.account.name.clone();
    add_entry(cx, Some(spec.full_name), reason, object, user, source);
}

/// The beginning of a text that a client chose, so that the log stays small. Redis keeps all of it.
fn short(text: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&text[..text.len().min(128)])
}

/// Notes that somebody could not log in. The user's name may be made up.
pub(crate) fn note_failed_login(cx: &mut Ctx<'_>, command: &Bytes, user: &[u8]) {
    let source = match cx.client.multi.is_some() || cx.origin == Origin::Exec {
        true => Source::Multi,
        false => Source::TopLevel,
    };
    let (object, user) = (short(command), short(user));
    add_entry(cx, None, "auth", object, user, source);
}

fn add_entry(
    cx: &mut Ctx<'_>,
    command: Option<&'static str>,
    reason: &'static str,
    object: Bytes,
    user: Bytes,
    source: Source,
) {
    if cx.origin == Origin::Client {
        commands::client::profile(cx);
        cx.client.update_profile(command, cx.now_micros);
    }
    let profile = cx.state.clients.get(&cx.client.id).cloned();
    let client = profile.map_or_else(String::new, |profile| {
        commands::client::describe(cx, &profile)
    });
    let entry = Entry {
        count: 1,
        reason,
        source,
        object,
        user,
        at: cx.now_micros,
        client,
    };
    let limit = cx.state.config.acllog_max_len;
    cx.state.acl.log().add(entry, limit);
}

// ---- what changes of users do to connections ----

fn has(profile: &Profile, account: &Arc<Account>) -> bool {
    Arc::ptr_eq(&profile.activity.lock().account, account)
}

/// Ends the connections of a user.
pub(crate) fn end_clients(state: &mut State, client: &mut Client, account: &Arc<Account>) {
    let victims: Vec<Arc<Profile>> = state
        .clients
        .values()
        .filter(|profile| profile.id != client.id && has(profile, account))
        .cloned()
        .collect();
    for profile in &victims {
        end_client(state, profile);
    }
    if Arc::ptr_eq(&client.account, account) {
        client.closing = true;
    }
}

fn end_client(state: &mut State, profile: &Profile) {
    profile.kill();
    state.monitors.remove(&profile.id);
    pubsub::cut_off(state, profile.id);
    let gone = Reply::Error("ERR the client was killed".into());
    blocking::unblock(state, profile.id, Some(gone));
}

/// Ends the connections that listen to what their user may no longer hear.
pub(crate) fn end_subscribers(state: &mut State, client: &mut Client, account: &Arc<Account>) {
    let mut forbidden: Vec<u64> = Vec::new();
    let user = account.user();
    pubsub::each_subscription(state, |kind, name, subscribers| {
        if !user.may_subscribe(name, kind == pubsub::Kind::Pattern) {
            forbidden.extend(subscribers);
        }
    });
    drop(user);
    forbidden.sort_unstable();
    forbidden.dedup();
    for id in forbidden {
        match state.clients.get(&id).cloned() {
            Some(profile) if has(&profile, account) && id == client.id => client.closing = true,
            Some(profile) if has(&profile, account) => end_client(state, &profile),
            _ => {}
        }
    }
}
