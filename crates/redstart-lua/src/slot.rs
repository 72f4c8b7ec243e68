//! What native functions and the entry of scripts share.

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    ptr::{self, NonNull},
    sync::Arc,
};

use mlua::{Function, LightUserData, Lua, ffi};

use crate::{Arguments, Host, Outcome, Values};

/// What was caught of a panic.
pub(crate) type Panic = Box<dyn Any + Send>;

/// What native functions and the entry of scripts share. C functions point to it.
pub(crate) struct Slot {
    /// For whom the function runs that was entered. None while it answers a call.
    host: Cell<Option<NonNull<dyn Host>>>,
    /// A function was entered and has not ended.
    running: Cell<bool>,
    /// What the last call answered.
    values: Cell<Values>,
    /// `values` is being pushed, or pushing it raised an error.
    pushing: Cell<bool>,
    /// Values of a native function that `push_own` is about to take.
    own: Cell<*mut Values>,
    /// A panic on its way to the caller of the run.
    panic: Cell<Option<Panic>>,
    /// The error of native functions while nothing runs.
    pub(crate) idle: &'static str,
}

// SAFETY: the cells are touched only by code that Lua calls: the C functions of this crate, and the closure that resumes a
// panic. mlua holds the lock of the state for the whole time of such a call, so no two threads are there at once. What the
// cells hold may be dropped on any thread: `Values` and panics are `Send`, and the host is only a pointer, which is followed
// only while the thread that lent it waits in `Entry::run`, on that very thread.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

/// How a native function goes on after its host has answered.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// The values are in the slot.
    Slot(Outcome),
    /// The slot's are in use: the values are here, and the function has to free them.
    Own(*mut Values, Outcome),
    /// Nothing runs.
    Idle,
    /// The host has panicked: the panic is in the slot.
    Panicked,
}

/// Puts a host back where it was taken from.
struct Taken<'a> {
    slot: &'a Slot,
    host: NonNull<dyn Host>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.slot.host.set(Some(self.host));
    }
}

/// The slots of a state. A finaliser that runs while the state is closed can call a function whose upvalues are gone
/// already: the slots are there until the state has been closed.
struct Slots(Vec<Arc<Slot>>);

impl Slot {
    pub(crate) fn new(idle: &'static str) -> Slot {
        Slot {
            host: Cell::new(None),
            running: Cell::new(false),
            values: Cell::default(),
            pushing: Cell::new(false),
            own: Cell::new(ptr::null_mut()),
            panic: Cell::new(None),
            idle,
        }
    }

    /// Keeps the slot for as long as the state.
    pub(crate) fn keep(self: &Arc<Self>, lua: &Lua) {
        if let Some(mut slots) = lua.app_data_mut::<Slots>() {
            slots.0.push(self.clone());
            return;
        }
        lua.set_app_data(Slots(vec![self.clone()]));
    }

    /// What C functions are given to find the slot.
    pub(crate) fn pointer(self: &Arc<Self>) -> LightUserData {
        LightUserData(Arc::as_ptr(self).cast_mut().cast())
    }

    /// A function that resumes the panic that was kept. It owns a reference to the slot: what has this function as an upvalue
    /// may point to the slot.
    pub(crate) fn resume(self: &Arc<Self>, lua: &Lua) -> mlua::Result<Function> {
        let slot = self.clone();
        lua.create_function(move |_, ()| -> mlua::Result<()> {
            match slot.panic.take() {
                Some(panic) => panic::resume_unwind(panic),
                None => Ok(()),
            }
        })
    }

    /// Keeps a panic for the caller of the run. The host is taken away: until the run ends, nothing calls it again, even if
    /// Lua cannot raise the panic because it has no room for that.
    pub(crate) fn keep_panic(&self, panic: Panic) {
        self.host.set(None);
        // The first one counts. Dropping the other could panic, too.
        let kept = match self.panic.take() {
            None => panic,
            Some(first) => {
                std::mem::forget(panic);
                first
            }
        };
        self.panic.set(Some(kept));
    }

    pub(crate) fn take_panic(&self) -> Option<Panic> {
        self.panic.take()
    }

    /// Drops what a host has made, whose destructors may panic; false if one did: the panic is in the slot then.
    pub(crate) fn discard<T>(&self, value: T) -> bool {
        match panic::catch_unwind(AssertUnwindSafe(|| drop(value))) {
            Ok(()) => true,
            Err(panic) => {
                self.keep_panic(panic);
                false
            }
        }
    }

    /// Begins a run; false if there is one.
    pub(crate) fn begin(&self, host: NonNull<dyn Host>) -> bool {
        if self.running.replace(true) {
            return false;
        }
        self.host.set(Some(host));
        true
    }

    /// Ends a run. No native function is active: the function that was entered, and all that it called, has returned.
    pub(crate) fn end(&self) {
        self.host.set(None);
        self.running.set(false);
        if self.pushing.replace(false) {
            self.discard(self.values.take());
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Lets the host answer a call. Neither raises an error nor panics.
    ///
    /// # Safety
    ///
    /// A C function must be running in `state`, with nothing but its arguments on its stack.
    pub(crate) unsafe fn respond(&self, state: *mut ffi::lua_State, function: usize) -> Answer {
        let Some(host) = self.host.take() else {
            return Answer::Idle;
        };
        let busy = self.pushing.get();
        let answer = panic::catch_unwind(AssertUnwindSafe(|| {
            let taken = Taken { slot: self, host };
            let mut values = match busy {
                true => Values::default(),
                false => self.values.take(),
            };
            // SAFETY: the caller vouches for the stack, and nothing here changes it.
            let arguments = unsafe { Arguments::new(state) };
            // SAFETY: `Entry::run` has lent the host exclusively, and waits until the run has ended: then `end` takes it
            // away. Meanwhile it can be had only from the cell, where it is not at the moment.
            let host = unsafe { &mut *taken.host.as_ptr() };
            let outcome = host.call(function, &arguments, &mut values);
            values.finish();
            (values, outcome)
        }));
        match answer {
            Ok((values, outcome)) if busy => Answer::Own(Box::into_raw(Box::new(values)), outcome),
            Ok((values, outcome)) => {
                self.values.set(values);
                self.pushing.set(true);
                Answer::Slot(outcome)
            }
            Err(panic) => {
                self.keep_panic(panic);
                Answer::Panicked
            }
        }
    }

    /// The values that `respond` has left in the slot. They stay as they are until [`Slot::pushed`]: while `pushing` is set,
    /// nothing takes them but `end`.
    pub(crate) fn values(&self) -> *const Values {
        self.values.as_ptr()
    }

    /// Hands values over to `push_own`, which is called next.
    pub(crate) fn set_own(&self, values: *mut Values) {
        self.own.set(values);
    }

    pub(crate) fn take_own(&self) -> *mut Values {
        self.own.replace(ptr::null_mut())
    }

    /// The values were pushed; false if dropping them has panicked: the panic is in the slot then.
    pub(crate) fn pushed(&self) -> bool {
        let mut values = self.values.take();
        self.pushing.set(false);
        let cleared = panic::catch_unwind(AssertUnwindSafe(move || {
            values.clear();
            self.values.set(values);
        }));
        match cleared {
            Ok(()) => true,
            Err(panic) => {
                self.keep_panic(panic);
                false
            }
        }
    }
}
