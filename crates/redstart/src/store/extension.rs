//! What the pattern families keep with a store, without the store knowing them.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::Arc,
};

use parking_lot::Mutex;

/// One value for each type.
#[derive(Default)]
pub(super) struct Extensions(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    pub(super) fn get<T: Send + Sync + 'static>(
        &self,
        usable: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        let mut all = self.0.lock();
        let known = all
            .get(&TypeId::of::<T>())
            .and_then(|known| known.clone().downcast::<T>().ok())
            .filter(|known| usable(known));
        if let Some(known) = known {
            return known;
        }
        let made = Arc::new(make());
        let replaced = all.insert(TypeId::of::<T>(), made.clone());
        // It may own the last handle of the store, or take this lock when it is dropped.
        drop(all);
        drop(replaced);
        made
    }
}
