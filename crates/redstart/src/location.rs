//! Location: who and what is near.
//!
//! | pattern | for |
//! |---|---|
//! | [`Places`] | positions of members, and searches around a point or a member |
//! | [`PrivatePlaces`] | the same data for callers who may learn only rounded distances |

use crate::{
    error::{Error, Result},
    script::Script,
};

mod area;
mod places;
mod position;
mod private;
mod search;

pub use area::{Area, Origin};
pub use places::{Places, PlacesBuilder};
pub use position::Position;
pub use private::{PrivateNearby, PrivatePlaces};
pub use search::{Nearby, Search};

fn check_member(member: &str) -> Result<()> {
    if member.is_empty() || member.len() > Places::MAX_MEMBER {
        return Err(Error::config(format!(
            "a member must have 1 to {} bytes, not {}",
            Places::MAX_MEMBER,
            member.len()
        )));
    }
    Ok(())
}

/// Every script of this family, for [`script::all`](crate::script::all).
pub(crate) static SCRIPTS: &[&Script] = &[
    &places::LOOK,
    &places::PUT,
    &places::REMOVE,
    &search::NEARBY,
];
